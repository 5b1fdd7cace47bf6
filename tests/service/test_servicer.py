"""The calls over a real server: waits, events, cancels, listings, and refusals."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from purgatory.v1 import event_pb2, operation_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import key_signalled, produce, signal
from tests.kit.served_host import Peer, ServedHost, refused, serving


@pytest.fixture
async def served() -> AsyncIterator[ServedHost]:
    async with serving(options=[("grpc.max_receive_message_length", 100_000)]) as served:
        yield served


async def wait(served: ServedHost, operation: operation_pb2.Operation) -> result_pb2.Result:
    answer: wire.WaitResponse = await served.stub.Wait(wire.WaitRequest(operation=operation))
    return answer.result


async def test_a_wait_ends_when_its_mark_is_reached(served: ServedHost) -> None:
    task = asyncio.create_task(wait(served, produce(77, "orders", 42, partition=3)))
    await eventually(lambda: served.host.engine.pending == 1, "one pending")
    receipt = await served.high_watermark("orders", 43, partition=3)
    assert list(receipt.ended) == [1]
    result = await task
    assert (result.operation_id, result.outcome) == (77, result_pb2.OUTCOME_SATISFIED)
    assert result.partitions[0].reached_offset == 43
    assert await wait(served, produce(1, "orders", 40, partition=3)) is not None


async def test_a_caller_that_goes_away_cancels_its_wait(served: ServedHost) -> None:
    request = wire.WaitRequest(operation=produce(1, "orders", 42))
    call = served.stub.Wait(request)
    await eventually(lambda: served.host.engine.pending == 1, "one pending")
    call.cancel()
    await eventually(lambda: served.host.engine.pending == 0, "none pending")
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        await served.stub.Wait(request, timeout=0.05)
    await eventually(lambda: served.host.engine.pending == 0, "none pending")
    assert sum(kind.cancelled for kind in (await served.status()).kinds) == 2


@pytest.mark.parametrize("method", ["Wait", "Advance", "Register", "GetStatus", "Cancel"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x05\x12"])
async def test_bytes_that_are_no_message_are_invalid(served: ServedHost, method: str, data: bytes) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        await served.raw(method)(data)
    assert await served.pending() == 0


async def test_wrong_utf8_is_invalid(served: ServedHost) -> None:
    data = wire.WaitRequest(operation=signal(1, "AAAA")).SerializeToString().replace(b"AAAA", b"\xff\xfe\xfdA")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "UTF-8"):
        await served.raw("Wait")(data)
    call: grpc.aio.StreamStreamMultiCallable = served.channel.stream_stream("/purgatory.v1.PurgatoryService/Session")
    stream = call()
    await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id="a")).SerializeToString())
    await stream.read()
    await stream.write(b"\xff\xff")
    assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
    await eventually(lambda: served.host.sessions.connected == 0, "no stream")
    assert await served.pending() == 0


async def test_a_message_that_is_too_big_is_refused(served: ServedHost) -> None:
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        await served.raw("Wait")(b"x" * 200_000)
    peer = await Peer(served, "a").open()
    await peer.register(*(signal(place + 1, "k" * 240) for place in range(1_000)))
    assert await peer.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await eventually(lambda: served.host.sessions.connected == 0, "no stream")
    assert await served.pending() == 0


async def test_a_stream_of_events_is_answered_in_order(served: ServedHost) -> None:
    stream = served.stub.AdvanceStream()
    waiting = asyncio.create_task(wait(served, signal(1, "done")))
    await eventually(lambda: served.host.engine.pending == 1, "one pending")
    event = key_signalled("done")
    for events in ([event], [], [event, event]):
        await stream.write(wire.AdvanceStreamRequest(rows=event_pb2.EventRows(events=events)))
    answers = [(await stream.read()).receipt for _ in range(3)]
    assert [list(answer.ended) for answer in answers] == [[1], [], [0, 0]]
    await stream.done_writing()
    assert await stream.code() == grpc.StatusCode.OK
    assert (await waiting).outcome == result_pb2.OUTCOME_SATISFIED
