"""Index of the rows that are still needed: pending operations of each registration, and unacknowledged results.

The journal's thread keeps it in memory, so that no row is read again while a daemon runs. Each row of registrations has
the set of its live operations. Ids rise within a session, so an operation's row is found by the row's first id. The few
operations that have progressed (some of their partitions have ended) were moved to a later row.
"""

from bisect import bisect_right
from collections import deque
from typing import Final, NamedTuple

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.snapshot.live_set import LiveSet

EMPTY_ROWS_MIN: Final = 16
"""Empty rows are removed from the lists once there are this many plus half of all rows. Removing one takes O(n)."""


class RegistrationRow(NamedTuple):
    """A row of registrations, and its operations that are still pending."""

    registration: int
    live: LiveSet


class SessionRows:
    """The rows of one session."""

    def __init__(self) -> None:
        self._first_ids: list[int] = []
        self._rows: list[RegistrationRow] = []
        """In order of their first ids, so that `_first_ids` can be bisected."""
        self._empty = 0
        self._moved: Final[dict[int, RegistrationRow]] = {}
        """The later rows of operations that were moved, by operation id."""
        self._results: Final[deque[tuple[int, int]]] = deque()
        """(row, last sequence number)."""

    def is_above_all(self, operation_id: int) -> bool:
        """Whether an id is above the ids of all rows; moved operations are ignored."""
        return not self._rows or operation_id > self._rows[-1].live.last

    def registrations(self) -> list[int]:
        """All rows of registrations with pending operations."""
        rows = [*self._rows, *self._moved.values()]
        return list(dict.fromkeys(row.registration for row in rows if row.live.left))

    def add(self, registration: int, live: LiveSet) -> None:
        """Add a row of operations whose ids are above all previous ones."""
        assert self.is_above_all(int(live.first)), f"id {live.first} after {self._rows[-1].live.last}"
        self._first_ids.append(int(live.first))
        self._rows.append(RegistrationRow(registration, live))

    def add_moved(self, registration: int, live: LiveSet) -> None:
        """Add a row of operations that were struck from other rows."""
        row = RegistrationRow(registration, live)
        # Not all of its ids: when a journal is opened, some of the row have ended already.
        for operation_id in live.remaining():
            self._moved[operation_id] = row

    def strike(self, ids: vec[i64]) -> list[RegistrationRow]:
        """Strike operations that have ended or moved; return the changed rows."""
        changed: dict[int, RegistrationRow] = {}
        place, count = 0, len(ids)
        while place < count:
            # A live set removes a whole run of ids at once, which is wrong if one of them has moved to another row.
            one_by_one = bool(self._moved)
            row = (self._moved.pop(ids[place], None) if one_by_one else None) or self._row_of(ids[place])
            if row is None:  # registered and ended within one group: never written
                place += 1
                continue
            if one_by_one:
                row.live.remove(ids[place : place + 1], 0)
                place += 1
            else:
                place = row.live.remove(ids, place)
            changed[row.registration] = row
        # An estimate that decides when to clean up; rows of moved operations are counted too.
        self._empty += sum(row.live.left == 0 for row in changed.values())
        if self._empty > len(self._rows) // 2 + EMPTY_ROWS_MIN:
            self._drop_empty()
        return list(changed.values())

    def _row_of(self, operation_id: int) -> RegistrationRow | None:
        place = bisect_right(self._first_ids, operation_id) - 1
        # An id between two rows was never written, because the operation ended within its group.
        if place < 0 or operation_id > self._rows[place].live.last:
            return None
        return self._rows[place]

    def _drop_empty(self) -> None:
        self._rows = [row for row in self._rows if row.live.left]
        self._first_ids = [int(row.live.first) for row in self._rows]
        self._empty = 0

    def add_results(self, result: int, last_sequence: int) -> None:
        """Add a row of results up to this sequence number."""
        self._results.append((result, last_sequence))

    def acknowledge(self, sequence: int) -> list[int]:
        """Results up to `sequence` are acknowledged; return the rows that are no longer needed."""
        unneeded: list[int] = []
        while self._results and self._results[0][1] <= sequence:
            unneeded.append(self._results.popleft()[0])
        return unneeded
