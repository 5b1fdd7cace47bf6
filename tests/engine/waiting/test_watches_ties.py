"""Equal thresholds in the run and in the overflow heap of a watch list: whoever came first is first."""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i32

from purgatory.engine.waiting.watches import SHIFT_MAX, WatchList, make_ref


def tied() -> WatchList:
    """Threshold 5 at the head of the run (item 0), greater ones behind it, and 5 again in the overflow (last item)."""
    watches = WatchList()
    watches.add(5, make_ref(0, 0))
    for item in range(1, SHIFT_MAX + 2):
        watches.add(9, make_ref(item, 0))
    watches.add(5, make_ref(SHIFT_MAX + 2, 0))
    return watches


def test_popped_oldest_first() -> None:
    """Two entries of one threshold come out in the order in which they were added."""
    watches = tied()
    assert [watches.pop_reached(5) for _ in range(3)] == [make_ref(0, 0), make_ref(SHIFT_MAX + 2, 0), -1]


def test_drained_oldest_first() -> None:
    """Draining keeps their order too."""
    assert tied().drain()[:2] == [make_ref(0, 0), make_ref(SHIFT_MAX + 2, 0)]


def test_compacted_oldest_first() -> None:
    """And so does compaction."""
    watches = tied()
    assert watches.compact(vec[i32]([i32(0)] * (SHIFT_MAX + 3))) == 0
    assert [watches.pop_reached(5) for _ in range(3)] == [make_ref(0, 0), make_ref(SHIFT_MAX + 2, 0), -1]
