"""Edge cases of the in-sync set and of lagging followers; the index of byte positions and the cache of epochs alone."""

from purgatory.engine.marks import epochs
from purgatory.engine.marks.epochs import EpochCache
from purgatory.engine.marks.positions import ENTRIES_MAX, PositionIndex
from tests.scripts.engine_level import EngineLevel


def test_an_epoch_without_records_is_dropped() -> None:
    """Epochs 2 and 3 begin at the same offset, so nothing was written in 2 and epoch 1 answers for it."""
    cache = EpochCache()
    for epoch, start in ((1, 0), (2, 10), (3, 10)):
        cache.assign(epoch, start)
    assert cache.end_offset(2, 20) == (1, 10)
    assert cache.end_offset(3, 20) == (3, 20)
    assert cache.end_offset(4, 20) == EpochCache().end_offset(0, 20) == (-1, -1)


def test_the_newest_epochs_are_kept() -> None:
    """The newest thousand epochs are kept. The ends of older ones are undefined, which a reader must learn; as in
    Kafka, an epoch from before the first known one ends where that begins.
    """
    cache = EpochCache()
    for epoch in range(1, epochs.ENTRIES_MAX + 1):
        cache.assign(epoch, 10 * epoch)
    assert cache.end_offset(0, 10**6) == (0, 10)
    for epoch in range(epochs.ENTRIES_MAX + 1, epochs.ENTRIES_MAX + 501):
        cache.assign(epoch, 10 * epoch)
    assert len(cache.epochs) == epochs.ENTRIES_MAX
    assert cache.end_offset(502, 10**6) == (502, 5_030)
    assert cache.end_offset(501, 10**6) == (501, 5_020)
    assert [cache.end_offset(epoch, 10**6) for epoch in (0, 3, 500)] == [(-1, -1)] * 3
    cache.truncate(5_025)
    assert cache.end_offset(501, 5_025) == (501, 5_020)
    assert cache.end_offset(500, 5_025) == (-1, -1)


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
    """Thinning drops entries of the older half: the newest quarter of the capacity stays exact to the byte."""
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


def test_each_record_has_a_byte() -> None:
    """Positions that grow by less than the offsets count as growing with them."""
    index = PositionIndex()
    index.add(10, 0, 3)
    index.add(20, 0, 3)
    assert (index.reach(10), index.reach(20)) == (10, 20)


def test_a_position_without_a_segment_is_kept() -> None:
    """A position counts from 0 on, and is one of the segment that has begun."""
    index = PositionIndex()
    index.add(3, -1, 0)
    index.add(4, -1, 100)
    assert (len(index), index.reach(3), index.reach(4)) == (3, 3, 100)
