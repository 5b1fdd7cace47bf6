"""What of the journal's rows is still needed: which operations of each registration wait, which results are kept.

Held in memory by the journal's thread, so that no row is ever read again while a daemon runs. Each registration has a
roster of its operations. Ids only rise in a session, so the row of an operation is found by its first id; operations
that came a step further have moved to a later row, and those are few.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.snapshot.packing import Roster


class Kept:
    """One row of registrations."""

    __slots__ = ("registration", "roster")

    def __init__(self, registration: int, roster: Roster) -> None:
        self.registration: Final = registration
        self.roster: Final = roster


class SessionLedger:
    """The rows of one session."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._rows: list[Kept] = []
        """In order of their first ids."""
        self._emptied = 0
        self._moved: Final[dict[int, Kept]] = {}
        self._results: Final[deque[tuple[int, int]]] = deque()
        """(row, last sequence number)."""

    def is_above_all(self, operation_id: int) -> bool:
        """Whether an id is above those of all rows but the moved ones."""
        return not self._rows or operation_id > self._rows[-1].roster.last

    def registrations(self) -> list[int]:
        """All rows of registrations that have somebody left."""
        rows = [*self._rows, *self._moved.values()]
        return list(dict.fromkeys(kept.registration for kept in rows if kept.roster.left))

    def add(self, registration: int, roster: Roster) -> None:
        """A new row of operations whose ids are above all before."""
        assert self.is_above_all(int(roster.first)), f"id {roster.first} after {self._rows[-1].roster.last}"
        self._firsts.append(int(roster.first))
        self._rows.append(Kept(registration, roster))

    def add_moved(self, registration: int, roster: Roster) -> None:
        """A new row of operations that were in other rows before, from which they were struck."""
        kept = Kept(registration, roster)
        for operation_id in roster.remaining():
            self._moved[operation_id] = kept

    def strike(self, ids: vec[i64]) -> list[Kept]:
        """These operations have ended or moved: crosses them off. Gives the rows that it changed."""
        changed: dict[int, Kept] = {}
        place, count = 0, len(ids)
        while place < count:
            one_by_one = bool(self._moved)  # the next one may have moved to quite another row
            kept = (self._moved.pop(ids[place], None) if one_by_one else None) or self._row_of(ids[place])
            if kept is None:  # it began and ended within one group, and has no row
                place += 1
                continue
            if one_by_one:
                kept.roster.strike(ids[place : place + 1], 0)
                place += 1
            else:
                place = kept.roster.strike(ids, place)
            changed[kept.registration] = kept
        self._emptied += sum(kept.roster.left == 0 for kept in changed.values())
        if self._emptied > len(self._rows) // 2 + 16:
            self._forget_emptied()
        return list(changed.values())

    def _row_of(self, operation_id: int) -> Kept | None:
        place = bisect_right(self._firsts, operation_id) - 1
        if place < 0 or operation_id > self._rows[place].roster.last:
            return None
        return self._rows[place]

    def _forget_emptied(self) -> None:
        self._rows = [kept for kept in self._rows if kept.roster.left]
        self._firsts = [int(kept.roster.first) for kept in self._rows]
        self._emptied = 0

    def add_results(self, result: int, last_sequence: int) -> None:
        """A new row of results, up to this sequence number."""
        self._results.append((result, last_sequence))

    def acknowledge(self, sequence: int) -> list[int]:
        """All results up to `sequence` are acknowledged: gives the rows that are needed no more."""
        done: list[int] = []
        while self._results and self._results[0][1] <= sequence:
            done.append(self._results.popleft()[0])
        return done
