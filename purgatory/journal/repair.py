"""A damaged journal: what is wrong with it, and what of it can be used again.

Damage to any part of a session sets the whole session aside: its client then learns that the session is not known, and
registers its waits again. That is better than a session that looks whole and has forgotten some of its waits. Where
the log has lost groups, any session may have been in them, and all are set aside.
"""

import itertools
import sqlite3
from contextlib import closing
from typing import Any, Final

from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.log_damage import find_damage, open_read_only
from purgatory.journal.row_codec import is_intact
from purgatory.journal.sql_schema import ADDED_IN, COLUMNS, MIGRATIONS, migrate, name_on_disk, select, version_of

Rows = dict[str, list[tuple[Any, ...]]]

BY_SESSION: Final = ("sessions", "awaiting_resume", "principals", "refused_ids", "callbacks", "incarnations")
"""Tables with a row for each session, whose first column is the session."""
OF_SESSIONS: Final = ("registrations", "results")
"""Tables with any number of rows for each session, which is the second column."""


class JournalInspection:
    """What can be read of a journal: intact rows by table, and what is wrong, in words."""

    def __init__(self, database: sqlite3.Connection, log_damage: str | None) -> None:
        self.rows: Final[Rows] = {table: [] for table in COLUMNS}
        self.faults: Final[list[str]] = [] if log_damage is None else [log_damage]
        self.set_aside: Final[list[str]] = []
        """Ids of sessions that cannot be restored."""
        self._damaged: Final[set[int]] = set()
        self._damaged_ids: Final[dict[int, str]] = {}
        """Sessions whose own row is damaged, with the id in that row."""
        self._all_damaged = log_damage is not None
        try:
            answer = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            answer = str(error)
        if answer != "ok":
            self.faults.append(f"the file: {answer}")
        version = _version(database)
        for table in COLUMNS:
            if version >= ADDED_IN.get(table, 1):
                self._read(database, table)
        self._exclude_damaged_sessions()

    def _read(self, database: sqlite3.Connection, table: str) -> None:
        """All rows of a table. Where reading breaks off at a damaged page, the rest is read from the other end."""
        found: dict[Any, tuple[Any, ...]] = {}
        for sql in (select(table), f"{select(table)} DESC"):
            try:
                found.update((row[0], row) for row in database.execute(sql))
                break
            except sqlite3.DatabaseError as error:
                self.faults.append(f"{name_on_disk(table)}: {error}")
                self._all_damaged |= table in {*BY_SESSION, *OF_SESSIONS, "gone"}
        for row in sorted(found.values()):
            if is_intact(table, row):
                self.rows[table].append(row)
            else:
                self.faults.append(
                    f"{name_on_disk(table)}: the row with {COLUMNS[table][0]} {row[0]} is not as written"
                )
                self._mark_damaged(table, row)

    def _mark_damaged(self, table: str, row: tuple[Any, ...]) -> None:
        if table in OF_SESSIONS:
            self._damaged.add(row[1])
        elif table in BY_SESSION:
            self._damaged.add(row[0])
            if table == "sessions":
                self._damaged_ids[row[0]] = str(row[1])
        elif table == "gone":
            self._damaged.update(other[1] for other in self.rows["registrations"] if other[0] == row[0])

    def _exclude_damaged_sessions(self) -> None:
        """Leaves out everything of a session of which anything is damaged."""
        ids = self._damaged_ids | {row[0]: row[1] for row in self.rows["sessions"]}
        if not self._damaged.issubset(ids):
            self._all_damaged = True  # a damaged row names no known session: it may have been any session's
        intact = set() if self._all_damaged else set(ids) - self._damaged
        self.set_aside.extend(sorted(ids[session] for session in set(ids) - intact))
        for table in BY_SESSION:
            self.rows[table] = [row for row in self.rows[table] if row[0] in intact]
        for table in OF_SESSIONS:
            self.rows[table] = [row for row in self.rows[table] if row[1] in intact]
        registrations = {row[0] for row in self.rows["registrations"]}
        self.rows["gone"] = [row for row in self.rows["gone"] if row[0] in registrations]


def _version(database: sqlite3.Connection) -> int:
    """Of the tables; where it cannot be read, the newest, so that all tables are looked for."""
    try:
        return version_of(database)
    except sqlite3.DatabaseError:
        return len(MIGRATIONS)


def inspect(directory: Directory) -> JournalInspection:
    """Reads all of a journal. Raises `JournalError` when there is none."""
    try:
        log_damage = find_damage(directory)
    except sqlite3.DatabaseError:
        log_damage = None  # the file is damaged itself, which the inspection says
    if log_damage is None and not directory.database.exists():
        raise JournalError(f"there is no journal in {directory.path}")
    with closing(open_read_only(directory.database)) as database:
        return JournalInspection(database, log_damage)


def repair(directory: Directory) -> JournalInspection:
    """Makes a new journal of what is intact; the old files stay beside it as damaged-N.db."""
    inspection = inspect(directory)
    if not inspection.faults:
        return inspection
    repaired = directory.path / "journal.db.repaired"
    repaired.unlink(missing_ok=True)
    with closing(sqlite3.connect(repaired, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        migrate(database, str(repaired))
        database.execute("BEGIN")
        for table, rows in inspection.rows.items():
            marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
            database.executemany(f"INSERT INTO {name_on_disk(table)} VALUES ({marks})", rows)  # noqa: S608 - our own names
        database.execute("COMMIT")
    places = (directory.path / f"damaged-{number}.db" for number in itertools.count(1))
    aside = next(place for place in places if not place.exists())
    for suffix in ("-wal", "-shm", ""):
        path = directory.database.with_name(directory.database.name + suffix)
        if path.exists():
            path.replace(aside.with_name(aside.name + suffix))
    repaired.replace(directory.database)
    directory.note_group(0)
    directory.sync()
    return inspection
