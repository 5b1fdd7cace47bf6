"""How much history may be on its way to the archive: bounded in rows, never waited for.

One thread takes room, another hears what is done; each number here is changed by one of them only, so there is no lock.
When there is no room, whole calls are dropped until half of it is free again: one long gap is easier to read around
than many short ones. Where nothing may be dropped (`strict`), everything is taken, and `is_closed` says that no more
should come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from purgatory.archive.calls import CallStamp
from purgatory.archive.words import TABLES


class Gap:
    """Calls that were dropped, one after the other."""

    def __init__(self, first: CallStamp) -> None:
        self.first: Final = first
        self.last_call_number = first.call_number
        self.rows: Final[dict[str, int]] = {}
        """By table."""

    def add(self, stamp: CallStamp, rows: Mapping[str, int]) -> None:
        """One more call that is dropped."""
        self.last_call_number = stamp.call_number
        for table, count in rows.items():
            self.rows[table] = self.rows.get(table, 0) + count


class Room:
    """The room for rows on their way. Whoever takes it also sees to it that the gaps that end are told of."""

    def __init__(self, rows_max: int, *, strict: bool) -> None:
        assert rows_max > 0, f"rows_max={rows_max}"
        self.rows_dropped: Final = dict.fromkeys(TABLES, 0)
        """By table; those in a gap that lasts included."""
        self._rows_max: Final = rows_max
        self._strict: Final = strict
        self._rows_taken = 0
        self._rows_done = 0
        self._rows_given_up = 0
        self._gap: Gap | None = None
        self._was_closed = False

    @property
    def rows(self) -> int:
        """Rows that are on their way."""
        return self._rows_taken - self._rows_done - self._rows_given_up

    # The taking side.

    @property
    def is_closed(self) -> bool:
        """Only when strict: it was full, and is not half empty yet."""
        if self._strict:
            limit = self._rows_max // 2 if self._was_closed else self._rows_max - 1
            self._was_closed = self.rows > limit
        return self._was_closed

    def take(self, rows: int) -> bool:
        """Room for the rows of one call; False: there is none, and the call is to be dropped.

        For a call that is alone there always is: otherwise it would never be kept.
        """
        if not self._strict:
            waiting = self._rows_taken - self._rows_done - self._rows_given_up
            if waiting and waiting + rows > self._rows_max:
                return False
            if self._gap is not None and waiting > self._rows_max // 2:
                return False
        self._rows_taken += rows
        return True

    def force(self, rows: int) -> None:
        """Takes room whether there is any or not: for markers."""
        self._rows_taken += rows

    def drop(self, stamp: CallStamp, rows: Mapping[str, int]) -> None:
        """A call for which there was no room is lost."""
        if self._gap is None:
            self._gap = Gap(stamp)
        self._gap.add(stamp, rows)
        for table, count in rows.items():
            self.rows_dropped[table] += count

    def end_gap(self) -> Gap | None:
        """What is being dropped, if anything is; what comes next will be another gap."""
        gap, self._gap = self._gap, None
        return gap

    # The other side.

    def done(self, rows: int) -> None:
        """So many rows need no room any more. Told by whoever hears of it."""
        self._rows_done += rows

    def give_up(self, rows: int) -> None:
        """The same of rows that are lost; negative: of rows that never took room. Told by whoever sends."""
        self._rows_given_up += rows
