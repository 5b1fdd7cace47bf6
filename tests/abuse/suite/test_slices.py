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
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.service.translate import batch_limits, results
from purgatory.service.translate.events import event_parts
from purgatory.service.translate.operations import registration_parts
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.messages import advance_request, high_watermark
from tests.kit.served_host import ServedHost, serving

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
        if self._items:
            self.ended_items.append(self._items)
        self._items = 0


LIMITS: Final = LimitsSettings()


class Held:
    """A host and one session in it, without a network."""

    def __init__(self, limits: LimitsSettings = LIMITS) -> None:
        self.clock = ManualClock()
        self.listener = CountingListener()
        self.engine = Engine(EngineLimits(), self.clock.now_ms())
        self.host = Host(self.engine, self.clock, HostSettings(limits=limits), self.listener)
        self.session = self.host.sessions.open("s", 0)[0]
        self.call = Call(cast(Context, None), self.session.account)

    async def register(self, columns: operation_pb2.OperationColumns) -> wire.Receipt:
        return await session_requests.register(self.host, self.session, wire.RegisterBatch(columns=columns))

    async def fill(self, count: int, items: int) -> None:
        receipt = await self.register(columns_of(range(1, count + 1), items))
        assert receipt.accepted == count


def columns_of(ids: range, items: int, offset: int = 9) -> operation_pb2.OperationColumns:
    """Operations that all name the same partitions."""
    return operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=[operation_pb2.TopicPartition(topic="orders", partition=place) for place in range(items)],
        operation_id=ids,
        item_count=[items],
        item_index=list(range(items)) * len(ids),
        offset=[offset],
        timeout_ms=[60_000],
    )


async def turns_of(work: Coroutine[Any, Any, T]) -> tuple[int, T]:
    """Number of loop iterations that run while the work is done, and its result."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, task.result()


# Registrations.


async def test_a_large_batch_is_registered_in_parts() -> None:
    held = Held()
    turns, receipt = await turns_of(held.register(columns_of(range(1, 11), ITEMS)))
    assert (receipt.accepted, receipt.highest_operation_id) == (10, 10)
    assert held.listener.registered_rows == [4, 4, 2]
    assert turns >= 3


async def test_what_is_decided_already_goes_in_parts_too() -> None:
    """Operations that end as they are registered: each call ends at most `VALUES_PER_PART` items."""
    held = Held()
    events = [high_watermark("orders", 100, partition=place) for place in range(ITEMS)]
    await advance(held.host, advance_request(*events), held.call)
    await held.register(columns_of(range(1, 21), ITEMS))
    assert sum(held.listener.ended_items) == 20 * ITEMS
    assert max(held.listener.ended_items) <= sizes.VALUES_PER_PART


def test_a_part_has_the_names_that_it_uses() -> None:
    """A long dictionary is not copied: each part has only the names that it uses, and the same meaning."""
    draw = random.Random(1)
    places = [draw.randrange(5_000) for _ in range(5_000)]
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=[operation_pb2.TopicPartition(topic="orders", partition=place) for place in range(5_000)],
        operation_id=range(1, 5_001),
        item_index=places,
        offset=range(5_000),
    )
    found: list[tuple[int, int, int]] = []
    for part in registration_parts(wire.RegisterBatch(columns=columns), 30_000):
        [run] = part.runs
        assert len(run.batch.partitions) <= len(run.batch.operation_ids) <= sizes.VALUES_PER_PART
        found += zip(
            run.batch.operation_ids,
            [run.batch.partitions[place][1] for place in run.batch.item_indexes],
            run.batch.offsets,
            strict=True,
        )
    assert found == list(zip(range(1, 5_001), places, range(5_000), strict=True))


def test_dictionary_above_the_limit_refuses_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit it is accepted."""
    monkeypatch.setattr(batch_limits, "ITEMS_MAX", 10)
    columns = columns_of(range(1, 2), 10)
    assert next(registration_parts(wire.RegisterBatch(columns=columns), 30_000)).is_last
    columns.partitions.add(topic="another")
    with pytest.raises(BatchRejected, match="has 11 values; at most 10 are allowed in one batch"):
        registration_parts(wire.RegisterBatch(columns=columns), 30_000)


async def test_a_short_column_refuses_all_parts() -> None:
    held = Held()
    columns = columns_of(range(1, 21), ITEMS)
    columns.offset.extend([1, 2])
    with pytest.raises(BatchRejected, match=r"has 3 values; it takes 10000"):
        await held.register(columns)
    assert held.engine.pending == 0
    assert held.session.owner.highest_operation_id == 0


async def test_ids_that_do_not_rise_from_part_to_part_are_refused_once() -> None:
    """An id of an earlier part is refused without a result; an id that was skipped is refused with a result."""
    held = Held()
    ids = [
        *range(1, sizes.VALUES_PER_PART),
        sizes.VALUES_PER_PART + 5,
        7,
        sizes.VALUES_PER_PART + 3,
        sizes.VALUES_PER_PART + 9,
    ]
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=[operation_pb2.TopicPartition(topic="orders")],
        operation_id=ids,
        offset=[9],
    )
    receipt = await held.register(columns)
    assert held.listener.registered_rows == [sizes.VALUES_PER_PART, 3]
    assert (receipt.accepted, receipt.already_known) == (sizes.VALUES_PER_PART + 1, 0)
    assert [refusal.operation_id for refusal in receipt.refusals] == [7, sizes.VALUES_PER_PART + 3]
    assert [refusal.index for refusal in receipt.refusals] == [sizes.VALUES_PER_PART, sizes.VALUES_PER_PART + 1]
    _, slices = held.session.outbox.take(10)
    assert [list(part.completions.operation_ids) for part in slices] == [[sizes.VALUES_PER_PART + 3]]


async def test_two_batches_of_a_session_do_not_mix() -> None:
    """The second batch waits for its turn: otherwise the ids of the first one's later parts would not increase."""
    held = Held()
    batches = [columns_of(range(1, 11), ITEMS), columns_of(range(11, 21), ITEMS), columns_of(range(21, 22), 1)]
    receipts = await asyncio.gather(*map(held.register, batches))
    assert [receipt.accepted for receipt in receipts] == [10, 10, 1]


async def test_a_batch_whose_caller_goes_leaves_the_turn_to_the_next() -> None:
    """The registered part is kept; when the same batch is sent again, this part is already known."""
    held = Held()
    first = asyncio.create_task(held.register(columns_of(range(1, 11), ITEMS)))
    waiting = asyncio.create_task(held.register(columns_of(range(90, 92), ITEMS)))
    for _ in range(2):
        await asyncio.sleep(0)
    waiting.cancel()
    first.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    registered = sum(held.listener.registered_rows)
    assert 0 < registered < 10
    receipt = await held.register(columns_of(range(1, 11), ITEMS))
    assert (receipt.already_known, receipt.accepted) == (registered, 10 - registered)


async def test_a_drain_refuses_the_parts_that_are_left() -> None:
    """They end as refused results, so that each operation has a result."""
    held = Held()
    task = asyncio.create_task(held.register(columns_of(range(1, 11), ITEMS)))
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
        columns = operation_pb2.OperationColumns(
            kind=operation_pb2.OPERATION_KIND_PRODUCE,
            partitions=[operation_pb2.TopicPartition(topic="orders")],
            operation_id=range(1, 20_001),
            offset=[9],
        )
        kinds = await answers_until(served, columns, 20_000)
    assert kinds[:2] == ["opened", "receipt"]
    assert set(kinds[2:]) == {"results"}


async def answers_until(served: ServedHost, columns: operation_pb2.OperationColumns, results: int) -> list[str]:
    call = served.stub.Session()
    await call.write(wire.SessionRequest(open=wire.OpenSession(session_id="s", columns=True)))
    await call.write(wire.SessionRequest(register=wire.RegisterBatch(columns=columns)))
    kinds: list[str] = []
    while results:
        answer = await call.read()
        kinds.append(answer.WhichOneof("message") or "")
        results -= len(answer.results.columns.operation_id)
    call.cancel()
    return kinds


# Events.


async def test_events_of_many_replicas_go_in_slices() -> None:
    """The size of a slice depends on the cost of the replica sets, not on their number. Too many ids are refused before
    they are copied.
    """
    held = Held()
    ids = list(range(1, 901))
    one = event_pb2.Event(
        topic_partition=operation_pb2.TopicPartition(topic="orders"),
        in_sync_replicas=event_pb2.InSyncReplicas(replica_ids=ids, leader_id=1),
    )
    long = event_pb2.Event(
        topic_partition=operation_pb2.TopicPartition(topic="orders"),
        in_sync_replicas=event_pb2.InSyncReplicas(proposed_replica_ids=[1] * 1_001, leader_id=1),
    )
    request = advance_request(*[one] * 40, long)
    assert max(len(part) for part in event_parts(request)) <= 6
    turns, receipt = await turns_of(advance(held.host, request, held.call))
    assert turns >= 7
    assert len(receipt.ended) == 41
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [
        (40, "in_sync_replicas.proposed_replica_ids")
    ]


def test_parts_of_events_mean_what_the_batch_says() -> None:
    """Two long dictionaries and events of both kinds: each part uses the right names."""
    draw = random.Random(2)
    types = [draw.choice([codes.HIGH_WATERMARK, codes.KEY_SIGNALLED]) for _ in range(7_000)]
    places = [draw.randrange(3_000) for _ in types]
    columns = event_pb2.EventColumns(
        partitions=[operation_pb2.TopicPartition(topic="orders", partition=place) for place in range(3_000)],
        keys=[f"key-{place}" for place in range(3_000)],
        type=types,
        item_index=places,
        offset=range(7_000),
    )
    expected = [
        (f"key-{place}" if kind == codes.KEY_SIGNALLED else ("orders", place), offset)
        for kind, place, offset in zip(types, places, range(7_000), strict=True)
    ]
    found: list[object] = []
    for part in event_parts(wire.AdvanceRequest(columns=columns)):
        batch = part.batch
        assert part.first == len(found)
        for kind, place, offset in zip(batch.types, batch.item_indexes, batch.offsets, strict=True):
            names = batch.keys if kind == codes.KEY_SIGNALLED else batch.partitions
            found.append((names[place], offset))
    assert found == expected


# Ends.


@pytest.mark.parametrize("how", ["ids", "session", "partition", "close", "expiry"])
async def test_the_end_of_large_operations_goes_in_slices(how: str) -> None:
    """Sixty operations of 500 items, whatever ends them: each call ends a bounded number, and no result is lost."""
    held = Held()
    await held.fill(60, ITEMS)
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
        assert held.host.sessions.find("s") is None
    else:
        held.clock.jump(60_001)
        held.host.reaper.turn()
    while held.engine.pending:
        held.host.reaper.turn()
        await asyncio.sleep(0)
    assert sum(held.listener.ended_items) == 60 * ITEMS
    # Expired operations are taken out of the wheel sixteen at a time.
    assert max(held.listener.ended_items) <= sizes.WORK_PER_SLICE + (16 * ITEMS if how == "expiry" else ITEMS)
    if how in {"session", "partition", "close"}:
        assert held.listener.cancelled_ids == list(range(1, 61))


async def test_a_session_may_be_opened_again_while_its_operations_end() -> None:
    held = Held()
    await held.fill(60, ITEMS)
    held.host.close_session(held.session)
    again, resumed = held.host.sessions.open("s", 0)
    assert not resumed
    assert not again.owner.pending
    while held.engine.pending:
        held.host.reaper.turn()
        await asyncio.sleep(0)
    assert again.outbox.last_sequence == 0


# Results.


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("name_length", [6, 249])
async def test_messages_of_results_are_made_once(
    columns: bool, name_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message size depends on items, not on results. A message is encoded again at most once, if names are long."""
    made: list[int] = []
    fill = results.fill_batch

    def counting(batch: wire.ResultBatch, first: int, slices: Any, *, columns: bool) -> None:  # noqa: ANN401 - as it is
        made.append(sum(part.item_stop - part.item_start for part in slices))
        fill(batch, first, slices, columns=columns)

    monkeypatch.setattr(result_stream, "fill_batch", counting)
    held = Held()
    request = columns_of(range(1, 41), ITEMS)
    for name in request.partitions:
        name.topic = "\U0001f600" * name_length
    await held.register(request)
    await held.host.cancel_session(held.session)
    stream = held.host.sessions.attach(
        held.session, wire.SessionResponse, last_sequence=0, columns=columns, expects_heartbeats=False, now_ms=0
    )
    messages = 0
    read = 0
    while read < 40:
        encoded = stream._next_message()
        assert isinstance(encoded, bytes)
        assert len(encoded) <= sizes.MESSAGE_BYTES_MAX
        messages += 1
        batch = wire.SessionResponse.FromString(encoded).results
        read += len(batch.columns.operation_id) + len(batch.rows.results)
    assert len(made) <= 2 * messages
    assert max(made) <= (sizes.COLUMN_RESULTS_MAX if columns else sizes.ROW_RESULTS_MAX)


# Listings.


async def test_a_page_of_partitions_ends_by_its_bytes() -> None:
    async with serving() as served:
        ids = list(range(1, 901))
        events = [
            event_pb2.Event(
                topic_partition=operation_pb2.TopicPartition(topic="orders", partition=place),
                in_sync_replicas=event_pb2.InSyncReplicas(replica_ids=ids, leader_id=1),
            )
            for place in range(20)
        ]
        await served.advance(*events)
        found: list[int] = []
        token = ""
        pages = 0
        while pages == 0 or token:
            page = await served.stub.ListPartitions(wire.ListPartitionsRequest(page_size=1_000, page_token=token))
            assert page.ByteSize() < 2 * sizes.PAGE_BYTES_MAX
            found += [one.topic_partition.partition for one in page.partitions]
            token = page.next_page_token
            pages += 1
    assert found == list(range(20))
    assert pages > 1


async def test_many_names_are_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sorted once for all pages, as long as no partition is added or removed."""
    monkeypatch.setattr(sizes, "LISTED_NAMES_PER_SLICE", 10)
    async with serving() as served:
        for place in draw_order(55):
            await served.high_watermark("orders", 1, place)
        expected = [("orders", place) for place in range(55)]
        for extra in (55, 56):
            found: list[tuple[str, int]] = []
            token = ""
            while not found or token:
                page = await served.stub.ListPartitions(wire.ListPartitionsRequest(page_size=7, page_token=token))
                found += [(one.topic_partition.topic, one.topic_partition.partition) for one in page.partitions]
                token = page.next_page_token
            assert found == expected
            await served.high_watermark("orders", 1, extra)
            expected.append(("orders", extra))


def draw_order(count: int) -> list[int]:
    order = list(range(count))
    random.Random(3).shuffle(order)
    return order


# The watchdog.


def test_the_call_that_holds_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Stalls of over 10 ms are counted by call. One of over 20 ms is logged, and further ones only now and then."""
    now_ns = [0]
    holds = LoopStalls(lambda: now_ns[0])
    for call, ms in (("Register", 9), ("Register", 11), ("Cancel", 25), ("Cancel", 40)):
        with holds.of(call):
            now_ns[0] += ms * 1_000_000
    assert {one.call: (one.holds, one.longest_ns // 1_000_000) for one in holds if one.holds} == {
        "Register": (1, 11), "Cancel": (2, 40),
    }  # fmt: skip
    assert [record.message for record in caplog.records] == [
        "Cancel held the event loop for 25 ms (1 stalls since this was last logged)"
    ]
