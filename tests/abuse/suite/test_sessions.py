"""Attacks on sessions: fill the table, leave sessions behind, use another caller's ids."""

import asyncio

import grpc
import pytest
from purgatory_client import AsyncClient, Outcome, batches, errors

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.daemon import DaemonProcess, InProcessDaemon, RunDaemon
from tests.kit.eventually import eventually
from tests.kit.messages import produce, register_batch, register_request
from tests.kit.served_host import DaemonChannel

SESSIONS_MAX = 50
FEW = ("--limits-sessions-max", str(SESSIONS_MAX))
LONG = 120.0


async def serve_an_honest_wait(daemon: InProcessDaemon) -> None:
    """A new caller connects, waits, and is answered."""
    async with AsyncClient(daemon.address) as client, asyncio.timeout(LONG):
        waiting = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
        await eventually(lambda: client.pending == 1, "submitted")
        await client.advance("orders-3", high_watermark=42)
        assert (await waiting).satisfied


async def sessions(caller: DaemonChannel) -> int:
    return (await caller.status()).sessions


async def test_empty_sessions_shut_nobody_out(run_daemon: RunDaemon) -> None:
    daemon = await run_daemon(*FEW)
    async with DaemonChannel(daemon.address) as stranger:
        nothing = register_batch()
        for number in range(4 * SESSIONS_MAX):
            await stranger.stub.Register(wire.RegisterRequest(session_id=f"empty-{number}", batch=nothing))
        assert await sessions(stranger) == SESSIONS_MAX
        await serve_an_honest_wait(daemon)


async def test_a_full_table_is_told_to_caller_and_operator(run_daemon: RunDaemon) -> None:
    """Sessions with pending operations are never evicted. Refused callers are counted, and this is logged once."""
    daemon = await run_daemon(*FEW)
    async with DaemonChannel(daemon.address) as stranger:
        for number in range(2 * SESSIONS_MAX):
            request = register_request(f"full-{number}", produce(1, "held", 1, 600_000))
            if number < SESSIONS_MAX:
                await stranger.stub.Register(request)
                continue
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stranger.stub.Register(request)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert daemon.log.count("limit reached: ") == 1
        assert "(sessions)" in daemon.log
        await stranger.stub.CloseSession(wire.CloseSessionRequest(session_id="full-0"))
        await serve_an_honest_wait(daemon)


async def test_a_stranger_who_uses_up_my_ids_cannot_make_me_hang(shared_daemon: DaemonProcess) -> None:
    """A stranger registers the highest possible id in my session. My waits then fail with the reason long before their
    timeout, and my client starts another session.
    """
    address = shared_daemon.address
    async with AsyncClient(address) as client, AsyncClient(address) as stranger, asyncio.timeout(LONG):
        assert (await client.produce({"orders-3": 42}, timeout=0)).outcome is Outcome.EXPIRED
        before = client.session_id
        last = batches.produce(["elsewhere-0"], offsets=[1], indexes=[0])
        assert (await stranger.register(client.session_id, 2**61 - 1, last)).accepted == 1
        with pytest.raises(errors.OperationIdInUse):
            await client.produce({"orders-3": 42}, timeout=10 * LONG)
        await eventually(lambda: client.session_id != before, "another session")
        assert (await client.produce({"orders-3": 42}, timeout=0)).outcome is Outcome.EXPIRED
