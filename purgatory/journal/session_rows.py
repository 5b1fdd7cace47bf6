"""Which of the journal's rows are still needed: who of each registration waits, which results are unacknowledged.

Held in memory by the journal's thread, so that no row is ever read again while a daemon runs. Each row of registrations
has a roster of its operations. Ids only rise within a session, so an operation's row is found by its first id; the few
operations that have progressed (some of their partitions have come to an end) were moved to a later row.
"""

from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.snapshot.roster import Roster

EMPTY_ROWS_MIN: Final = 16
"""So many empty rows, beyond half of all, are dropped from the lists together: one at a time would cost n each."""


class RegistrationRow(NamedTuple):
    """One row of registrations, and who of it still waits."""

    registration: int
    roster: Roster


class SessionRows:
    """The rows of one session."""

    def __init__(self) -> None:
        self._first_ids: list[int] = []
        self._rows: list[RegistrationRow] = []
        """In order of their first ids, so that `_first_ids` can be bisected."""
        self._empty = 0
        self._moved: Final[dict[int, RegistrationRow]] = {}
        """By operation id: the later row that an operation was moved to."""
        self._results: Final[deque[tuple[int, int]]] = deque()
        """(row, last sequence number)."""

    def is_above_all(self, operation_id: int) -> bool:
        """Whether an id is above those of all rows but the moved ones."""
        return not self._rows or operation_id > self._rows[-1].roster.last

    def registrations(self) -> list[int]:
        """All rows of registrations in which something still waits."""
        rows = [*self._rows, *self._moved.values()]
        return list(dict.fromkeys(row.registration for row in rows if row.roster.left))

    def add(self, registration: int, roster: Roster) -> None:
        """A new row of operations whose ids are above all before."""
        assert self.is_above_all(int(roster.first)), f"id {roster.first} after {self._rows[-1].roster.last}"
        self._first_ids.append(int(roster.first))
        self._rows.append(RegistrationRow(registration, roster))

    def add_moved(self, registration: int, roster: Roster) -> None:
        """A new row of operations that were in other rows before, from which they were struck."""
        row = RegistrationRow(registration, roster)
        for operation_id in roster.remaining():
            self._moved[operation_id] = row

    def strike(self, ids: vec[i64]) -> list[RegistrationRow]:
        """Strikes off operations that have ended or moved; returns the rows that this changed."""
        changed: dict[int, RegistrationRow] = {}
        place, count = 0, len(ids)
        while place < count:
            # A roster can strike a whole run of ids at once, but not if one of them may have moved to another row.
            one_by_one = bool(self._moved)
            row = (self._moved.pop(ids[place], None) if one_by_one else None) or self._row_of(ids[place])
            if row is None:  # it was registered and ended within one group, and was never written
                place += 1
                continue
            if one_by_one:
                row.roster.strike(ids[place : place + 1], 0)
                place += 1
            else:
                place = row.roster.strike(ids, place)
            changed[row.registration] = row
        self._empty += sum(row.roster.left == 0 for row in changed.values())
        if self._empty > len(self._rows) // 2 + EMPTY_ROWS_MIN:
            self._drop_empty()
        return list(changed.values())

    def _row_of(self, operation_id: int) -> RegistrationRow | None:
        place = bisect_right(self._first_ids, operation_id) - 1
        if place < 0 or operation_id > self._rows[place].roster.last:
            return None
        return self._rows[place]

    def _drop_empty(self) -> None:
        self._rows = [row for row in self._rows if row.roster.left]
        self._first_ids = [int(row.roster.first) for row in self._rows]
        self._empty = 0

    def add_results(self, result: int, last_sequence: int) -> None:
        """A new row of results, up to this sequence number."""
        self._results.append((result, last_sequence))

    def acknowledge(self, sequence: int) -> list[int]:
        """Results up to `sequence` are acknowledged; returns the rows of results that are no longer needed."""
        unneeded: list[int] = []
        while self._results and self._results[0][1] <= sequence:
            unneeded.append(self._results.popleft()[0])
        return unneeded
