"""Incomplete messages: their calls are ended only when memory is short or soon will be."""

import asyncio
from typing import Any, Final

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import code_pb2

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.rpc.call import ARRIVING_S_MAX, STREAMS_INTERVAL_S, IncompleteRequests
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.handlers import add_to_server, service_methods
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.settings import HostSettings
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.eventually import eventually


class Waiting:
    """Calls that wait for a message that does not arrive, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: Final = IncompleteRequests(lambda: self.now_s)

    def start(self, caller: str, *, has_read: bool = False) -> asyncio.Task[str]:
        """A call that ends with the code of its refusal, or with "cancelled" if the daemon did not end it."""

        async def serve() -> str:
            call = self.calls.call(caller)
            call.begin()
            if has_read:
                call.ended()
                call.is_first = False
                call.begin()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                refused = call.refusal()
                return "cancelled" if refused is None else code_pb2.Code.Name(refused.code)
            finally:
                call.ended()
            raise AssertionError("nothing comes")

        return asyncio.create_task(serve())


async def test_late_requests_are_refused_and_others_wait_on() -> None:
    waiting = Waiting()
    late = waiting.start("one")
    await asyncio.sleep(0)
    waiting.now_s = ARRIVING_S_MAX - 0.01
    in_time = waiting.start("one")
    await asyncio.sleep(0)
    assert waiting.calls.end_late(is_short=True) == 0
    waiting.now_s = ARRIVING_S_MAX
    assert waiting.calls.end_late(is_short=True) == 1
    assert await late == "RESOURCE_EXHAUSTED"
    assert len(waiting.calls) == 1
    in_time.cancel()
    assert await in_time == "cancelled"
    assert len(waiting.calls) == 0


async def test_who_has_most_is_ended_first() -> None:
    """The caller with the most calls without a first message loses them and its streams; others keep theirs."""
    waiting = Waiting()
    attacker = [waiting.start("attacker", has_read=number > 1) for number in range(5)]
    honest = [waiting.start("honest", has_read=number > 0) for number in range(9)]
    await asyncio.sleep(0)
    waiting.now_s = ARRIVING_S_MAX
    assert waiting.calls.end_late(is_short=False) == 5
    assert [await call for call in attacker] == ["RESOURCE_EXHAUSTED"] * 2 + ["UNAVAILABLE"] * 3
    assert len(waiting.calls) == 9
    assert waiting.calls.end_late(is_short=False) == 9
    assert [await call for call in honest] == ["RESOURCE_EXHAUSTED"] + ["UNAVAILABLE"] * 8


async def test_open_streams_are_ended_of_one_caller_at_a_time() -> None:
    """While memory is not short yet, the same caller's streams are not ended repeatedly."""
    waiting = Waiting()
    many = [waiting.start("many", has_read=True) for _ in range(3)]
    few = [waiting.start("few", has_read=True) for _ in range(2)]
    await asyncio.sleep(0)
    waiting.now_s = ARRIVING_S_MAX
    assert waiting.calls.end_late(is_short=False) == 3
    assert {await call for call in many} == {"UNAVAILABLE"}
    again = waiting.start("many", has_read=True)
    await asyncio.sleep(0)
    waiting.now_s = 2 * ARRIVING_S_MAX
    assert waiting.calls.end_late(is_short=False) == 2
    assert {await call for call in few} == {"UNAVAILABLE"}
    assert waiting.calls.end_late(is_short=False) == 0
    assert waiting.calls.end_late(is_short=True) == 1
    assert await again == "UNAVAILABLE"
    later = waiting.start("many", has_read=True)
    await asyncio.sleep(0)
    waiting.now_s += STREAMS_INTERVAL_S
    assert waiting.calls.end_late(is_short=False) == 1
    assert await later == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("method", "first", "status"),
    [
        ("Register", None, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("StreamResults", None, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("Session", None, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("Session", wire.SessionRequest(open=wire.OpenSession(session_id="s")), grpc.StatusCode.UNAVAILABLE),
        ("AdvanceStream", wire.AdvanceStreamRequest(rows=event_pb2.EventRows()), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_caller_that_never_sends_its_message_is_told(
    method: str, first: Message | None, status: grpc.StatusCode
) -> None:
    host = Host(Engine(EngineLimits(), 0), ManualClock(), HostSettings())
    now_s = [0.0]
    gate = CallGate(host.fair_queue, host.settings.limits)
    gate.incomplete_requests = IncompleteRequests(lambda: now_s[0])
    server = grpc.aio.server()
    nobody = host.shares.accounts.nobody
    add_to_server(service_methods(PurgatoryServicer(host)), server, gate, lambda _method: lambda _context: nobody)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(60):
            call: Any = channel.stream_stream(f"/purgatory.v1.PurgatoryService/{method}")()
            if first is not None:
                await call.write(first.SerializeToString())
                await call.read()
                # A call that is ended while its first answer is still being written never gets its status from gRPC;
                # streams that are late for half a second have written it long before, and here after another call.
                await PurgatoryServiceStub(channel).GetStatus(wire.GetStatusRequest())
            await eventually(lambda: len(gate.incomplete_requests), "the call has arrived")
            now_s[0] = 1.0
            assert gate.incomplete_requests.end_late(is_short=False) == 1
            assert await call.code() == status
            await eventually(lambda: not (gate.queue.calls or len(gate.incomplete_requests)), "it has ended")
    finally:
        await server.stop(0)
