"""Bugs of other projects (docs/lessons.md) as tests of the engine: stalls, hot keys, needless wakeups."""

import pytest

from tests.engine import plain
from tests.engine.world import World


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


def test_ends_are_returned_not_called() -> None:
    """No code of the host runs inside a call: results are returned by `take_completions`, each once."""
    world = World()
    world.produce_many(10)
    engine = world.pair.engine
    engine.apply([plain.Event(plain.HIGH_WATERMARK, ("orders", 0), 5)], 0)
    assert len(engine.take_ended()) == 10
    assert engine.take_ended() == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_one_of_many_leaves_without_a_scan(end: str) -> None:
    """100,000 waits on one key are cancelled one by one from the middle, or expire together, without any evaluation."""
    world = World(wheel_size=128)  # on this wheel they need not cascade, which would take several calls
    handles = world.produce_many(100_000, timeout_ms=100)
    evaluations = world.engine.counts(plain.PRODUCE).evaluations
    if end == "cancel":
        assert all(world.cancel(*handles[50_000:], *handles[:50_000]))
    else:
        assert world.wait(100) == 100_000
    assert world.engine.counts(plain.PRODUCE).evaluations == evaluations
    world.assert_empty()


def test_only_passed_thresholds_are_woken() -> None:
    """With 500 waits and marks that rise one by one, each operation that ends is evaluated once, and no others."""
    world = World()
    for offset in range(1, 501):
        world.produce({"orders-0": offset})
    before = world.engine.counts(plain.PRODUCE).evaluations
    for offset in range(1, 501):
        assert world.high_watermark("orders-0", offset).ended == 1
    assert world.engine.counts(plain.PRODUCE).evaluations - before <= 1_000


def test_fetch_is_not_woken_by_every_append() -> None:
    """10,000 appends towards min_bytes evaluate the fetch a few times, not 10,000 times."""
    world = World()
    world.append("orders-0", 0)
    handle = world.fetch({"orders-0": 0}, replica_id=2, min_bytes=10_000)
    before = world.engine.counts(plain.FETCH).evaluations
    world.pair.apply([plain.Event(plain.LEADER_APPEND, ("orders", 0), offset) for offset in range(1, 10_001)])
    world.collect()
    assert world.outcome(handle) == "satisfied"
    assert world.engine.counts(plain.FETCH).evaluations - before <= 40


def test_waits_on_other_keys_are_left_alone() -> None:
    """One event for the 1,000 waits on its key evaluates no others."""
    world = World()
    world.produce_many(1_000, "orders-0")
    world.produce_many(1_000, "orders-1")
    before = world.engine.counts(plain.PRODUCE).evaluations
    assert world.high_watermark("orders-0", 5).ended == 1_000
    assert world.engine.counts(plain.PRODUCE).evaluations - before <= 1_000
    assert world.engine.pending == 1_000


def test_sizes_are_right_for_several_keys() -> None:
    """An operation with three partitions counts as one pending and three watched, minus one per partition reached."""
    world = World()
    world.produce({"orders-0": 5, "orders-1": 5, "orders-2": 5})
    counts = world.engine.counts(plain.PRODUCE)
    assert (counts.pending, counts.watched) == (1, 3)
    world.high_watermark("orders-1", 5)
    counts = world.engine.counts(plain.PRODUCE)
    assert (counts.pending, counts.watched) == (1, 2)
