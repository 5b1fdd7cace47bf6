"""How many operations each bucket of the timing wheel holds, counted for viewers within a bounded time per picture."""

import time
from typing import Final

from purgatory.engine.engine import Engine
from purgatory.engine.ranking import WheelRing

COUNTED_AT_ONCE: Final = 100
"""Smaller buckets are counted in every picture; larger ones take turns."""
COUNT_S: Final = 0.0015
"""Time per picture for larger buckets: with a million pending, their counts are a few seconds old."""
COUNTED_MAX: Final = 100_000
"""Operations counted in one bucket. Counting that number takes one to three milliseconds."""


class BucketCounts:
    """The counts of large buckets from earlier pictures."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._large: dict[tuple[int, int], int] = {}
        """By level and index, the one counted longest ago first. 0: not counted yet."""

    def count(self) -> list[WheelRing]:
        """The rings of the wheel with the best known counts; those for which `is_cut` holds are lower bounds."""
        rings = self._engine.inspection.wheel_rings(COUNTED_AT_ONCE)
        large = {
            (ring.level, place) for ring in rings for place, count in enumerate(ring.counts) if count == COUNTED_AT_ONCE
        }
        known = {key: count for key, count in self._large.items() if key in large}
        # Those that have never been counted come first.
        self._large = dict.fromkeys(sorted(large - known.keys()), 0) | known
        stop_s = time.perf_counter() + COUNT_S
        for key in list(self._large):
            if time.perf_counter() >= stop_s:
                break
            del self._large[key]
            self._large[key] = self._engine.inspection.wheel_bucket_count(*key, COUNTED_MAX)
        for ring in rings:
            for place, count in enumerate(ring.counts):
                ring.counts[place] = max(count, self._large.get((ring.level, place), 0))
        return rings

    def is_cut(self, ring: WheelRing, place: int) -> bool:
        """Whether a bucket holds more than its count says, or may."""
        return ring.counts[place] == COUNTED_MAX or self._large.get((ring.level, place)) == 0
