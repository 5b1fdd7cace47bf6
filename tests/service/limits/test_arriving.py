"""Requests that are not whole: their calls are ended when memory is short, and only then."""

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.rpc.arriving import ARRIVING_S_MAX, ArrivingCalls
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.handlers import add_to_server
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.rpc.statuses import CallRefused
from purgatory.service.settings import HostSettings
from purgatory.testing import ManualClock


async def test_late_requests_are_refused_and_others_wait_on() -> None:
    """Of two calls that wait for their request, the one that has waited long is refused; the other gets its request."""
    now_s = [0.0]
    arriving = ArrivingCalls(lambda: now_s[0])
    whole: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    late = asyncio.create_task(arriving.request(lambda: never))
    await asyncio.sleep(0)
    now_s[0] = ARRIVING_S_MAX - 0.01
    in_time = asyncio.create_task(arriving.request(lambda: whole))
    await asyncio.sleep(0)
    arriving.refuse_late()
    assert len(arriving) == 2
    now_s[0] = ARRIVING_S_MAX
    arriving.refuse_late()
    with pytest.raises(CallRefused, match="memory") as raised:
        await late
    assert raised.value.code == code_pb2.RESOURCE_EXHAUSTED
    whole.set_result("request")
    assert await in_time == "request"
    assert len(arriving) == 0


async def test_a_call_that_its_caller_gave_up_stays_cancelled() -> None:
    """Nobody gets an answer in place of a cancellation."""
    arriving = ArrivingCalls()
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(arriving.request(lambda: never))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(arriving) == 0


async def test_a_caller_that_never_sends_its_request_is_told() -> None:
    """On a real server: the call ends with the status, and its stream with it."""
    host = Host(Engine(EngineLimits(), 0), ManualClock(), HostSettings())
    now_s = [0.0]
    gate = CallGate(host.fair_queue, host.settings.limits)
    gate.arriving = ArrivingCalls(lambda: now_s[0])
    server = grpc.aio.server()
    nobody = host.shares.accounts.nobody
    add_to_server(PurgatoryServicer(host), server, gate, lambda _method: lambda _context: nobody)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.stream_unary("/purgatory.v1.PurgatoryService/Register")()
            async with asyncio.timeout(5):
                while not len(gate.arriving):  # noqa: ASYNC110 - nobody is told of a call that comes in
                    await asyncio.sleep(0.001)
            now_s[0] = 1.0
            gate.arriving.refuse_late()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        await server.stop(0)
