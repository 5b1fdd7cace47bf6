"""Where a log ended over time, in bounded memory, and from that the age of a position. Times are those of one clock.

The record at a position was written between the last reading at which the log did not end behind it and the first one
at which it did. Within this time the age is interpolated. A position from before all readings is at least as old.
"""

from array import array
from bisect import bisect_right
from typing import Final

ENDS_MAX: Final = 480
"""Ends remembered of one log: 12 kB. Every fourth is forgotten when there are more."""


class EndHistory:
    """The history of one log, which is read every `interval_ms`. Of each end it has the time at which it was first
    seen, and at which the last reading began that saw it.
    """

    def __init__(self, interval_ms: int) -> None:
        self.end = 0
        self._interval_ms: Final = interval_ms
        self._epoch: int | None = None
        self._is_empty = self._is_lower = False
        self._columns: Final = array("q"), array("q"), array("q")
        self._ends, self._first_ms, self._last_ms = self._columns

    def seen(self, end: int | None, epoch: int | None, asked_ms: int, answered_ms: int) -> None:
        """Add a reading that was made between two times; without an end: the log has no records. A log of another
        epoch, or that was cut, begins again.
        """
        if self._ends and asked_ms < self._last_ms[-1]:
            return  # answers to two questions may overtake each other
        self._is_empty, end = end is None, self.end if end is None else end
        is_other = None not in (epoch, self._epoch) and epoch != self._epoch
        if end < self.end and not is_other and not self._is_lower:
            self._is_lower = True  # a new leader may know an old end for a moment: wait for a second reading
            return
        if end < self.end or is_other:
            for column in self._columns:
                del column[:]
        if not self._ends or end != self.end:
            for column, value in zip(self._columns, (end, answered_ms, asked_ms), strict=True):
                column.append(value)
        self._last_ms[-1] = asked_ms
        self.end, self._is_lower, self._epoch = end, False, self._epoch if epoch is None else epoch
        if len(self._ends) > ENDS_MAX:
            self._forget(answered_ms)

    def behind(self, position: int, now_ms: int) -> tuple[int, int, int | None]:
        """Offsets from a position to the end, how long ago the first record there was written (0: there was none at the
        last reading), and by how much this may be wrong; None: it is at least as old. Requires a reading.
        """
        place, lag = bisect_right(self._ends, position), self.end - position
        if self._is_empty or place == len(self._ends):
            return 0, 0, max(0, now_ms - self._last_ms[-1])
        if place == 0:
            return lag, max(0, now_ms - self._first_ms[0]), None
        from_ms, before = self._last_ms[place - 1], self._ends[place - 1]
        within_ms = self._first_ms[place] - from_ms
        written_ms = from_ms + within_ms * (position - before) // (self._ends[place] - before)
        return lag, max(0, now_ms - written_ms), max(within_ms, self._interval_ms)

    def _forget(self, now_ms: int) -> None:
        """Forget the ends without which ages are least wrong in proportion, and no two neighbours."""
        places = list(range(1, len(self._ends) - 1, 2))
        places.sort(key=lambda at: (self._first_ms[at + 1] - self._last_ms[at - 1]) / (now_ms - self._last_ms[at] + 1))
        for place in sorted(places[: ENDS_MAX // 4], reverse=True):
            for column in self._columns:
                del column[place]
