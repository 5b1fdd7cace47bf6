"""`Extend`: more time for pending operations, also while their deadline is due."""

from __future__ import annotations

import asyncio

from purgatory_client.aio import AsyncClient

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.sizes import CONTROL_MESSAGES_MAX
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually, until_pending
from tests.kit.messages import produce
from tests.kit.served_host import Peer, serving

COUNT = 400
LONG_MS = 600_000


def one_wait(timeout_ms: int) -> tuple[Host, Session, ManualClock]:
    """A host with operation 1 of a session, on a clock that is moved by hand."""
    clock = ManualClock(1)
    host = Host(Engine(EngineLimits(), 1), clock, HostSettings())
    session, _ = host.sessions.open("s", 1)
    batch = OperationBatch([1], partitions=[("orders", 3)], offsets=[5], timeouts_ms=[timeout_ms])
    host.registration(session).register([OperationRun(codes.PRODUCE, batch)], [])
    return host, session, clock


async def test_what_is_due_expires_before_it_is_extended() -> None:
    host, session, clock = one_wait(1_000)
    clock.jump(1_001)
    assert host.extend(session, [1], 500) == [False]
    assert (host.engine.pending, session.outbox.last_sequence) == (0, 1)
    clock.jump(10_000)
    host.reaper.turn()
    assert session.outbox.last_sequence == 1


async def test_an_extension_is_a_use_of_the_session() -> None:
    host, session, clock = one_wait(LONG_MS * 10)
    ttl_ms = host.settings.session.ttl_ms
    for _ in range(3):
        clock.jump(ttl_ms - 1)
        assert host.extend(session, [1], 500) == [True]
        host.sessions.drop_expired(host.time.now_ms())
        assert not session.dropped
    clock.jump(ttl_ms)
    host.sessions.drop_expired(host.time.now_ms())
    assert session.dropped


async def test_extended_while_it_fires() -> None:
    """What is reported as not pending has expired, once each; everything else is satisfied later."""
    async with serving() as served, AsyncClient(served.address) as client:
        peer = await Peer(served, "s").open(columns=True)
        await peer.registered(*(produce(number, "orders", 5, number) for number in range(1, COUNT + 1)))
        await eventually(lambda: served.host.engine.pending < COUNT, "some have expired")
        gone = await client.extend(range(1, COUNT + 1), LONG_MS / 1_000, session_id="s")
        assert served.host.engine.pending == COUNT - len(gone)
        await client.advance("orders-0", high_watermark=5)
        ended: dict[int, int] = {}
        while len(ended) < COUNT:
            if not (message := await peer.read()).HasField("results"):
                continue  # which were extended
            columns = message.results.columns
            outcomes = list(columns.outcome)
            for number in columns.operation_id:
                assert number not in ended
                ended[number] = outcomes.pop(0) if len(columns.outcome) > 1 else columns.outcome[0]
        assert sorted(gone) == sorted(number for number, outcome in ended.items() if outcome == codes.EXPIRED)
        assert set(ended.values()) <= {codes.EXPIRED, codes.SATISFIED}
        peer.cancel()


async def test_owner_hears_of_an_extension_by_another_caller() -> None:
    """On its session stream, or its stream of results: those that were pending, and the time from now on."""
    async with serving() as served, AsyncClient(served.address) as client:
        peer = await Peer(served, "s").open()
        await peer.registered(produce(1, "orders", 5), produce(2, "orders", 6))
        assert await client.extend([2, 3], 600, session_id="s") == [3]
        expected = wire.OperationsExtended(operation_ids=[2], timeout_ms=600_000)
        assert (await peer.read()).extended == expected
        results = served.stub.StreamResults(wire.StreamResultsRequest(session_id="s"))
        assert (await results.read()).HasField("opened")
        assert await client.extend([2], 600, session_id="s") == []
        assert (await results.read()).extended == expected
        results.cancel()


async def test_extensions_are_left_out_where_nobody_reads() -> None:
    """They must not take the place of a receipt: a peer that does not read has few."""
    async with serving() as served, AsyncClient(served.address) as client:
        peer = await Peer(served, "s").open()
        await peer.registered(produce(1, "orders", 5))
        [stream] = served.host.sessions.streams()
        stream.wake = lambda: None  # type: ignore[method-assign] # so its writer does nothing
        for _ in range(2 * CONTROL_MESSAGES_MAX):
            await client.extend([1], 600, session_id="s")
        stream.reserve()
        assert stream._unwritten == CONTROL_MESSAGES_MAX


async def test_a_client_extends_its_own_waits() -> None:
    async with serving() as served, AsyncClient(served.address) as client:
        one = asyncio.create_task(client.produce({"orders-0": 1}, timeout=60))
        await until_pending(client, 1)
        many = asyncio.create_task(client.produce_many(["orders-0"], offsets=[2, 3], timeouts_ms=[60_000]))
        await until_pending(client, 3)
        assert await client.extend([1, 3, 9], 600) == [9]
        remaining = [(await client.operation(client.session_id, number)).remaining for number in (1, 2, 3)]
        assert [time_s > 590 for time_s in remaining] == [True, False, True]
        assert await client.extend([], 600) == []
        await client.advance("orders-0", high_watermark=3)
        assert (await one).satisfied
        assert (await many).satisfied
