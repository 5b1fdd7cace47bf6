"""The index of byte positions on its own: its bound, which entries it keeps, and which it refuses."""

import pytest

from purgatory.engine.marks.positions import ENTRIES_MAX, PositionIndex
from tests.engine.world import World

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


@pytest.mark.parametrize(
    ("leo", "position", "segment", "is_refused"),
    [
        (6, 49, -1, True),  # the position went back
        (6, 49, 0, True),
        (6, 50, 0, False),
        (6, 0, 5, False),  # a new segment begins at 0
        (6, 0, 4, True),  # a segment below what the older one holds
        (6, 0, 7, True),  # a segment above the log end
    ],
)
def test_appends_that_cannot_be_are_refused(leo: int, position: int, segment: int, is_refused: bool) -> None:
    """After offset 5 at byte 50 of segment 0, a contradicting append is refused and changes nothing."""
    world = World()
    world.append("orders-0", 5, position=50, segment=0)
    answer = world.append("orders-0", leo, position=position, segment=segment)
    assert (answer.refused is not None) == is_refused
    assert world.marks("orders-0").log_end == (5 if is_refused else leo)
