"""A group as SQL: which rows it adds, changes and takes away. Made once, so that it can be tried again as it is.

Every statement can be run twice with the same end, for a commit that failed may be found done after all.
"""

from __future__ import annotations

from typing import Any, Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.snapshot.packing import Roster
from purgatory.engine.snapshot.saved import SavedOperations
from purgatory.journal.group import Group, SessionPart
from purgatory.journal.row_codec import changes_to, checksum, results_to
from purgatory.journal.session_rows import Kept, SessionLedger

PUT_REGISTRATION: Final = "INSERT OR REPLACE INTO registrations VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_GONE: Final = "INSERT OR REPLACE INTO gone VALUES (?, ?, ?)"
PUT_RESULTS: Final = "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?)"
PUT_SESSION: Final = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_UNHEARD: Final = "INSERT OR REPLACE INTO unheard VALUES (?, ?, ?)"
PUT_PARTITION: Final = (
    "INSERT INTO partitions (topic, number, content, crc32) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (topic, number) DO UPDATE SET content = excluded.content, crc32 = excluded.crc32"
)
PUT_CHANGES: Final = "INSERT OR REPLACE INTO changes VALUES (?, ?, ?)"
TAKE_CHANGES: Final = "DELETE FROM changes WHERE change = ?"
PUT_KEY: Final = "INSERT OR REPLACE INTO keys (key, count, crc32) VALUES (?, ?, ?)"
PUT_MOMENT: Final = "INSERT OR REPLACE INTO moment VALUES (1, ?, ?, ?, ?, ?, ?, ?)"
TAKE_REGISTRATION: Final = "DELETE FROM registrations WHERE registration = ?"
TAKE_GONE: Final = "DELETE FROM gone WHERE registration = ?"
TAKE_RESULTS: Final = "DELETE FROM results WHERE result = ?"
TAKE_SESSION: Final = "DELETE FROM sessions WHERE session = ?"
TAKE_UNHEARD: Final = "DELETE FROM unheard WHERE session = ?"
TAKE_PARTITION: Final = "DELETE FROM partitions WHERE topic = ? AND number = ?"
TAKE_KEY: Final = "DELETE FROM keys WHERE key = ?"

ORDER: Final = (
    PUT_REGISTRATION, PUT_GONE, PUT_RESULTS, PUT_SESSION, PUT_UNHEARD, PUT_PARTITION, PUT_CHANGES, PUT_KEY,
    TAKE_REGISTRATION, TAKE_GONE, TAKE_RESULTS, TAKE_SESSION, TAKE_UNHEARD, TAKE_PARTITION, TAKE_CHANGES, TAKE_KEY,
    PUT_MOMENT,
)  # fmt: skip

Statements = dict[str, list[tuple[Any, ...]]]


CHANGES_MAX: Final = 64
FEW_PARTITIONS: Final = 4


class Bookkeeper:
    """Turns groups into statements, and keeps the ledgers in step."""

    def __init__(self) -> None:
        self._ledgers: Final[dict[int, SessionLedger]] = {}
        self._unheard: Final[set[int]] = set()
        """Sessions that have such a row."""
        self._last_registration = 0
        self._last_result = 0
        self._last_change = 0
        self._changes: Final[list[int]] = []
        """Rows of changes that are not merged yet."""
        self._changed: Final[dict[PartitionName, bytes]] = {}
        """What they say."""
        self.registrations = 0
        """Rows there are."""
        self.results = 0
        """Rows there are."""

    def ledger(self, session: int) -> SessionLedger:
        """That of a session."""
        return self._ledgers.setdefault(session, SessionLedger())

    def found(self, session: int, registration: int, roster: Roster) -> None:
        """A row of registrations that is there already. To be told in order of the rows."""
        self._last_registration = registration
        self.registrations += 1
        ledger = self.ledger(session)
        if ledger.is_above_all(int(roster.first)):
            ledger.add(registration, roster)
        else:
            ledger.add_moved(registration, roster)

    def found_results(self, session: int, result: int, last_sequence: int) -> None:
        """A row of results that is there already. To be told in order of the rows."""
        self._last_result = result
        self.results += 1
        self.ledger(session).add_results(result, last_sequence)

    def found_unheard(self, session: int) -> None:
        """A row of unheard sessions that is there already."""
        self._unheard.add(session)

    def found_changes(self, change: int, changes: list[tuple[PartitionName, bytes]]) -> None:
        """A row of changes that is there already. To be told in order of the rows."""
        self._last_change = change
        self._changes.append(change)
        self._changed.update(changes)

    def statements(self, group: Group) -> Statements:
        """What is to be done."""
        todo: Statements = {sql: [] for sql in ORDER}
        for part in group.sessions:
            if part.dropped:
                self._drop(part, todo)
            else:
                self._keep(part, todo)
        if group.partitions:
            self._keep_partitions(group, todo)
        for key, count in group.keys:
            if count:
                todo[PUT_KEY].append((key, count, checksum(key, count)))
            else:
                todo[TAKE_KEY].append((key,))
        moment = (*group.moment, group.number, int(group.is_last))
        todo[PUT_MOMENT].append((*moment, checksum(*moment)))
        return todo

    def _keep_partitions(self, group: Group, todo: Statements) -> None:
        """Many at a time go into one row, which costs less than a row for each; after some groups all are merged."""
        self._changed.update(group.partitions)
        few = not self._changes and len(group.partitions) <= FEW_PARTITIONS
        if not few and len(self._changes) < CHANGES_MAX:
            self._last_change += 1
            self._changes.append(self._last_change)
            row = (self._last_change, changes_to(group.partitions))
            todo[PUT_CHANGES].append((*row, checksum(*row)))
            return
        for (topic, number), content in self._changed.items():
            if content:
                todo[PUT_PARTITION].append((topic, number, content, checksum(topic, number, content)))
            else:
                todo[TAKE_PARTITION].append((topic, number))
        todo[TAKE_CHANGES].extend((change,) for change in self._changes)
        self._changes.clear()
        self._changed.clear()

    def _drop(self, part: SessionPart, todo: Statements) -> None:
        session = part.state.session
        ledger = self._ledgers.pop(session, None)
        todo[TAKE_SESSION].append((session,))
        self._keep_unheard(session, -1, todo)
        if ledger is not None:
            self._take_registrations(ledger.registrations(), todo)
            self._take_results(ledger.acknowledge(part.state.last_sequence), todo)

    def _keep(self, part: SessionPart, todo: Statements) -> None:
        state = part.state
        ledger = self.ledger(state.session)
        changed: dict[int, Kept] = {}
        for ended in part.results:
            if not isinstance(ended, list):
                changed.update((kept.registration, kept) for kept in ledger.strike(ended.operation_ids))
        if part.moved is not None and len(part.moved):
            changed.update((kept.registration, kept) for kept in ledger.strike(part.moved.operation_ids))
        for kept in changed.values():
            if kept.roster.left:
                bits = kept.roster.gone()
                todo[PUT_GONE].append((kept.registration, bits, checksum(kept.registration, bits)))
        self._take_registrations([kept.registration for kept in changed.values() if not kept.roster.left], todo)
        if part.registered is not None and len(part.registered):
            ledger.add(self._put(state.session, part.registered, todo), Roster(part.registered.operation_ids, b""))
        if part.moved is not None and len(part.moved):
            ledger.add_moved(self._put(state.session, part.moved, todo), Roster(part.moved.operation_ids, b""))
        self._take_results(ledger.acknowledge(state.acknowledged_sequence), todo)
        if part.results and state.last_sequence > state.acknowledged_sequence:
            self._put_results(part, ledger, todo)
        todo[PUT_SESSION].append((*state, checksum(*state)))
        self._keep_unheard(state.session, part.unheard_after, todo)

    def _keep_unheard(self, session: int, after_sequence: int, todo: Statements) -> None:
        """The row is written once, and stays until the client is back."""
        if after_sequence >= 0 and session not in self._unheard:
            self._unheard.add(session)
            todo[PUT_UNHEARD].append((session, after_sequence, checksum(session, after_sequence)))
        elif after_sequence < 0 and session in self._unheard:
            self._unheard.remove(session)
            todo[TAKE_UNHEARD].append((session,))

    def _put(self, session: int, saved: SavedOperations, todo: Statements) -> int:
        self._last_registration += 1
        self.registrations += 1
        ids = saved.operation_ids
        row = (self._last_registration, session, ids[0], ids[len(ids) - 1], len(ids), saved.to_bytes())
        todo[PUT_REGISTRATION].append((*row, checksum(*row)))
        return self._last_registration

    def _put_results(self, part: SessionPart, ledger: SessionLedger, todo: Statements) -> None:
        self._last_result += 1
        self.results += 1
        content, count = results_to(part.results)
        last = part.first_sequence + count - 1
        assert last == part.state.last_sequence, f"results end at {last}, the session at {part.state.last_sequence}"
        row = (self._last_result, part.state.session, part.first_sequence, count, content)
        todo[PUT_RESULTS].append((*row, checksum(*row)))
        ledger.add_results(self._last_result, last)

    def _take_registrations(self, rows: list[int], todo: Statements) -> None:
        self.registrations -= len(rows)
        for row in rows:
            todo[TAKE_REGISTRATION].append((row,))
            todo[TAKE_GONE].append((row,))

    def _take_results(self, rows: list[int], todo: Statements) -> None:
        self.results -= len(rows)
        todo[TAKE_RESULTS].extend((row,) for row in rows)
