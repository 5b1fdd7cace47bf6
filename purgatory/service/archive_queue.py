"""Engine calls on their way from the event loop to the archive: bounded in rows, never waited for.

One thread puts, another takes, a third hears what is done; each number here is changed by one of them only, so there is
no lock. When there is no room, whole calls are dropped until half of it is free again: one long gap is easier to read
around than many short ones. Where nothing may be dropped (`strict`), everything is taken, and `is_closed` says that no
more should come.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from purgatory.archive.pieces import Call, CallStamp, rows_of
from purgatory.archive.words import TABLES
from purgatory.engine.packed_columns import ColumnWriter


class Gap:
    """Calls that were dropped, one after the other."""

    def __init__(self, first: CallStamp) -> None:
        self.first: Final = first
        self.last_call_number = first.call_number
        self.rows: Final[dict[str, int]] = {}
        """By table."""

    def add(self, call: Call) -> None:
        """One more call that is dropped."""
        self.last_call_number = call.stamp.call_number
        for table, rows in call.rows().items():
            self.rows[table] = self.rows.get(table, 0) + rows


class CallQueue:
    """The queue. Whoever puts also sees to it that the gaps that end are told of."""

    def __init__(self, rows_max: int, *, strict: bool) -> None:
        assert rows_max > 0, f"rows_max={rows_max}"
        self.writer: Final = ColumnWriter()
        """Of the pieces of all calls. The taker gives back what it is done with."""
        self.rows_dropped: Final = dict.fromkeys(TABLES, 0)
        """By table; those in a gap that lasts included."""
        self._rows_max: Final = rows_max
        self._strict: Final = strict
        self._calls: Final[deque[Call]] = deque()
        self._rows_put = 0
        self._rows_done = 0
        self._rows_given_up = 0
        self._gap: Gap | None = None
        self._was_closed = False

    @property
    def rows(self) -> int:
        """Rows of calls that were put and are not done with."""
        return self._rows_put - self._rows_done - self._rows_given_up

    # The putting side.

    @property
    def is_closed(self) -> bool:
        """Only when strict: it was full, and is not half empty yet."""
        if self._strict:
            limit = self._rows_max // 2 if self._was_closed else self._rows_max - 1
            self._was_closed = self.rows > limit
        return self._was_closed

    def put(self, call: Call) -> Gap | None:
        """Hands a call over, or drops it when there is no room. Gives the gap that ends with it, if one does."""
        rows = 0
        for _, content in call.parts:
            rows += rows_of(content)
        if not self._strict and not self._has_room(rows):
            if self._gap is None:
                self._gap = Gap(call.stamp)
            self._gap.add(call)
            for table, count in call.rows().items():
                self.rows_dropped[table] += count
            return None
        gap = self.end_gap()
        self._rows_put += rows
        self._calls.append(call)
        return gap

    def force(self, call: Call) -> None:
        """Hands a call over whatever the room: markers."""
        self._rows_put += sum(call.rows().values())
        self._calls.append(call)

    def end_gap(self) -> Gap | None:
        """What is being dropped, if anything is; what comes next will be another gap."""
        gap, self._gap = self._gap, None
        return gap

    def _has_room(self, rows: int) -> bool:
        """A call that is alone always has: otherwise it would never be kept."""
        waiting = self.rows
        if self._gap is not None:
            return waiting <= self._rows_max // 2
        return waiting == 0 or waiting + rows <= self._rows_max

    # The taking side.

    def take(self) -> Call | None:
        """The next call; None: there is none now."""
        return self._calls.popleft() if self._calls else None

    def done(self, rows: int) -> None:
        """So many rows need no room here any more. Told by whoever hears of it."""
        self._rows_done += rows

    def give_up(self, rows: int) -> None:
        """The same of rows that are lost; negative: of rows that were never put. Told by the taker."""
        self._rows_given_up += rows
