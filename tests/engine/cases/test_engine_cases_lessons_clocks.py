"""Bugs that others had (LESSONS 39 to 68: marks that go back, clocks, hot keys), as tests of the engine."""

import pytest

from tests.engine import plain
from tests.engine.world import World, parse


def many_produces(world: World, count: int, name: str = "orders-0", offset: int = 5, timeout_ms: int = 1_000) -> None:
    """Register many equal waits in one batch."""
    operations = [
        plain.Operation(plain.PRODUCE, world.next_id(), timeout_ms, (plain.Item(parse(name), offset),))
        for _ in range(count)
    ]
    assert world.under_test.register(world.owner_id, operations, world.now_ms).accepted == count


def test_lesson_39_marks_do_not_go_back() -> None:
    """A lower mark is counted, an older epoch refused; neither is applied."""
    world = World()
    world.high_watermark("orders-0", 10, epoch=5)
    assert world.high_watermark("orders-0", 7, epoch=5).unchanged
    assert world.high_watermark("orders-0", 20, epoch=4).refused == (9, 74)
    marks = world.marks("orders-0")
    assert (marks.high_watermark, marks.unchanged, marks.stale) == (10, 1, 1)


def test_lesson_40_bytes_and_offsets_are_of_one_moment() -> None:
    """Bytes are those between two offsets of one segment, whenever their positions were told."""
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


def test_lesson_40_roll_under_a_waiting_fetch_counts_no_bytes() -> None:
    """What comes after a roll is in another segment: the fetch is answered, not summed up across segments."""
    world = World()
    world.append("orders-0", 10, position=1_000, segment=0)
    world.high_watermark("orders-0", 10)
    handle = world.fetch({"orders-0": 10}, min_bytes=1_000_000)
    world.append("orders-0", 10, position=0, segment=10)
    world.append("orders-0", 11, position=40, segment=10)
    assert world.outcome(handle) == "pending"
    assert world.high_watermark("orders-0", 11).ended == 1
    assert world.outcome(handle) == "satisfied"


def test_lesson_41_marks_below_the_log_start_break_nothing() -> None:
    """Unknown high watermark, full truncation, a start above everything: waits end with a status, the engine lives."""
    world = World()
    world.log_start("orders-0", 100)
    assert world.marks("orders-0").high_watermark == 100
    below = world.fetch({"orders-0": 50})
    assert world.errors(below) == [1]
    waiting = world.fetch({"orders-0": 100})
    world.truncate("orders-0", 0)
    assert world.errors(waiting) == [1]
    marks = world.marks("orders-0")
    assert (marks.log_start, marks.high_watermark, marks.log_end) == (0, 0, 0)
    assert world.outcome(world.fetch({"orders-0": 0})) == "pending"


def test_lesson_42_late_checkpoint_does_not_lower_the_mark() -> None:
    """A mark of 0, told after 10 was acknowledged, is not believed."""
    world = World()
    world.high_watermark("orders-0", 10)
    assert world.outcome(world.produce({"orders-0": 10})) == "satisfied"
    assert world.high_watermark("orders-0", 0).unchanged
    assert world.outcome(world.produce({"orders-0": 10})) == "satisfied"


def test_lesson_43_new_epoch_fences_waits_of_the_old() -> None:
    """A wait made under epoch 5 is not satisfied under 6, not even by an event that also reaches its mark."""
    world = World()
    world.lead("orders-0", 5)
    handle = world.produce({"orders-0": 5}, epoch=5)
    assert world.high_watermark("orders-0", 5, epoch=6).ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("failed", [74])


def test_lesson_44_truncation_cuts_the_index() -> None:
    """Positions above the cut are forgotten; new ones count."""
    world = World()
    world.append("orders-0", 0, position=0)
    world.append("orders-0", 10, position=1_000)
    world.append("orders-0", 20, position=2_000)
    world.truncate("orders-0", 10)
    world.append("orders-0", 20, position=1_100)
    world.high_watermark("orders-0", 20)
    handle = world.fetch({"orders-0": 10}, min_bytes=1)
    assert world.item(handle).available_bytes == 100


@pytest.mark.parametrize("timeout_ms", [-1, -5, 2**31, 2**63 - 1])
def test_lesson_47_huge_or_negative_timeout_is_refused(timeout_ms: int) -> None:
    """Nothing overflows into the past."""
    world = World()
    operation = plain.Operation(plain.PRODUCE, 1, timeout_ms, (plain.Item(("orders", 0), 5),))
    receipt = world.under_test.register(world.owner_id, [operation], 0)
    assert [refusal.code for refusal in receipt.refusals] == [3]
    world.assert_empty()


def test_lesson_47_longest_timeout_waits_that_long() -> None:
    """24 days and more, to the millisecond."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=2**31 - 1)
    assert world.wait(2**31 - 2) == 0
    assert world.wait(1) == 1
    assert world.result(handle).lateness_ms == 0


@pytest.mark.parametrize("edge", [20, 400, 8_000, 160_000])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("idle_ms", [0, 1, 399, 12_345])
def test_lesson_49_and_51_deadlines_on_level_edges(edge: int, offset: int, idle_ms: int) -> None:
    """On each edge of the wheel's levels, one before and one after, from a fresh and from an idle wheel: on time."""
    world = World()
    world.now_ms = idle_ms
    world.produce({"orders-0": 5}, timeout_ms=edge + offset)
    assert world.wait(edge + offset - 1) == 0
    assert world.wait(1) == 1
    world.assert_empty()


def test_lesson_50_stalled_reaper_finds_all_in_order() -> None:
    """After 5 s of stall everything due ends in one pass, earliest deadline first."""
    world = World()
    timeouts = [4_999, 3, 700, 21, 5_000, 420, 20, 400, 1, 19]
    handles = {world.produce({"orders-0": 5}, timeout_ms=timeout_ms): timeout_ms for timeout_ms in timeouts}
    later = world.produce({"orders-0": 5}, timeout_ms=5_001)
    assert world.wait(5_000) == len(timeouts)
    assert [handles[handle] for handle in world.order] == sorted(timeouts)
    assert world.outcome(later) == "pending"


def test_lesson_57_ends_are_returned_not_called() -> None:
    """No code of the host runs inside a call: ends come out when they are asked for, each once."""
    world = World()
    many_produces(world, 10)
    world.under_test.apply([plain.Event(plain.HIGH_WATERMARK, ("orders", 0), 5)], 0)
    assert len(world.under_test.take_ended()) == 10
    assert world.under_test.take_ended() == []


@pytest.mark.slow
def test_lesson_60_cancelling_one_of_many_is_cheap() -> None:
    """100,000 waits on one key, cancelled one by one from the middle: no scan, so it is done in moments."""
    world = World()
    many_produces(world, 100_000)
    evaluations = world.engine.counts(plain.PRODUCE).evaluations
    owner = world.under_test.owners[world.owner_id]
    ids = [*range(50_000, 100_001), *range(1, 50_000)]
    assert all(world.engine.cancel(owner, ids, 0))
    assert world.engine.counts(plain.PRODUCE).evaluations == evaluations
    world.collect()
    world.assert_empty()


@pytest.mark.slow
def test_lesson_61_expiring_many_at_once_is_cheap() -> None:
    """100,000 waits on one key expire together without being evaluated."""
    world = World()
    many_produces(world, 100_000, timeout_ms=100)
    evaluations = world.engine.counts(plain.PRODUCE).evaluations
    assert world.wait(100) == 100_000
    assert world.engine.counts(plain.PRODUCE).evaluations == evaluations
    world.assert_empty()


def test_lesson_62_only_passed_thresholds_are_woken() -> None:
    """1,000 waits, marks rising one by one: an evaluation for each that ends, not for each that waits."""
    world = World()
    for offset in range(1, 1_001):
        world.produce({"orders-0": offset})
    before = world.engine.counts(plain.PRODUCE).evaluations
    for offset in range(1, 1_001):
        assert world.high_watermark("orders-0", offset).ended == 1
    assert world.engine.counts(plain.PRODUCE).evaluations - before <= 2_000


def test_lesson_63_fetch_is_not_woken_by_every_append() -> None:
    """10,000 appends towards min_bytes look at the fetch a few times, not 10,000 times."""
    world = World()
    world.append("orders-0", 0)
    handle = world.fetch({"orders-0": 0}, replica_id=2, min_bytes=10_000)
    before = world.engine.counts(plain.FETCH).evaluations
    events = [plain.Event(plain.LEADER_APPEND, ("orders", 0), offset) for offset in range(1, 10_001)]
    world.under_test.apply(events, 0)
    world.collect()
    assert world.outcome(handle) == "satisfied"
    assert world.engine.counts(plain.FETCH).evaluations - before <= 40


def test_lesson_64_waits_on_other_keys_are_left_alone() -> None:
    """One event for 1,000 waiters on its key looks at nobody else."""
    world = World()
    many_produces(world, 1_000, "orders-0")
    many_produces(world, 1_000, "orders-1")
    before = world.engine.counts(plain.PRODUCE).evaluations
    assert world.high_watermark("orders-0", 5).ended == 1_000
    world.collect()
    assert world.engine.counts(plain.PRODUCE).evaluations - before <= 1_000
    assert world.engine.pending == 1_000


def test_lesson_68_sizes_are_right_for_several_keys() -> None:
    """An operation with three partitions is pending once and watched three times, less for each that is reached."""
    world = World()
    world.produce({"orders-0": 5, "orders-1": 5, "orders-2": 5})
    counts = world.engine.counts(plain.PRODUCE)
    assert (counts.pending, counts.watched) == (1, 3)
    world.high_watermark("orders-1", 5)
    counts = world.engine.counts(plain.PRODUCE)
    assert (counts.pending, counts.watched) == (1, 2)
