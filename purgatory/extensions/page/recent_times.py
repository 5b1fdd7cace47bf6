"""Percentiles over the last minutes, computed from cumulative histograms as differences to earlier snapshots."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from purgatory.service.histogram import Histogram

WINDOW_S: Final = 300.0
NOTED_EVERY_S: Final = 5.0
SHARES: Final = (0.5, 0.95, 0.99)

Noted = dict[str, list[float]]


class RecentTimes:
    """Takes snapshots of histograms while there are viewers.

    Until the window is full, the percentiles cover the time since the first snapshot, or since the start of the daemon
    if the first snapshot is very recent.
    """

    def __init__(self) -> None:
        self._noted: Final[deque[tuple[float, Noted]]] = deque()

    def percentiles(self, histograms: Mapping[str, Histogram], now_s: float) -> dict[str, dict[str, float]]:
        """For each histogram with new observations: their number, and p50, p95 and p99 in milliseconds.

        Each percentile is the upper bound of its bucket; -1 if it is above the last bound.
        """
        if not self._noted or now_s - self._noted[-1][0] >= NOTED_EVERY_S:
            self._noted.append((now_s, {key: _totals(histogram) for key, histogram in histograms.items()}))
        while len(self._noted) > 1 and now_s - self._noted[1][0] >= WINDOW_S:
            self._noted.popleft()
        # Differences to the first snapshot mean something only once it is old enough; before that, use the totals.
        base: Noted = self._noted[0][1] if now_s - self._noted[0][0] >= 2 * NOTED_EVERY_S else {}
        found = {}
        for key, histogram in histograms.items():
            before = base.get(key) or [0.0] * (len(histogram.bounds_ms) + 1)
            added = [now - then for now, then in zip(_totals(histogram), before, strict=True)]
            if added[-1] > 0:
                found[key] = {
                    "count": added[-1],
                    **{f"p{share * 100:.0f}": bound_at(histogram.bounds_ms, added, share) for share in SHARES},
                }
        return found

    def forget(self) -> None:
        """Drop the snapshots when the last viewer has left: they would be too old for the next viewer."""
        self._noted.clear()


def _totals(histogram: Histogram) -> list[float]:
    return [total for _, total in histogram.cumulative()]


def bound_at(bounds_ms: Sequence[int], totals: Sequence[float], share: float) -> float:
    """The upper bound of the bucket with this percentile, from cumulative totals; -1 if it is above the last bound."""
    place = next(place for place, total in enumerate(totals) if total >= share * totals[-1])
    return bounds_ms[place] if place < len(bounds_ms) else -1
