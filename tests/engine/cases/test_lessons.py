"""Bugs of other projects (docs/lessons.md) as tests of the engine: wakeups, stalls, lowered marks."""

from collections.abc import Callable

import pytest

from tests.engine import plain
from tests.engine.world import World


def test_a_trigger_is_enough() -> None:
    """After the last event, no wait is pending whose condition holds, whatever caused the event."""
    world = World()
    world.in_sync("orders-0", 1, 2, min_in_sync=2)
    world.append("orders-0", 10)
    world.in_sync("orders-0", 1)
    world.follower("orders-0", 2, 10)
    produce = world.produce({"orders-0": 10})
    assert world.outcome(produce) == "pending"
    world.in_sync("orders-0", min_in_sync=1)
    assert world.outcome(produce) == "satisfied"


def test_two_thousand_keys_cost_two_evaluations() -> None:
    """Registration evaluates an operation at most twice, however many partitions it has."""
    world = World()
    world.produce({f"orders-{i}": 5 for i in range(2_000)})
    assert world.engine.inspection.counts(plain.PRODUCE).evaluations <= 2


def test_an_error_of_the_caller_is_kept_when_marks_are_stale() -> None:
    """Code 7 that the caller gave stays 7, although its partition is stale too; what is still waited for gets 1001."""
    world = World()
    world.now_ms = 0
    items = [plain.Item(("orders", 0), 5, local_error=7), plain.Item(("orders", 1), 5), plain.Item(("orders", 2), 5)]
    handle = world.register(plain.PRODUCE, items, 1_000, stale_timeout_ms=50)
    world.wait(50)
    assert world.pair.fail_stale({("orders", 0): 60, ("orders", 1): 60}) == 1
    world.collect()
    assert world.errors(handle) == [7, 1001, 7]


def test_confirmed_shrink_ends_waits() -> None:
    """Case 50: a leaving replica counts until the commit, which alone, without an append, ends waits of every kind."""
    world = World(lag_max_ms=100)
    world.in_sync("orders-0", 1, 2)
    world.append("orders-0", 5)
    world.follower("orders-0", 2, 5)
    world.append("orders-0", 10)
    world.now_ms = 200
    handles = [world.produce({"orders-0": 10}), world.fetch({"orders-0": 5})]
    assert world.in_sync("orders-0", proposed=(1,)).ended == 0
    assert world.marks("orders-0").high_watermark == 5
    assert world.in_sync("orders-0", 1).ended == 2
    assert world.marks("orders-0").high_watermark == 10
    assert [world.outcome(handle) for handle in handles] == ["satisfied"] * 2


LOSSES: dict[str, tuple[Callable[[World], plain.EventAnswer], int]] = {
    "cases 62 and 90: leadership is lost": (lambda world: world.follow("orders-0", 1), 6),
    "cases 63 and 91: moved elsewhere": (lambda world: world.remove("orders-0", moved=True), 6),
    "cases 63 and 91: deleted": (lambda world: world.remove("orders-0"), 3),
    "case 64: storage fails": (lambda world: world.storage_failed("orders-0"), 56),
}


@pytest.mark.parametrize(("lose", "code"), LOSSES.values(), ids=LOSSES)
def test_lost_partition_ends_every_kind_at_once(lose: Callable[[World], plain.EventAnswer], code: int) -> None:
    """No wait lasts until its timeout, each reports its error, and no list keeps an entry."""
    world = World()
    world.high_watermark("orders-0", 10)
    world.follower("orders-0", 2, 10, log_start=0)
    handles = [world.produce({"orders-0": 20}), world.fetch({"orders-0": 10}), world.delete_records({"orders-0": 5})]
    assert lose(world).ended == 3
    assert [(world.outcome(handle), world.errors(handle)) for handle in handles] == [("failed", [code])] * 3
    assert [world.item(handle).reached for handle in handles] == [10, -1, -1]
    world.assert_empty()


@pytest.mark.parametrize("ends", ["satisfied", "failed"])
def test_a_thousand_waits_end_and_leave_nothing(ends: str) -> None:
    """All waits end with the event, satisfied or failed; no list keeps an entry and no timer outlives its wait."""
    world = World()
    handles = world.produce_many(1_000, timeout_ms=15_000)
    assert world.engine.next_expiration_ms() >= 0
    answer = world.high_watermark("orders-0", 5) if ends == "satisfied" else world.follow("orders-0", 1)
    assert answer.ended == 1_000
    assert {world.outcome(handle) for handle in handles} == {ends}
    world.assert_empty()


@pytest.mark.parametrize("late_ms", [0, 50])
@pytest.mark.parametrize("winner", ["satisfied", "expired"])
def test_event_and_expiry_in_one_tick_give_one_outcome(winner: str, late_ms: int) -> None:
    """Whichever call is first wins, even if the reaper is late; the other finds nothing to end."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=10)
    world.now_ms = 10 + late_ms
    calls: list[Callable[[], int]] = [lambda: world.high_watermark("orders-0", 5).ended, lambda: world.wait(0)]
    assert [call() for call in (calls if winner == "satisfied" else reversed(calls))] == [1, 0]
    assert world.outcome(handle) == winner
    world.assert_empty()


def test_marks_do_not_go_back() -> None:
    """A lower mark (such as a late checkpoint) counts as unchanged and an older epoch is refused: neither is applied. A
    newer epoch is taken over.
    """
    world = World()
    world.high_watermark("orders-0", 10, epoch=5)
    assert world.high_watermark("orders-0", 7, epoch=5).unchanged
    assert world.high_watermark("orders-0", 10).unchanged
    assert world.high_watermark("orders-0", 0).unchanged
    assert world.high_watermark("orders-0", 20, epoch=4).refused == (9, 74)
    marks = world.marks("orders-0")
    assert (marks.epoch, marks.high_watermark, marks.unchanged, marks.stale) == (5, 10, 3, 1)
    assert world.outcome(world.produce({"orders-0": 10})) == "satisfied"
    world.append("orders-0", 20, epoch=6)
    assert world.marks("orders-0").epoch == 6


def test_bytes_and_offsets_are_of_one_moment() -> None:
    """The bytes are those between two offsets of one segment, whenever their positions were reported."""
    world = World()
    world.append("orders-0", 10, position=1_000, segment=0)
    world.append("orders-0", 10, position=0, segment=10)
    world.high_watermark("orders-0", 10)
    handle = world.fetch({"orders-0": 10}, min_bytes=50)
    world.append("orders-0", 11, position=40, segment=10)
    world.high_watermark("orders-0", 11)
    assert world.outcome(handle) == "pending"
    world.append("orders-0", 12, position=60, segment=10)
    assert world.high_watermark("orders-0", 12).ended == 1
    assert world.item(handle).available_bytes == 60


def test_marks_below_the_log_start_break_nothing() -> None:
    """Unknown high watermark, full truncation, log start above everything: waits end, and the engine survives."""
    world = World()
    world.log_start("orders-0", 100)
    assert world.marks("orders-0").high_watermark == 100
    assert world.errors(world.fetch({"orders-0": 50})) == [1]
    waiting = world.fetch({"orders-0": 100})
    world.truncate("orders-0", 0)
    assert world.errors(waiting) == [1]
    marks = world.marks("orders-0")
    assert (marks.log_start, marks.high_watermark, marks.log_end) == (0, 0, 0)
    assert world.outcome(world.fetch({"orders-0": 0})) == "pending"


def test_new_epoch_fences_waits_of_the_old() -> None:
    """A wait under epoch 5 is not satisfied under epoch 6, not even by an event that also reaches its mark."""
    world = World()
    world.lead("orders-0", 5)
    handle = world.produce({"orders-0": 5}, epoch=5)
    assert world.high_watermark("orders-0", 5, epoch=6).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [74])


def test_truncation_cuts_the_index() -> None:
    """Positions above a truncation are dropped; new ones are used."""
    world = World()
    for offset in (0, 10, 20):
        world.append("orders-0", offset, position=100 * offset)
    world.truncate("orders-0", 10)
    world.append("orders-0", 20, position=1_100)
    world.high_watermark("orders-0", 20)
    handle = world.fetch({"orders-0": 10}, min_bytes=1)
    assert world.item(handle).available_bytes == 100


def test_a_change_of_leader_does_not_give_time_anew() -> None:
    """New epochs, truncation and recovered storage do not change deadlines."""
    world = World()
    world.lead("orders-0", 1)
    handle = world.produce({"orders-0": 5, "orders-1": 5}, timeout_ms=100)
    for epoch in range(2, 12):
        world.wait(9)
        world.lead("orders-0", epoch)
        world.truncate("orders-0", 0)
    assert world.wait(9) == 0
    assert world.wait(1) == 1
    assert world.result(handle).waited_ms == 100


def test_stalled_reaper_finds_all_in_order() -> None:
    """After a stall of 5 s, all due operations end in one pass, earliest deadline first; each reports its lateness."""
    world = World()
    timeouts = [4_999, 3, 700, 21, 5_000, 420, 20, 400, 1, 19]
    handles = {world.produce({"orders-0": 5}, timeout_ms=timeout_ms): timeout_ms for timeout_ms in timeouts}
    later = world.produce({"orders-0": 5}, timeout_ms=5_001)
    assert world.wait(5_000) == len(timeouts)
    assert [handles[handle] for handle in world.order] == sorted(timeouts)
    assert [world.result(handle).lateness_ms for handle in handles] == [5_000 - timeout_ms for timeout_ms in timeouts]
    assert world.outcome(later) == "pending"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_one_of_many_leaves_without_a_scan(end: str) -> None:
    """20,000 waits on one key are cancelled one by one from the middle, or expire together, without any evaluation."""
    world = World(wheel_size=128)  # on this wheel they need not cascade, which would take several calls
    handles = world.produce_many(20_000, timeout_ms=100)
    evaluations = world.engine.inspection.counts(plain.PRODUCE).evaluations
    if end == "cancel":
        assert all(world.cancel(*handles[10_000:], *handles[:10_000]))
    else:
        assert world.wait(100) == 20_000
    assert world.engine.inspection.counts(plain.PRODUCE).evaluations == evaluations
    world.assert_empty()


def test_only_passed_thresholds_are_woken() -> None:
    """With 500 waits and marks that rise one by one, each operation that ends is evaluated once, and no others."""
    world = World()
    for offset in range(1, 501):
        world.produce({"orders-0": offset})
    before = world.engine.inspection.counts(plain.PRODUCE).evaluations
    for offset in range(1, 501):
        assert world.high_watermark("orders-0", offset).ended == 1
    assert world.engine.inspection.counts(plain.PRODUCE).evaluations - before <= 1_000


def test_fetch_is_not_woken_by_every_append() -> None:
    """10,000 appends towards min_bytes evaluate the fetch a few times, not 10,000 times."""
    world = World()
    world.append("orders-0", 0)
    handle = world.fetch({"orders-0": 0}, replica_id=2, min_bytes=10_000)
    before = world.engine.inspection.counts(plain.FETCH).evaluations
    world.pair.apply([plain.Event(plain.LEADER_APPEND, ("orders", 0), offset) for offset in range(1, 10_001)])
    world.collect()
    assert world.outcome(handle) == "satisfied"
    assert world.engine.inspection.counts(plain.FETCH).evaluations - before <= 40


def test_waits_on_other_keys_are_left_alone() -> None:
    """One event for the 1,000 waits on its key evaluates no others."""
    world = World()
    world.produce_many(1_000, "orders-0")
    world.produce_many(1_000, "orders-1")
    before = world.engine.inspection.counts(plain.PRODUCE).evaluations
    assert world.high_watermark("orders-0", 5).ended == 1_000
    assert world.engine.inspection.counts(plain.PRODUCE).evaluations - before <= 1_000
    assert world.engine.pending == 1_000
