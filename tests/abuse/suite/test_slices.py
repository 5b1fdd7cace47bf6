"""No single call holds the event loop: each is processed in slices of bounded work, with the same result as one large
call.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

import pytest

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.calls import Cancel, Register
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.errors import BatchRejected
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Called, Completed, Listener
from purgatory.service.loop_stalls import LoopStalls
from purgatory.service.rpc import session_requests
from purgatory.service.rpc.call import Call, Context
from purgatory.service.rpc.event_calls import advance
from purgatory.service.sessions import result_stream
from purgatory.service.settings import HostSettings
from purgatory.service.translate import results
from purgatory.service.translate.events import event_parts
from purgatory.service.translate.operations import registration_parts
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.messages import advance_request, produce_columns
from tests.kit.served_host import Peer, ServedHost, serving

ITEMS: Final = 500
T = TypeVar("T")


class CountingListener(Listener):
    def __init__(self) -> None:
        self.registered_rows: list[int] = []
        self.ended_items: list[int] = []
        """Number of items that each call ended."""
        self.cancelled_ids: list[int] = []
        self._items = 0

    def called(self, event: Called) -> None:
        if isinstance(event.call, Register):
            self.registered_rows.append(len(event.call.batch.operation_ids))
        elif isinstance(event.call, Cancel):
            self.cancelled_ids += event.call.operation_ids

    def completed(self, event: Completed) -> None:
        self._items += event.completions.items

    def discarded(self, event: Completed) -> None:
        self.completed(event)

    def call_finished(self) -> None:
        self.ended_items.append(self._items)
        self._items = 0


class Held:
    """A host and one session in it, without a network."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.listener = CountingListener()
        self.engine = Engine(EngineLimits(), self.clock.now_ms())
        self.host = Host(self.engine, self.clock, HostSettings(), self.listener)
        self.session = self.host.sessions.open("s", 0)[0]
        self.call = Call(cast(Context, None), self.session.account)

    async def register(self, columns: operation_pb2.OperationColumns) -> wire.Receipt:
        return await session_requests.register(self.host, self.session, wire.RegisterBatch(columns=columns))


def partitions(count: int, topic: str = "orders") -> list[operation_pb2.TopicPartition]:
    return [operation_pb2.TopicPartition(topic=topic, partition=place) for place in range(count)]


def columns_of(ids: range, items: int = ITEMS) -> operation_pb2.OperationColumns:
    """Operations that all name the same partitions."""
    return operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE, partitions=partitions(items), operation_id=ids, item_count=[items],
        item_index=list(range(items)) * len(ids), offset=[9], timeout_ms=[60_000],
    )  # fmt: skip


async def turns_of(work: Coroutine[Any, Any, T]) -> tuple[int, T]:
    """Number of loop iterations that run while the work is done, and its result."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, task.result()


# Registrations.


async def test_large_batch_is_registered_in_parts() -> None:
    held = Held()
    turns, receipt = await turns_of(held.register(columns_of(range(1, 11))))
    assert (receipt.accepted, receipt.highest_operation_id) == (10, 10)
    assert held.listener.registered_rows == [4, 4, 2]
    assert turns >= 3


def test_each_part_of_registrations_has_only_the_names_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "VALUES_PER_PART", 10)
    places = random.Random(1).choices(range(50), k=100)
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE, partitions=partitions(50), operation_id=range(1, 101),
        item_index=places, offset=range(100),
    )  # fmt: skip
    found: list[tuple[int, int]] = []
    for part in registration_parts(wire.RegisterBatch(columns=columns), 30_000):
        batch = part.runs[0].batch
        assert len(batch.partitions) <= len(batch.operation_ids) <= 10
        names = [batch.partitions[place][1] for place in batch.item_indexes]
        found += zip(names, batch.offsets, strict=True)
    assert found == list(zip(places, range(100), strict=True))


async def test_short_column_refuses_all_parts() -> None:
    held = Held()
    columns = columns_of(range(1, 21))
    columns.offset.extend([1, 2])
    with pytest.raises(BatchRejected, match=r"has 3 values; it takes 10000"):
        await held.register(columns)
    assert held.engine.pending == held.session.owner.highest_operation_id == 0


async def test_ids_that_do_not_rise_from_part_to_part_are_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id of an earlier part is refused without a result; an id that was skipped is refused with a result."""
    monkeypatch.setattr(sizes, "VALUES_PER_PART", 10)
    held = Held()
    ids = [*range(1, 10), 15, 7, 13, 19]
    receipt = await held.register(
        operation_pb2.OperationColumns(kind=1, partitions=partitions(1), operation_id=ids, offset=[9])
    )
    assert held.listener.registered_rows == [10, 3]
    assert (receipt.accepted, receipt.already_known) == (11, 0)
    assert [(refusal.index, refusal.operation_id) for refusal in receipt.refusals] == [(10, 7), (11, 13)]
    _, slices = held.session.outbox.take(10)
    assert [list(part.completions.operation_ids) for part in slices] == [[13]]


async def test_two_batches_of_a_session_do_not_mix() -> None:
    """The second batch waits for its turn: otherwise the ids of the first one's later parts would not increase."""
    held = Held()
    batches = [columns_of(range(1, 11)), columns_of(range(11, 21)), columns_of(range(21, 22), 1)]
    receipts = await asyncio.gather(*map(held.register, batches))
    assert [receipt.accepted for receipt in receipts] == [10, 10, 1]


async def test_batch_whose_caller_goes_leaves_the_turn_to_the_next() -> None:
    """The registered part is kept; when the same batch is sent again, this part is already known."""
    held = Held()
    tasks = [asyncio.create_task(held.register(columns_of(ids))) for ids in (range(1, 11), range(90, 92))]
    for _ in range(2):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    registered = sum(held.listener.registered_rows)
    assert 0 < registered < 10
    receipt = await held.register(columns_of(range(1, 11)))
    assert (receipt.already_known, receipt.accepted) == (registered, 10 - registered)


async def test_drain_refuses_the_parts_that_are_left_with_a_result_each() -> None:
    held = Held()
    task = asyncio.create_task(held.register(columns_of(range(1, 11))))
    await asyncio.sleep(0)
    held.host.gate.draining = True
    receipt = await task
    assert receipt.accepted + len(receipt.refusals) == 10
    assert 0 < receipt.accepted < 10
    assert held.session.outbox.last_sequence == len(receipt.refusals)


async def test_no_result_of_a_batch_comes_before_its_receipt() -> None:
    """Even if its first part has results long before its last one is registered."""
    async with serving() as served:
        await served.high_watermark("orders", 100)
        peer = await Peer(served, "s").open(columns=True)
        await peer.send(register=produce_columns(range(1, 20_001)))
        assert (await peer.receipt()).accepted == 20_000
        assert len((await peer.results()).columns.operation_id) > 1
        peer.cancel()


# Events.


async def test_events_of_many_replicas_go_in_slices() -> None:
    """The size of a slice depends on the cost of the replica sets, not on their number. Too many ids are refused before
    they are copied.
    """
    held = Held()
    [name] = partitions(1)
    sets = {"replica_ids": range(1, 901)}, {"proposed_replica_ids": [1] * 1_001}
    one, long = (
        event_pb2.Event(topic_partition=name, in_sync_replicas=event_pb2.InSyncReplicas(leader_id=1, **ids))
        for ids in sets
    )
    request = advance_request(*[one] * 40, long)
    assert max(len(part) for part in event_parts(request)) <= 6
    turns, receipt = await turns_of(advance(held.host, request, held.call))
    assert turns >= 7
    assert len(receipt.ended) == 41
    [refusal] = receipt.refusals
    assert (refusal.index, refusal.field) == (40, "in_sync_replicas.proposed_replica_ids")


def test_each_part_of_events_has_the_right_names_of_both_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "VALUES_PER_PART", 10)
    draw = random.Random(2)
    types = draw.choices([codes.HIGH_WATERMARK, codes.KEY_SIGNALLED], k=200)
    places = draw.choices(range(50), k=200)
    columns = event_pb2.EventColumns(
        partitions=partitions(50), keys=[f"key-{place}" for place in range(50)], type=types, item_index=places,
        offset=range(200),
    )  # fmt: skip
    found: list[object] = []
    for part in event_parts(wire.AdvanceRequest(columns=columns)):
        batch = part.batch
        assert part.first == len(found)
        for kind, place, offset in zip(batch.types, batch.item_indexes, batch.offsets, strict=True):
            names = batch.keys if kind == codes.KEY_SIGNALLED else batch.partitions
            found.append((names[place], offset))
    assert found == [
        (f"key-{place}" if kind == codes.KEY_SIGNALLED else ("orders", place), offset)
        for kind, place, offset in zip(types, places, range(200), strict=True)
    ]


# Ends.


@pytest.mark.parametrize("how", ["ids", "session", "partition", "close", "expiry"])
async def test_end_of_large_operations_goes_in_slices(how: str) -> None:
    """Sixty operations of 500 items, whatever ends them: each call ends a bounded number, and no result is lost. A
    session may be opened again while the operations of the former one end.
    """
    held = Held()
    await held.register(columns_of(range(1, 61)))
    again = None
    if how == "ids":
        cancelled, not_pending = await session_requests.cancel(held.host, held.session, [99, *range(1, 61)])
        assert (len(cancelled), not_pending) == (60, [99])
    elif how == "session":
        assert await held.host.cancel_session(held.session) == 60
    elif how == "partition":
        assert await held.host.cancel_waits(("orders", 3)) == 60
    elif how == "close":
        held.host.close_session(held.session)
        assert 0 < held.engine.pending < 60
        again, resumed = held.host.sessions.open("s", 0)
        assert (resumed, again.owner.pending) == (False, 0)
    else:
        held.clock.jump(60_001)
    while held.engine.pending:
        held.host.reaper.turn()
        await asyncio.sleep(0)
    assert sum(held.listener.ended_items) == 60 * ITEMS
    # Expired operations are taken out of the wheel sixteen at a time.
    assert max(held.listener.ended_items) <= sizes.WORK_PER_SLICE + (16 * ITEMS if how == "expiry" else ITEMS)
    if how in {"session", "partition", "close"}:
        assert held.listener.cancelled_ids == list(range(1, 61))
    assert again is None or again.outbox.last_sequence == 0


# Results and listings.


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("name_length", [6, 249])
async def test_messages_of_results_are_made_once(
    columns: bool, name_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message size depends on items, not on results. A message is encoded again at most once, if names are long."""
    made: list[int] = []

    def counting(batch: wire.ResultBatch, first: int, slices: Any, *, columns: bool) -> None:  # noqa: ANN401 - as it is
        made.append(sum(part.item_stop - part.item_start for part in slices))
        results.fill_batch(batch, first, slices, columns=columns)

    monkeypatch.setattr(result_stream, "fill_batch", counting)
    held = Held()
    request = columns_of(range(1, 41))
    for name in request.partitions:
        name.topic = "\U0001f600" * name_length
    await held.register(request)
    await held.host.cancel_session(held.session)
    stream = held.host.sessions.attach(
        held.session, wire.SessionResponse, last_sequence=0, columns=columns, expects_heartbeats=False, now_ms=0
    )
    messages = read = 0
    while read < 40:
        encoded = stream._next_results()
        assert isinstance(encoded, bytes)
        assert len(encoded) <= sizes.MESSAGE_BYTES_MAX
        batch = wire.SessionResponse.FromString(encoded).results
        messages, read = messages + 1, read + len(batch.columns.operation_id) + len(batch.rows.results)
    assert len(made) <= 2 * messages
    assert max(made) <= (sizes.COLUMN_RESULTS_MAX if columns else sizes.ROW_RESULTS_MAX)


async def pages(call: Any, request_type: type[Any], size: int) -> list[Any]:  # noqa: ANN401 - one of two listings
    """All pages of a listing."""
    found: list[Any] = []
    while not found or found[-1].next_page_token:
        token = found[-1].next_page_token if found else ""
        found.append(await call(request_type(page_size=size, page_token=token)))
    return found


async def partitions_listed(served: ServedHost, size: int) -> tuple[list[int], list[Any]]:
    """The numbers of all partitions, and the pages that list them."""
    listed = await pages(served.stub.ListPartitions, wire.ListPartitionsRequest, size)
    return [one.topic_partition.partition for page in listed for one in page.partitions], listed


async def test_page_of_huge_operations_ends_early() -> None:
    async with serving() as served:
        batch = wire.RegisterBatch(columns=columns_of(range(1, 26), 1_000))
        await served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))
        listed = await pages(served.stub.ListOperations, wire.ListOperationsRequest, 25)
    assert max(sum(len(one.partitions) for one in page.operations) for page in listed) <= 12_000
    assert [one.operation_id for page in listed for one in page.operations] == list(range(1, 26))


async def test_page_of_partitions_ends_by_its_bytes() -> None:
    async with serving() as served:
        replicas = event_pb2.InSyncReplicas(replica_ids=range(1, 901), leader_id=1)
        await served.advance(
            *(event_pb2.Event(topic_partition=name, in_sync_replicas=replicas) for name in partitions(20))
        )
        found, listed = await partitions_listed(served, 1_000)
    assert found == list(range(20))
    assert len(listed) > 1
    assert max(page.ByteSize() for page in listed) < 2 * sizes.PAGE_BYTES_MAX


async def test_many_names_are_listed_in_order_while_some_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LISTED_NAMES_PER_SLICE", 10)
    async with serving() as served:
        for place in random.Random(3).sample(range(55), 55):
            await served.high_watermark("orders", 1, place)
        for count in (55, 56):
            assert (await partitions_listed(served, 7))[0] == list(range(count))
            await served.high_watermark("orders", 1, count)


# The watchdog.


def test_call_that_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Stalls of over 10 ms are counted by call. One of over 20 ms is logged, and further ones only now and then.

    Time in which another process had the processor is not part of a stall.
    """
    used_ns, others_ns = [0], [0]
    holds = LoopStalls(lambda: used_ns[0], lambda: used_ns[0] + others_ns[0])
    for call, ms, others_ms in (
        ("Register", 9, 0),
        ("Register", 11, 90),
        ("Cancel", 25, 0),
        ("Cancel", 40, 9),
        ("Wait", 8, 50),
    ):
        with holds.of(call):
            used_ns[0] += ms * 1_000_000
            others_ns[0] += others_ms * 1_000_000
    assert {one.call: (one.holds, one.longest_ns // 1_000_000) for one in holds if one.holds} == {
        "Register": (1, 11), "Cancel": (2, 40),
    }  # fmt: skip
    assert [record.message for record in caplog.records] == [
        "Cancel held the event loop for 25 ms (1 stalls since this was last logged)"
    ]
