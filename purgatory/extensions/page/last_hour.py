"""Counters of the last hour, sampled every few seconds; rates and percentiles are derived from them for viewers."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from purgatory.engine.codes import KINDS, SATISFIED
from purgatory.extensions.page.recent_ends import wall_ms
from purgatory.service.histogram import Histogram, finer
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import LATENESS_BOUNDS_MS, WAIT_BOUNDS_MS, Metrics

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
            self._noted.append((now_s, {key: histogram.totals() for key, histogram in histograms.items()}))
        while len(self._noted) > 1 and now_s - self._noted[1][0] >= WINDOW_S:
            self._noted.popleft()
        # Differences to the first snapshot mean something only once it is old enough; before that, use the totals.
        base: Noted = self._noted[0][1] if now_s - self._noted[0][0] >= 2 * NOTED_EVERY_S else {}
        found = {}
        for key, histogram in histograms.items():
            before = base.get(key) or [0.0] * (len(histogram.finer_ms) + 1)
            added = [now - then for now, then in zip(histogram.totals(), before, strict=True)]
            if added[-1] > 0:
                found[key] = {
                    "count": added[-1],
                    **{f"p{share * 100:.0f}": bound_at(histogram.finer_ms, added, share) for share in SHARES},
                }
        return found

    def forget(self) -> None:
        """Drop the snapshots when the last viewer has left: they would be too old for the next viewer."""
        self._noted.clear()


def bound_at(bounds_ms: Sequence[int], totals: Sequence[float], share: float) -> float:
    """The upper bound of the bucket with this percentile, from cumulative totals; -1 if it is above the last bound."""
    place = next(place for place, total in enumerate(totals) if total >= share * totals[-1])
    return bounds_ms[place] if place < len(bounds_ms) else -1


SAMPLE_S: Final = 10.0
SAMPLES_MAX: Final = 361
"""An hour, and the sample before it. A sample has 108 numbers, so all of them take 310 kB."""
RATES: Final = ("registered", "satisfied", "failed", "expired", "cancelled")
HISTOGRAMS: Final = {"wait": finer(WAIT_BOUNDS_MS), "late": finer(LATENESS_BOUNDS_MS)}


class LastHour:
    """The samples. Without viewers, the only work is to copy the counters every `SAMPLE_S` seconds."""

    def __init__(self, host: Host, metrics: Metrics) -> None:
        self._host: Final = host
        self._metrics: Final = metrics
        self._samples: Final[deque[tuple[float, array[float]]]] = deque(maxlen=SAMPLES_MAX)
        """Monotonic time in seconds; then pending operations, and counters since the daemon started, see `sample`."""
        self._picture: tuple[float, dict[str, Any]] = (0.0, {})
        """The latest picture, and the time of its last sample."""

    async def run(self) -> None:
        while True:
            self.sample(time.monotonic())
            await asyncio.sleep(SAMPLE_S)

    def sample(self, now_s: float) -> None:
        """Copy the counters. `now_s` is monotonic."""
        engine, metrics = self._host.engine, self._metrics
        counts = [engine.inspection.counts(kind) for kind in KINDS]
        row = array("d", [engine.pending])
        row.extend(sum(getattr(one, name) for one in counts) for name in RATES)
        row.append(sum(count for (_, result), count in metrics.event_results.items() if result == "applied"))
        waits = [metrics.waits[kind, SATISFIED] for kind in KINDS]
        for histograms in (waits, list(metrics.lateness.values())):
            row.extend(map(sum, zip(*(histogram.totals() for histogram in histograms), strict=True)))
        self._samples.append((now_s, row))

    def picture(self) -> dict[str, Any]:
        """Columns with one value for each pair of consecutive samples.

        Rates are per second. Percentiles are the upper bounds of buckets, in milliseconds; the last bound also stands
        for everything above it, and None means that nothing ended in between.
        """
        if not self._samples or self._samples[-1][0] == self._picture[0]:
            return self._picture[1]
        percentiles = (f"{name}_p{share * 100:.0f}" for name in HISTOGRAMS for share in SHARES)
        names = ["at", "pending", *RATES, "events", *percentiles]
        rows = [_derived(before, after) for before, after in pairwise(self._samples)]
        columns = zip(*rows, strict=True) if rows else ((),) * len(names)
        picture: dict[str, Any] = dict(zip(names, map(list, columns), strict=True))
        ahead_s = wall_ms() / 1_000 - time.monotonic()
        picture["at"] = [round(at_s + ahead_s, 1) for at_s in picture["at"]]
        picture["bounds"] = {name: bounds[-1] for name, bounds in HISTOGRAMS.items()}
        self._picture = self._samples[-1][0], picture
        return picture


def _derived(before: tuple[float, "array[float]"], after: tuple[float, "array[float]"]) -> list[float | None]:
    """The values of one interval, in the order of the columns of `picture`."""
    added = [now - then for now, then in zip(after[1], before[1], strict=True)]
    seconds = max(after[0] - before[0], 0.001)
    at = 2 + len(RATES)
    values: list[float | None] = [after[0], after[1][0], *(round(one / seconds, 2) for one in added[1:at])]
    for bounds in HISTOGRAMS.values():
        totals = added[at : at + len(bounds) + 1]
        at += len(totals)
        for share in SHARES:
            bound = bound_at(bounds, totals, share) if totals[-1] > 0 else None
            values.append(bounds[-1] if bound == -1 else bound)
    return values
