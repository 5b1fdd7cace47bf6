"""The engine as a whole: owners, batches, refusals, unknown partitions, expiry, cancelling, shutting down, looking."""

import pytest

from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from tests.engine import plain
from tests.engine.world import World, parse


def produce_operation(
    operation_id: int, name: str = "orders-0", offset: int = 5, timeout_ms: int = 100
) -> plain.Operation:
    """A produce wait as plain data."""
    return plain.Operation(plain.PRODUCE, operation_id, timeout_ms, (plain.Item(parse(name), offset),))


# Unknown partitions.


def test_unknown_partition_is_made_on_first_mention() -> None:
    """A wait may come before its partition; marks are unknown until somebody says them."""
    world = World()
    world.produce({"orders-0": 5})
    marks = world.marks("orders-0")
    assert (marks.epoch, marks.is_leader, marks.log_start, marks.high_watermark, marks.log_end) == (-1, True, 0, -1, -1)
    assert world.high_watermark("orders-0", 5).ended == 1


def test_mentioned_partition_goes_with_its_last_wait() -> None:
    """A partition of which no event ever spoke leaves nothing behind."""
    world = World()
    world.produce({"orders-0": 5}, timeout_ms=10)
    world.produce({"orders-0": 5}, timeout_ms=20)
    world.wait(10)
    assert world.engine.partition_names() == [("orders", 0)]
    world.wait(10)
    assert world.engine.partition_names() == []
    assert world.engine.partition_count == 0


def test_strict_engine_knows_only_what_it_was_told() -> None:
    """A wait for an unknown partition ends at once with 3, an event is refused; an append makes it known."""
    world = World(strict=True)
    handle = world.produce({"orders-0": 5})
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [3])
    assert world.errors(world.fetch({"orders-0": 5})) == [3]
    assert world.errors(world.delete_records({"orders-0": 5})) == [3]
    assert world.high_watermark("orders-0", 5).refused == (5, 3)
    assert world.engine.partition_names() == []
    world.append("orders-0", 5)
    world.lead("orders-1", 3)
    assert world.high_watermark("orders-0", 5).refused is None
    assert world.engine.partition_names() == [("orders", 0), ("orders", 1)]


def test_removed_partition_is_new_when_it_comes_back() -> None:
    """Nothing of the old one is left in the new one."""
    world = World()
    world.high_watermark("orders-0", 50, epoch=7)
    world.remove("orders-0")
    handle = world.produce({"orders-0": 50})
    assert world.outcome(handle) == "pending"
    assert world.marks("orders-0").epoch == -1


# Batches.


def test_bad_item_of_a_batch_leaves_the_rest_served() -> None:
    """Each refused item says where and why; the others are registered."""
    world = World()
    good = produce_operation(1)
    past = produce_operation(2, timeout_ms=-1)
    negative = produce_operation(3, offset=-1)
    twice = plain.Operation(plain.PRODUCE, 4, 100, (plain.Item(("orders", 0), 1), plain.Item(("orders", 0), 2)))
    none = plain.Operation(plain.PRODUCE, 5, 100, ())
    last = produce_operation(6)
    batch = [good, past, negative, twice, none, last]
    receipt = world.under_test.register(world.owner_id, batch, 0)
    assert receipt.accepted == 2
    assert [(refusal.index, refusal.code) for refusal in receipt.refusals] == [(1, 3), (2, 3), (3, 3), (4, 3)]
    assert all(refusal.field and refusal.message for refusal in receipt.refusals)
    assert world.engine.pending == 2


def test_unreadable_batch_applies_nothing() -> None:
    """Columns that disagree are refused as a whole."""
    world = World()
    owner = world.under_test.owners[world.owner_id]
    with pytest.raises(InvalidBatch) as refused:
        world.engine.register(owner, plain.PRODUCE, OperationBatch([1, 2, 3], offsets=[5, 6]), 0)
    assert refused.value.field
    with pytest.raises(InvalidBatch):
        world.engine.register(owner, plain.PRODUCE, OperationBatch([]), 0)
    with pytest.raises(InvalidBatch):
        world.engine.apply(EventBatch([3, 3, 3], partitions=[("orders", 0)], offsets=[1, 2]), 0)
    assert (world.engine.pending, owner.highest_operation_id, world.engine.partition_count) == (0, 0, 0)


def test_index_outside_the_dictionary_is_refused() -> None:
    """Per item: the rest of the batch is served."""
    world = World()
    owner = world.under_test.owners[world.owner_id]
    batch = OperationBatch([1, 2], partitions=[("orders", 0)], item_indexes=[7, 0], offsets=[5])
    receipt = world.engine.register(owner, plain.PRODUCE, batch, 0)
    assert [(refusal.index, refusal.code) for refusal in receipt.refusals] == [(0, 3)]
    assert receipt.accepted == 1


def test_sent_again_is_harmless() -> None:
    """What was registered once is known for ever, ended or not."""
    world = World()
    operations = [produce_operation(1), produce_operation(2, offset=50)]
    world.under_test.register(world.owner_id, operations, 0)
    world.high_watermark("orders-0", 5)
    receipt = world.under_test.register(world.owner_id, operations, 0)
    assert (receipt.accepted, receipt.already_known, receipt.highest_operation_id) == (0, 2, 2)
    world.collect()
    assert world.engine.pending == 1
    assert world.engine.counts(plain.PRODUCE).registered == 2


def test_events_are_applied_in_slices() -> None:
    """A slice ends when events and ended operations come to its limit; the rest goes on from there."""
    world = World()
    for name in ("orders-0", "orders-1", "orders-2"):
        world.produce({name: 5})
        world.produce({name: 5})
    batch = EventBatch(
        [plain.HIGH_WATERMARK] * 3,
        partitions=[("orders", 0), ("orders", 1), ("orders", 2)],
        item_indexes=[0, 1, 2],
        offsets=[5],
    )
    first = world.engine.apply(batch, 0, 0, 6)
    assert (first.next_index, list(first.ended)) == (2, [2, 2])
    second = world.engine.apply(batch, 0, first.next_index, 6)
    assert (second.next_index, list(second.ended)) == (3, [2])


def test_limits_refuse_with_resource_exhausted() -> None:
    """What is over a limit is refused; what was admitted stays."""
    limits = EngineLimits(pending_operations_max=2, partitions_max=3, items_per_operation_max=2)
    world = World(limits=limits)
    kept = [world.produce({"orders-0": 5}), world.produce({"orders-0": 5})]
    receipt = world.under_test.register(world.owner_id, [produce_operation(10)], 0)
    assert [refusal.code for refusal in receipt.refusals] == [8]
    items = tuple(plain.Item(("orders", i), 5) for i in range(3))
    receipt = world.under_test.register(world.owner_id, [plain.Operation(plain.PRODUCE, 11, 100, items)], 0)
    assert len(receipt.refusals) == 1
    assert [world.outcome(handle) for handle in kept] == ["pending", "pending"]
    world.append("orders-1", 1)
    world.append("orders-2", 1)
    assert world.append("orders-3", 1).refused == (8, 0)


# Time.


@pytest.mark.parametrize("tick_ms", [1, 3, 20])
@pytest.mark.parametrize("timeout_ms", [1, 19, 20, 21, 399, 400, 401, 7_999, 8_000, 8_001, 160_000])
def test_expiry_is_never_early_and_on_its_tick(tick_ms: int, timeout_ms: int) -> None:
    """The deadline is rounded up to a tick; one before it nothing happens, at it the wait ends."""
    world = World(tick_ms=tick_ms)
    handle = world.produce({"orders-0": 5}, timeout_ms=timeout_ms)
    deadline_ms = -(-timeout_ms // tick_ms) * tick_ms
    assert world.wait(deadline_ms - 1) == 0
    assert 0 <= world.engine.next_expiration_ms() <= deadline_ms
    assert world.wait(1) == 1
    result = world.result(handle)
    assert (result.waited_ms, result.lateness_ms) == (deadline_ms, 0)
    world.assert_empty()


def test_late_reaper_tells_how_late() -> None:
    """Lateness counts from the deadline."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=100)
    world.wait(130)
    assert (world.result(handle).waited_ms, world.result(handle).lateness_ms) == (130, 30)


def test_herd_expires_in_slices() -> None:
    """A thousand due at once come in bounded pieces, none twice."""
    world = World()
    for _ in range(1_000):
        world.produce({"orders-0": 5}, timeout_ms=100)
    assert world.engine.advance_clock(100, 300) == 300
    assert world.engine.next_expiration_ms() <= 100
    world.collect()
    assert world.engine.pending == 700
    assert world.wait(100, limit=300) == 700
    world.assert_empty()


def test_event_wins_over_an_expiry_that_has_not_run() -> None:
    """Whoever comes first decides, also after the deadline."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=100)
    world.now_ms = 150
    world.high_watermark("orders-0", 5)
    assert world.outcome(handle) == "satisfied"
    assert world.wait(0) == 0


# Cancelling, owners, shutting down.


def test_cancel_says_which_were_pending() -> None:
    """True for those that it ended; they are answered as cancelled with what they had come to."""
    world = World()
    done = world.produce({"orders-0": 1})
    world.high_watermark("orders-0", 1)
    handle = world.produce({"orders-0": 1, "orders-1": 5})
    answers = world.under_test.cancel(world.owner_id, [done, handle, 99, handle], 0)
    world.collect()
    assert answers == [False, True, False, False]
    assert (world.outcome(handle), world.errors(handle)) == ("cancelled", [0, 7])
    world.assert_empty()


def test_cancel_partition_answers_all_on_it() -> None:
    """Whoever waits on it, of whatever kind, is answered; nobody else."""
    world = World()
    on = [
        world.produce({"orders-0": 5}),
        world.fetch({"orders-0": 0, "orders-1": 0}),
        world.delete_records({"orders-0": 5}),
    ]
    off = world.produce({"orders-1": 5})
    assert world.engine.cancel_partition(("orders", 0), 0) == 3
    world.collect()
    assert [world.outcome(handle) for handle in on] == ["cancelled"] * 3
    assert world.outcome(off) == "pending"


def test_removed_owner_takes_its_waits_along() -> None:
    """They are counted as cancelled; their ends are nobody's; the owner's id may be used again."""
    world = World()
    other = world.under_test.add_owner()
    world.under_test.register(other, [produce_operation(1), produce_operation(2)], 0)
    mine = world.produce({"orders-0": 5})
    world.under_test.remove_owner(other, 0)
    world.collect()
    assert world.engine.pending == 1
    assert world.engine.counts(plain.PRODUCE).cancelled == 2
    assert world.order == []
    world.high_watermark("orders-0", 5)
    assert world.order == [mine]
    again = world.under_test.add_owner()
    assert world.under_test.owners[again].highest_operation_id == 0


def test_shutdown_ends_everything_with_its_own_outcome() -> None:
    """In bounded pieces, until none is left."""
    world = World()
    handles = [world.produce({"orders-0": 5}), world.fetch({"orders-0": 0}), world.wait_signal({"a": 1})]
    assert world.engine.shut_down(0, 2) == 2
    assert world.engine.shut_down(0, 2) == 1
    assert world.engine.shut_down(0, 2) == 0
    world.collect()
    assert [world.outcome(handle) for handle in handles] == ["shutting down"] * 3
    world.assert_empty()


# Looking.


def test_describe_and_list_show_what_is_pending() -> None:
    """What it waits for, since when, until when, and how far it is."""
    world = World(now_ms=50)
    world.high_watermark("orders-1", 9)
    handle = world.produce({"orders-0": 5, "orders-1": 7}, timeout_ms=100)
    fetch = world.fetch({"orders-0": 0}, min_bytes=33)
    owner = world.under_test.owners[world.owner_id]
    view = world.engine.describe(owner, handle, 60)
    assert view is not None
    assert (view.operation_id, view.kind, view.registered_ms, view.deadline_ms) == (handle, plain.PRODUCE, 50, 150)
    assert view.min_bytes == -1
    seen = [(item.name, item.error_code, item.required_offset, item.reached_offset) for item in view.items]
    assert seen == [(("orders", 0), 7, 5, -1), (("orders", 1), 0, 7, 9)]
    listed, after = world.engine.list_pending(0, 100, 60)
    assert {view.operation_id for view in listed} == {handle, fetch}
    assert after == -1
    (only,), _ = world.engine.list_pending(0, 100, 60, kind=plain.FETCH)
    assert (only.operation_id, only.min_bytes) == (fetch, 33)
    (only,), _ = world.engine.list_pending(0, 100, 60, partition=("orders", 1))
    assert only.operation_id == handle
    assert world.engine.describe(owner, 99, 60) is None


def test_list_pages_through_many() -> None:
    """Every pending operation is on exactly one page."""
    world = World()
    handles = [world.produce({"orders-0": 5}) for _ in range(250)]
    for handle in handles[::3]:
        world.under_test.cancel(world.owner_id, [handle], 0)
    world.collect()
    seen = [view.operation_id for view in world.under_test.all_pending(0)]
    assert sorted(seen) == [handle for i, handle in enumerate(handles) if i % 3]
