"""The event stream: opened on first use, reopened after it has ended, and nothing is sent twice."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import cast

import grpc
import grpc.aio
import pytest
from purgatory_client import AsyncClient, errors, events
from purgatory_client.rpc_errors import STATUS_LOST
from purgatory_client.session.event_stream import REOPENED_MAX, Call, EventStream

from purgatory.service.translate import batch_limits
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.daemon import DaemonProcess, RunDaemon
from tests.kit.eventually import eventually
from tests.kit.proxy import FaultyProxy

pytestmark = pytest.mark.sockets

MESSAGE = wire.AdvanceStreamRequest()
RECEIPT = wire.AdvanceStreamResponse(receipt=wire.AdvanceReceipt(ended=[3]))
GONE = (grpc.StatusCode.UNAVAILABLE, "the daemon has gone")
LOST = (grpc.StatusCode.INTERNAL, STATUS_LOST)
"""The error that gRPC reports for a call that ended while a message was being written."""


class ScriptedCall:
    """A call that answers each message with the next of its answers: a message, or None for never. With a status, it
    ends at the first write.
    """

    def __init__(self, answers: Sequence[object] = (), *, status: tuple[grpc.StatusCode, str] | None = None) -> None:
        self.answers = list(answers)
        self.status = status
        self.written = 0
        self.over = False
        self.never: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        assert self.never is not None
        self.never.cancel()

    def done(self) -> bool:
        return self.over

    async def code(self) -> grpc.StatusCode:
        return (self.status or GONE)[0]

    async def details(self) -> str:
        return (self.status or GONE)[1]

    async def write(self, request: wire.AdvanceStreamRequest) -> None:
        assert request is MESSAGE
        if self.status is not None:
            raise asyncio.InvalidStateError
        self.written += 1

    async def read(self) -> object:
        answer = self.answers.pop(0)
        if answer is None:
            self.never = asyncio.get_running_loop().create_future()
            await self.never
        return answer


def stream_over(*calls: ScriptedCall, timeout: float = 30.0) -> EventStream:
    """A stream that uses these calls, in order."""
    rest = iter(calls)
    return EventStream(lambda: cast("Call", next(rest)), timeout)


async def test_one_call_serves_message_after_message_until_it_ends() -> None:
    first, second = ScriptedCall([RECEIPT] * 3), ScriptedCall([RECEIPT])
    stream = stream_over(first, second)
    assert [list((await stream.exchange(MESSAGE)).ended) for _ in range(3)] == [[3]] * 3
    first.over = True
    await stream.exchange(MESSAGE)
    assert (first.written, second.written) == (3, 1)


@pytest.mark.parametrize(
    ("failing", "says"),
    [
        (ScriptedCall(status=GONE), "the daemon has gone"),
        (ScriptedCall([grpc.aio.EOF]), "ended the stream"),
        (ScriptedCall([None]), "did not answer these events within"),
    ],
)
async def test_a_message_without_a_receipt_is_not_sent_again(failing: ScriptedCall, says: str) -> None:
    """A message without a receipt may have been applied, so it raises Unavailable; the next message opens a new
    stream.
    """
    healthy = ScriptedCall([RECEIPT])
    stream = stream_over(failing, healthy, timeout=0.01)
    with pytest.raises(errors.Unavailable, match=says):
        await stream.exchange(MESSAGE)
    assert healthy.written == 0
    await stream.exchange(MESSAGE)
    assert healthy.written == 1


async def test_a_stream_whose_status_grpc_has_lost_is_reopened_a_few_times_only() -> None:
    """If gRPC replaces the daemon's status by an error of its own, nothing was sent, and another stream is tried."""
    lost, healthy = [ScriptedCall(status=LOST) for _ in range(REOPENED_MAX + 1)], ScriptedCall([RECEIPT] * 2)
    assert list((await stream_over(*lost[:-1], healthy).exchange(MESSAGE)).ended) == [3]
    stream = stream_over(*lost, healthy)
    with pytest.raises(errors.Unavailable, match="ended 6 times: Internal error from Core"):
        await stream.exchange(MESSAGE)
    assert healthy.written == 1
    await stream.exchange(MESSAGE)


async def test_a_refusal_that_arrives_during_a_write_is_reported() -> None:
    """A daemon that ends each stream at once gives the caller its own status, whenever it arrives."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[object, object]) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not let in")

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[object, object] = grpc.stream_stream_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Daemon", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            opener: grpc.aio.StreamStreamMultiCallable[wire.AdvanceStreamRequest, object] = channel.stream_stream(
                "/a.Daemon/Refuse", wire.AdvanceStreamRequest.SerializeToString
            )
            opened: list[Call] = []
            stream = EventStream(lambda: opened.pop() if opened else cast("Call", opener()))
            for turn in range(200):
                opened.append(cast("Call", opener()))
                for _ in range(turn % 16):
                    await asyncio.sleep(0)  # each length is another race between the write and the refusal
                with pytest.raises((errors.PermissionDenied, grpc.aio.AioRpcError)) as refused:
                    await stream.exchange(MESSAGE)
                assert "Internal error" not in str(refused.value), turn
    finally:
        await server.stop(None)


async def test_a_cancelled_caller_is_not_told_of_a_late_daemon() -> None:
    hanging, healthy = ScriptedCall([None]), ScriptedCall([RECEIPT])
    stream = stream_over(hanging, healthy)
    waiting = asyncio.create_task(stream.exchange(MESSAGE))
    await asyncio.sleep(0)
    assert hanging.never is not None
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await stream.exchange(MESSAGE)


async def test_each_message_has_its_own_time() -> None:
    stream = stream_over(ScriptedCall([RECEIPT, None]), timeout=0.05)
    loop = asyncio.get_running_loop()
    await stream.exchange(MESSAGE)
    await asyncio.sleep(0.03)
    started = loop.time()
    with pytest.raises(errors.Unavailable, match="did not answer"):
        await stream.exchange(MESSAGE)
    assert loop.time() - started >= 0.05 - time.get_clock_info("monotonic").resolution


async def test_a_refused_message_fails_alone(run_daemon: RunDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_limits, "EVENTS_MAX", 2)
    daemon = await run_daemon()
    async with AsyncClient(daemon.address) as client:
        before = await client.advance("orders-3", high_watermark=1)
        with pytest.raises(errors.InvalidRequest, match="at most 2 are allowed in one batch"):
            await client.advance_many([events.high_watermark("orders-3", offset) for offset in (2, 3, 4)])
        after = await client.advance("orders-3", high_watermark=5)
        assert (before.unchanged, after.unchanged) == (0, 0)
        assert (await client.partition("orders-3")).high_watermark == 5


async def test_events_go_on_after_a_connection_was_lost(shared_daemon: DaemonProcess) -> None:
    async with FaultyProxy(shared_daemon.address) as proxy, AsyncClient(proxy.address) as client:
        for offset in (1, 2, 3):
            advance = partial(client.advance, "lost-0", high_watermark=offset)
            await eventually(advance, "an event arrives", errors.Unavailable)
            assert proxy.drop_all() == 1
        await eventually(partial(client.advance, "lost-0", high_watermark=4), "it arrives", errors.Unavailable)
        assert (await client.partition("lost-0")).high_watermark == 4
