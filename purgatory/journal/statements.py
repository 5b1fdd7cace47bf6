"""Translation of groups to SQL: rows to add, change and delete. Built once, so that a failed commit is retried
unchanged.

All statements are idempotent, because a commit that reported an error may have succeeded.
"""

from bisect import bisect_right
from collections import deque
from typing import Any, Final, NamedTuple

from librt.vecs import vec
from mypy_extensions import i64

from purgatory import sizes
from purgatory.engine.batches import PartitionName
from purgatory.engine.snapshot.live_set import LiveSet
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.snapshot.snapshots import SavedKey
from purgatory.journal.group import Group, Moment, SessionChanges
from purgatory.journal.row_codec import Value, checksum, pack_changes, pack_results
from purgatory.journal.sql_schema import COLUMNS

EMPTY_ROWS_MIN: Final = 16
"""Empty rows are removed from the lists once there are this many plus half of all rows. Removing one takes O(n)."""


class RegistrationRow(NamedTuple):
    """A row of registrations, and its operations that are still pending."""

    registration: int
    live: LiveSet


class SessionRows:
    """The rows of one session that are still needed: pending operations of each registration, and unacknowledged
    results.

    The journal's thread keeps them in memory, so that no row is read again while a daemon runs. Ids rise within a
    session, so an operation's row is found by the row's first id. The few operations that have progressed (some of
    their partitions have ended) were moved to a later row.
    """

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


BY_NUMBER: Final = ("registrations", "gone", "results", "sessions", "refused_ids", "dead_letters", "changes")
"""Tables whose first column identifies a row. In the others, that column is a surrogate key."""

UPSERT: Final = {
    table: f"INSERT OR REPLACE INTO {table} VALUES (?{', ?' * len(COLUMNS[table])})"  # noqa: S608 - our own names
    for table in BY_NUMBER
} | {
    "partitions": "INSERT INTO partitions (topic, number, content, crc32) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (topic, number) DO UPDATE SET content = excluded.content, crc32 = excluded.crc32",
    # A replaced row gets a new `place` behind all others, so reading by place returns the keys in the order of their
    # last change, in which they have to be restored.
    "keys": "INSERT OR REPLACE INTO keys (key, count, crc32) VALUES (?, ?, ?)",
    "key_values": "INSERT OR REPLACE INTO key_values (key, failed, value, crc32) VALUES (?, ?, ?, ?)",
    "key_principals": "INSERT OR REPLACE INTO key_principals (key, principal, crc32) VALUES (?, ?, ?)",
    "moment": "INSERT OR REPLACE INTO moment VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
}  # fmt: skip
DELETE: Final = {table: f"DELETE FROM {table} WHERE {COLUMNS[table][0]} = ?" for table in BY_NUMBER} | {  # noqa: S608 - our own names
    "partitions": "DELETE FROM partitions WHERE topic = ? AND number = ?",
    "keys": "DELETE FROM keys WHERE key = ?",
    "key_values": "DELETE FROM key_values WHERE key = ?",
    "key_principals": "DELETE FROM key_principals WHERE key = ?",
}

ORDER: Final = (*UPSERT.values(), *DELETE.values())
"""The order within a transaction. Deletions come last: a group may write a row and end it, or merge it elsewhere."""

NO_ROW: Final[dict[str, tuple[Value, ...]]] = {"key_values": (0, b""), "key_principals": ("",)}
"""What a key has, by table, that has no row there."""

Statements = dict[str, list[tuple[Any, ...]]]
"""Parameters of each execution, by SQL text."""


def moment_of(statements: Statements) -> tuple[Moment, int]:
    """Return the moment and the number of a group."""
    engine_ms, wall_ms, boot_ms, boot_id, number, *_ = statements[UPSERT["moment"]][0]
    return Moment(engine_ms, wall_ms, boot_ms, boot_id), number


class StatementBuilder:
    """Translates groups to statements and keeps track of the rows that exist."""

    def __init__(self) -> None:
        # What is on disk once all statements made so far are committed. Nothing is read back while a daemon runs, so
        # each change of a row has to be recorded here as well.
        self._sessions: Final[dict[int, SessionRows]] = {}
        self._refused_ids: Final[dict[int, bytes]] = {}
        """The rows of `refused_ids`, to write only those that change."""
        self._key_rows: Final[dict[str, dict[str, tuple[Value, ...]]]] = {table: {} for table in NO_ROW}
        """The rows of these tables by key, to write only those that change."""
        self._last_registration = 0
        self._last_result = 0
        self._last_change = 0
        self._change_rows: Final[list[int]] = []
        """Rows of `changes` that are not yet merged."""
        self._unmerged: Final[dict[PartitionName, bytes]] = {}
        """Their combined contents."""
        self.registrations = 0
        """Rows of that table."""
        self.results = 0
        """Rows of that table."""

    # Rows found at start. They must be added in order of their numbers: the next row gets the number after the last.

    def add_existing_registration(self, session: int, registration: int, live: LiveSet) -> None:
        self._last_registration = registration
        self.registrations += 1
        rows = self._rows_of(session)
        if rows.is_above_all(int(live.first)):
            rows.add(registration, live)
        else:
            rows.add_moved(registration, live)

    def add_existing_results(self, session: int, result: int, last_sequence: int) -> None:
        self._last_result = result
        self.results += 1
        self._rows_of(session).add_results(result, last_sequence)

    def add_existing_refused_ids(self, session: int, ranges: bytes) -> None:
        self._refused_ids[session] = ranges

    def add_existing_key(self, saved: SavedKey) -> None:
        key, *_ = saved
        for table, row in _rows_of_key(saved).items():
            if row != NO_ROW[table]:
                self._key_rows[table][key] = row

    def add_existing_changes(self, change: int, changes: list[tuple[PartitionName, bytes]]) -> None:
        self._last_change = change
        self._change_rows.append(change)
        self._unmerged.update(changes)

    # Groups.

    def statements(self, group: Group) -> Statements:
        out: Statements = {sql: [] for sql in ORDER}
        for part in group.sessions:
            if part.dropped:
                self._drop_session(part, out)
            else:
                self._update_session(part, out)
        if group.partitions:
            self._add_partitions(group, out)
        self._update_keys(group, out)
        for letter, content in group.dead_letters:
            _put_or_delete(out, "dead_letters", (letter,), content)
        # Exactly one for each group: see `moment_of`.
        _put(out, "moment", *group.moment, group.number, int(group.is_last))
        return out

    def _update_keys(self, group: Group, out: Statements) -> None:
        for saved in group.keys:
            key, count, *_ = saved
            _put_or_delete(out, "keys", (key,), count)
            for table, row in _rows_of_key(saved).items():
                known = self._key_rows[table]
                if row == known.get(key, NO_ROW[table]):
                    continue
                if row == NO_ROW[table]:
                    del known[key]
                    out[DELETE[table]].append((key,))
                else:
                    known[key] = row
                    _put(out, table, key, *row)

    def _add_partitions(self, group: Group, out: Statements) -> None:
        """Write many partitions as one row of `changes`, which is cheaper than a row for each, and merge those rows
        later.
        """
        self._unmerged.update(group.partitions)
        # Only while no row of `changes` exists: rows of changes override `partitions` at the start, so an older one
        # would undo what is written here.
        few = not self._change_rows and len(group.partitions) <= sizes.JOURNAL_FEW_PARTITIONS
        if not few and len(self._change_rows) < sizes.JOURNAL_CHANGE_ROWS_MAX:
            self._last_change += 1
            self._change_rows.append(self._last_change)
            _put(out, "changes", self._last_change, pack_changes(group.partitions))
            return
        for name, content in self._unmerged.items():
            _put_or_delete(out, "partitions", name, content)
        # The merged rows contain the newest content of each partition, so older rows of changes are all superseded.
        out[DELETE["changes"]].extend((change,) for change in self._change_rows)
        self._change_rows.clear()
        self._unmerged.clear()

    def _drop_session(self, part: SessionChanges, out: Statements) -> None:
        session = part.state.session
        rows = self._sessions.pop(session, None)
        out[DELETE["sessions"]].append((session,))
        self._update_refused_ids(session, b"", out)
        if rows is not None:
            self._delete_registrations(rows.registrations(), out)
            # All of its results, as if they were acknowledged. Those of this group were never written.
            self._delete_results(rows.acknowledge(part.state.last_sequence), out)

    def _update_session(self, part: SessionChanges, out: Statements) -> None:
        state = part.state
        rows = self._rows_of(state.session)
        changed: dict[int, RegistrationRow] = {}
        # Strike from old rows before adding new ones: a progressed operation is in both and must stay in the new one.
        for ended in part.results:
            if not isinstance(ended, list):
                changed.update((row.registration, row) for row in rows.strike(ended.operation_ids))
        if part.progressed is not None and len(part.progressed):
            changed.update((row.registration, row) for row in rows.strike(part.progressed.operation_ids))
        for row in changed.values():
            if row.live.left:
                _put(out, "gone", row.registration, row.live.gone())
        self._delete_registrations([row.registration for row in changed.values() if not row.live.left], out)
        if part.registered is not None and len(part.registered):
            row_id = self._insert_registration(state.session, part.registered, out)
            rows.add(row_id, LiveSet(part.registered.operation_ids, b""))
        if part.progressed is not None and len(part.progressed):
            row_id = self._insert_registration(state.session, part.progressed, out)
            rows.add_moved(row_id, LiveSet(part.progressed.operation_ids, b""))
        self._delete_results(rows.acknowledge(state.acknowledged_sequence), out)
        # Results already acknowledged are not written.
        if part.results and state.last_sequence > state.acknowledged_sequence:
            self._insert_results(part, rows, out)
        _put(out, "sessions", *state)
        self._update_refused_ids(state.session, part.refused_ids, out)

    def _update_refused_ids(self, session: int, ranges: bytes, out: Statements) -> None:
        if ranges == self._refused_ids.get(session, b""):
            return
        self._refused_ids[session] = ranges
        if not ranges:
            del self._refused_ids[session]
        _put_or_delete(out, "refused_ids", (session,), ranges)

    def _rows_of(self, session: int) -> SessionRows:
        return self._sessions.setdefault(session, SessionRows())

    def _insert_registration(self, session: int, saved: SavedOperations, out: Statements) -> int:
        self._last_registration += 1
        self.registrations += 1
        ids = saved.operation_ids
        first, last = ids[0], ids[len(ids) - 1]
        _put(out, "registrations", self._last_registration, session, first, last, len(ids), saved.to_bytes())
        return self._last_registration

    def _insert_results(self, part: SessionChanges, rows: SessionRows, out: Statements) -> None:
        self._last_result += 1
        self.results += 1
        content, count = pack_results(part.results)
        # Two counts of the same results, by the outbox and by the listener. If they differed, results would get wrong
        # numbers after a restart.
        last = part.first_sequence + count - 1
        assert last == part.state.last_sequence, f"results end at {last}, the session at {part.state.last_sequence}"
        _put(out, "results", self._last_result, part.state.session, part.first_sequence, count, content)
        rows.add_results(self._last_result, last)

    def _delete_registrations(self, rows: list[int], out: Statements) -> None:
        self.registrations -= len(rows)
        for row in rows:
            out[DELETE["registrations"]].append((row,))
            out[DELETE["gone"]].append((row,))

    def _delete_results(self, rows: list[int], out: Statements) -> None:
        self.results -= len(rows)
        out[DELETE["results"]].extend((row,) for row in rows)


def _rows_of_key(saved: SavedKey) -> dict[str, tuple[Value, ...]]:
    """The rows of a key in the tables other than `keys`."""
    _, _, value, failed, principal = saved
    return {"key_values": (failed, value), "key_principals": (principal,)}


def _put(out: Statements, table: str, *row: Value) -> None:
    """Add a row and its checksum."""
    out[UPSERT[table]].append((*row, checksum(*row)))


def _put_or_delete(out: Statements, table: str, key: tuple[Value, ...], content: Value) -> None:
    """Add the row with this key, or delete it if it would have no content."""
    if content:
        _put(out, table, *key, content)
    else:
        out[DELETE[table]].append(key)
