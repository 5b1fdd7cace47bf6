"""The calls over a real server: waits, events, cancels, listings, and refusals."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from purgatory.engine.limits import EngineLimits
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.v1 import event_pb2, operation_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import high_watermark, key_signalled, produce, signal
from tests.kit.served_host import Peer, ServedHost, refused, serving


@pytest.fixture
async def served() -> AsyncIterator[ServedHost]:
    settings = HostSettings(limits=LimitsSettings(operations_per_batch_max=100, events_per_batch_max=100))
    engine_limits = EngineLimits(pending_operations_max=50, items_per_operation_max=5)
    async with serving(settings, engine_limits, options=[("grpc.max_receive_message_length", 100_000)]) as served:
        yield served


def violations(error: grpc.aio.AioRpcError) -> list[error_details_pb2.BadRequest.FieldViolation]:
    """Return the field violations in an error's details."""
    found = error_details_pb2.BadRequest()
    for detail in rpc_status.from_call(error).details:
        detail.Unpack(found)
    return list(found.field_violations)


async def wait(served: ServedHost, operation: operation_pb2.Operation) -> result_pb2.Result:
    answer: wire.WaitResponse = await served.stub.Wait(wire.WaitRequest(operation=operation))
    return answer.result


async def test_a_wait_ends_when_its_mark_is_reached(served: ServedHost) -> None:
    """The answer has the outcome, the caller's own id and the offset reached."""
    task = asyncio.create_task(wait(served, produce(77, "orders", 42, partition=3)))
    await eventually(lambda: served.host.engine.pending == 1, "one pending")
    receipt = await served.high_watermark("orders", 43, partition=3)
    assert list(receipt.ended) == [1]
    result = await task
    assert (result.operation_id, result.outcome) == (77, result_pb2.OUTCOME_SATISFIED)
    assert result.partitions[0].reached_offset == 43
    assert await wait(served, produce(1, "orders", 40, partition=3)) is not None


async def test_a_caller_that_goes_away_cancels_its_wait(served: ServedHost) -> None:
    """If the call is cancelled or its own deadline passes, nothing stays pending."""
    request = wire.WaitRequest(operation=produce(1, "orders", 42))
    call = served.stub.Wait(request)
    await eventually(lambda: served.host.engine.pending == 1, "one pending")
    call.cancel()
    await eventually(lambda: served.host.engine.pending == 0, "none pending")
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        await served.stub.Wait(request, timeout=0.05)
    await eventually(lambda: served.host.engine.pending == 0, "none pending")
    assert sum(kind.cancelled for kind in (await served.status()).kinds) == 2


def bad_operations() -> dict[str, tuple[operation_pb2.Operation, str, str]]:
    """Name -> (operation, invalid field, value that the message must contain)."""
    twice = produce(1, "orders", 1)
    twice.produce.partitions.append(twice.produce.partitions[0])
    many = produce(1, "orders", 1)
    for partition in range(1, 7):
        item = many.produce.partitions.add(required_offset=1)
        item.topic_partition.topic = "orders"
        item.topic_partition.partition = partition
    negative = produce(1, "orders", 1)
    negative.produce.partitions[0].topic_partition.partition = -4
    unnamed = operation_pb2.Operation(produce=operation_pb2.Produce(partitions=[operation_pb2.ProducePartition()]))
    isolation = operation_pb2.Operation(fetch=operation_pb2.Fetch(isolation_level=9))
    isolation.fetch.partitions.add().topic_partition.topic = "orders"
    return {
        "no condition": (operation_pb2.Operation(), "operation.condition", "set one of"),
        "no partitions": (
            operation_pb2.Operation(produce=operation_pb2.Produce()), "operation.produce.partitions", "empty",
        ),
        "same partition twice": (twice, "operation.produce.partitions[1].topic_partition", "orders-0"),
        "too many partitions": (many, "operation.produce.partitions", "7"),
        "negative offset": (produce(1, "orders", -5), "operation.produce.partitions[0].required_offset", "-5"),
        "offset out of range": (
            produce(1, "orders", 2**63 - 1), "operation.produce.partitions[0].required_offset", str(2**63 - 1),
        ),
        "timeout negative": (produce(1, "orders", 1, -1), "operation.timeout_ms", "-1"),
        "timeout over the maximum": (produce(1, "orders", 1, 2**40), "operation.timeout_ms", str(2**40)),
        "no topic": (unnamed, "operation.produce.partitions[0].topic_partition", "missing"),
        "topic too long": (produce(1, "x" * 250, 1), "operation.produce.partitions[0].topic_partition", "250"),
        "negative partition": (negative, "operation.produce.partitions[0].topic_partition", "-4"),
        "unknown isolation level": (isolation, "operation.fetch.isolation_level", "9"),
        "no keys": (operation_pb2.Operation(signal=operation_pb2.Signal()), "operation.signal.keys", "empty"),
        "empty key": (signal(1, ""), "operation.signal.keys[0].key", "missing"),
    }  # fmt: skip


@pytest.mark.parametrize("name", bad_operations())
async def test_a_bad_wait_is_invalid(served: ServedHost, name: str) -> None:
    """An invalid wait is INVALID_ARGUMENT with field and value, in text and in details; nothing is registered."""
    operation, field, value = bad_operations()[name]
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as raised:
        await wait(served, operation)
    [violation] = violations(raised.value)
    assert violation.field == field
    assert value in violation.description
    status = await served.status()
    assert all(kind.registered == 0 for kind in status.kinds)
    assert status.partitions == 0


@pytest.mark.parametrize("method", ["Wait", "Advance", "Register", "GetStatus", "Cancel"])
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x05\x12"])
async def test_bytes_that_are_no_message_are_invalid(served: ServedHost, method: str, data: bytes) -> None:
    """Undecodable bytes are INVALID_ARGUMENT, and the daemon continues."""
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        await served.raw(method)(data)
    assert await served.pending() == 0


async def test_wrong_utf8_is_invalid(served: ServedHost) -> None:
    """Invalid UTF-8 is refused in a unary request, and in a stream, which then ends with the same status."""
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
    """A message over the limit is RESOURCE_EXHAUSTED from gRPC itself, unary and in a stream; the daemon continues."""
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        await served.raw("Wait")(b"x" * 200_000)
    peer = await Peer(served, "a").open()
    await peer.register(*(signal(place + 1, "k" * 240) for place in range(1_000)))
    assert await peer.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await eventually(lambda: served.host.sessions.connected == 0, "no stream")
    assert await served.pending() == 0


async def test_the_rest_of_a_batch_of_events_is_applied(served: ServedHost) -> None:
    """In rows, each refusal has its event, code, field and value; the other events are applied."""
    name = operation_pb2.TopicPartition(topic="orders")
    receipt = await served.advance(
        high_watermark("orders", 10, leader_epoch=5),
        high_watermark("orders", 20, leader_epoch=4),
        high_watermark("orders", -3),
        event_pb2.Event(topic_partition=name),
        event_pb2.Event(high_watermark=event_pb2.HighWatermark(offset=1)),
        high_watermark("orders", 9),
        high_watermark("orders", 11),
    )
    refusals = {refusal.index: refusal for refusal in receipt.refusals}
    assert sorted(refusals) == [1, 2, 3, 4]
    assert (refusals[1].code, refusals[1].error_code) == (9, 74)
    assert refusals[2].code == 3
    assert "-3" in refusals[2].message
    assert (len(receipt.ended), receipt.unchanged) == (7, 1)
    view = await served.stub.GetPartition(wire.GetPartitionRequest(topic_partition=name))
    assert (view.partition.high_watermark, view.partition.stale_events) == (11, 1)


async def test_columns_of_events_are_checked_one_by_one(served: ServedHost) -> None:
    """In columns, unknown types, row-only types and indexes outside the dictionary are refused, the others applied."""
    columns = event_pb2.EventColumns(
        partitions=[operation_pb2.TopicPartition(topic="orders")],
        type=[3, 99, 7, 3],
        item_index=[0, 0, 0, 4],
        offset=[5, 5, 5, 5],
    )
    answer = await served.stub.Advance(wire.AdvanceRequest(columns=columns))
    assert [refusal.index for refusal in answer.receipt.refusals] == [1, 2, 3]
    messages = [refusal.message for refusal in answer.receipt.refusals]
    assert "99" in messages[0]
    assert "only be sent as rows" in messages[1]
    assert "4" in messages[2]
    assert (await served.status()).partitions == 1


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (wire.AdvanceRequest(), "shape"),
        (wire.AdvanceRequest(columns=event_pb2.EventColumns(type=[3, 3, 3], offset=[1, 2])), "columns.offset"),
        (wire.AdvanceRequest(columns=event_pb2.EventColumns(type=[3] * 101)), "columns.type"),
    ],
)
async def test_a_batch_of_events_that_cannot_be_read_is_invalid(
    served: ServedHost, request_: wire.AdvanceRequest, field: str
) -> None:
    """A batch without a shape, with inconsistent lengths or with too many events is INVALID_ARGUMENT with the field;
    nothing is applied.
    """
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as raised:
        await served.stub.Advance(request_)
    assert violations(raised.value)[0].field == field
    assert (await served.status()).partitions == 0


async def test_a_stream_of_events_is_answered_in_order(served: ServedHost) -> None:
    """Each message gets one answer, even if none of its events had an effect."""
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


async def test_operations_are_listed_page_by_page_described_and_cancelled(served: ServedHost) -> None:
    """Every pending operation is on exactly one page; filters narrow the list; tokens of other requests are refused."""
    peer = await Peer(served, "s").open()
    await peer.registered(*(produce(place, f"t{place % 2}", 42) for place in range(1, 21)), signal(21, "k"))
    seen: list[int] = []
    token = ""
    while True:
        request = wire.ListOperationsRequest(session_id="s", page_size=4, page_token=token)
        page = await served.stub.ListOperations(request)
        assert len(page.operations) <= 4
        seen += [operation.operation_id for operation in page.operations]
        token = page.next_page_token
        if not token:
            break
        last_token = token
    assert sorted(seen) == list(range(1, 22))
    keyed = await served.stub.ListOperations(wire.ListOperationsRequest(key="k"))
    assert [(item.operation_id, item.partitions[0].key) for item in keyed.operations] == [(21, "k")]
    for bad in (last_token, "nonsense", "bnVsbA=="):
        with refused(grpc.StatusCode.INVALID_ARGUMENT) as raised:
            await served.stub.ListOperations(wire.ListOperationsRequest(key="k", page_token=bad))
        assert violations(raised.value)[0].field == "page_token"
    story = (await served.stub.GetOperation(wire.GetOperationRequest(session_id="s", operation_id=1))).operation
    assert (story.session_id, story.partitions[0].error_code, story.partitions[0].required_offset) == ("s", 7, 42)
    assert 0 < story.remaining_ms <= 30_000
    cancelled = await served.stub.Cancel(wire.CancelRequest(session_id="s", operation_ids=[1, 1, 99]))
    assert (cancelled.cancelled, list(cancelled.not_pending_operation_ids)) == (1, [1, 99])
    by_partition = wire.CancelRequest(topic_partition=operation_pb2.TopicPartition(topic="t0"))
    assert (await served.stub.Cancel(by_partition)).cancelled == 10
    assert (await served.stub.Cancel(wire.CancelRequest(key="k"))).cancelled == 1
    assert (await served.stub.Cancel(wire.CancelRequest(session_id="s"))).cancelled == 9
    ended = 0
    while ended < 21:
        rows = (await peer.results()).rows.results
        assert {row.outcome for row in rows} == {result_pb2.OUTCOME_CANCELLED}
        ended += len(rows)
    with refused(grpc.StatusCode.NOT_FOUND):
        await served.stub.GetOperation(wire.GetOperationRequest(session_id="s", operation_id=1))


async def test_partitions_are_listed_page_by_page(served: ServedHost) -> None:
    """Partitions are listed in order of name, filtered by prefix."""
    for partition in range(5):
        await served.high_watermark("b", 1, partition)
    await served.high_watermark("a", 1)
    names: list[tuple[str, int]] = []
    token = ""
    while True:
        request = wire.ListPartitionsRequest(topic_prefix="b", page_size=2, page_token=token)
        page = await served.stub.ListPartitions(request)
        names += [(item.topic_partition.topic, item.topic_partition.partition) for item in page.partitions]
        token = page.next_page_token
        if not token:
            break
    assert names == [("b", partition) for partition in range(5)]
    everything = await served.stub.ListPartitions(wire.ListPartitionsRequest())
    assert len(everything.partitions) == 6
    with refused(grpc.StatusCode.NOT_FOUND):
        await served.stub.GetPartition(
            wire.GetPartitionRequest(topic_partition=operation_pb2.TopicPartition(topic="nowhere"))
        )


@pytest.mark.parametrize(
    "request_",
    [
        wire.CancelRequest(),
        wire.CancelRequest(session_id="s", key="k"),
        wire.CancelRequest(key="k", operation_ids=[1]),
    ],
)
async def test_a_cancel_says_exactly_one_thing(served: ServedHost, request_: wire.CancelRequest) -> None:
    """A cancel with no target or several is INVALID_ARGUMENT, and nothing is cancelled."""
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        await served.stub.Cancel(request_)
