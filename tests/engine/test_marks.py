"""The cache of epochs and the index of byte positions when they are full."""

from purgatory.engine.marks import epochs
from purgatory.engine.marks.positions import ENTRIES_MAX, PositionIndex
from tests.scripts.engine_level import EngineLevel


def test_a_reader_of_a_dropped_epoch_learns_that_it_is_unknown() -> None:
    """A fetch whose last epoch is older than the thousand that are kept ends with error 1, as for an unknown epoch,
    although its offset is below the start of the oldest one.
    """
    leads = [f"lead orders-0 {epoch} offset={10 * epoch}" for epoch in range(epochs.ENTRIES_MAX + 30)]
    end = 10 * epochs.ENTRIES_MAX + 1_000
    level = EngineLevel.played(*leads, f"append orders-0 {end}", f"high-watermark orders-0 {end}")
    (dropped,) = level.answer("fetch 1 orders-0@290 last_epoch=25")
    assert "@290 at" in dropped
    assert "error 1 " in dropped
    (known,) = level.answer("fetch 2 orders-0@500 last_epoch=40")
    assert "error" not in known
    assert known.endswith("diverges at 40/410")
    for number, epoch in enumerate((0, 28, 29, 30, 31, epochs.ENTRIES_MAX + 29, epochs.ENTRIES_MAX + 30), 3):
        level.answer(f"fetch {number} orders-0@{end - 1} last_epoch={epoch}")  # the oracle knows what is right
    cache = level.engine._partitions.by_name["orders", 0].epochs
    assert cache.end_offset(-1, end) == cache.end_offset(epochs.ENTRIES_MAX + 30, end) == (-1, -1)


def test_leader_may_have_id_0_and_its_mark_only_rises() -> None:
    partition = EngineLevel.played("lead orders-0 1 replicas=0,1 leader_id=1").engine._partitions.at(0)
    partition.assign([], 0)
    assert partition.leader_id == 0
    assert partition.is_leader
    assert [partition.raise_high_watermark(offset) for offset in (3, 3, 2, 4)] == [True, False, False, True]


def test_counter_of_partitions_changes_with_each_one_that_comes_or_goes() -> None:
    level, seen = EngineLevel(), []
    for line in ("append a-0 1", "append b-0 1", "remove a-0", "append a-0 1"):
        level.answer(line)
        seen.append(level.engine.inspection.partition_changes)
    assert seen == sorted(set(seen))


BYTES = 10
APPENDS = 5 * ENTRIES_MAX


def full() -> PositionIndex:
    """An index of appends of one record of 10 bytes each, far more than it may hold."""
    index = PositionIndex()
    for offset in range(1, APPENDS + 1):
        index.add(offset, 0, BYTES * offset)
        assert len(index) <= ENTRIES_MAX
    return index


def test_the_newest_entries_stay_exact() -> None:
    index = full()
    for offset in range(APPENDS - ENTRIES_MAX // 4, APPENDS + 1):
        assert index.reach(offset) == BYTES * offset


def test_thinned_entries_are_lower_bounds() -> None:
    """In the thinned part, a reach is never too high and never falls, and the oldest entry is kept."""
    index = full()
    reaches = [index.reach(offset) for offset in range(APPENDS + 1)]
    assert reaches[0] == 0
    assert reaches == sorted(reaches)
    assert all(reach <= BYTES * offset for offset, reach in enumerate(reaches))
