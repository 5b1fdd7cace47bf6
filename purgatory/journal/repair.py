"""A damaged journal: what is wrong with it, and what of it can be used again.

Damage in anything of a session sets the whole session aside: its client is then told that the session is not known, and
sends again what it waits for. That is better than a session that looks whole and has forgotten some of its waits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.row_codec import is_sound
from purgatory.journal.sql_schema import COLUMNS, MIGRATIONS, SINCE, migrate, select, version_of

Rows = dict[str, list[tuple[Any, ...]]]


class Inspection:
    """What can be read of a journal: sound rows by table, and what is wrong, in words."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.rows: Final[Rows] = {table: [] for table in COLUMNS}
        self.faults: Final[list[str]] = []
        self.set_aside: Final[list[str]] = []
        """Ids of sessions that cannot be used again as a whole."""
        self._hurt: Final[set[int]] = set()
        self._broken: Final[dict[int, str]] = {}
        """Sessions whose own row is not as written, and what it says is their id."""
        self._all_hurt = False
        try:
            said = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            said = str(error)
        if said != "ok":
            self.faults.append(f"the file: {said}")
        version = _version(database)
        for table in COLUMNS:
            if version >= SINCE.get(table, 1):
                self._read(database, table)
        self._weigh()

    def _read(self, database: sqlite3.Connection, table: str) -> None:
        """All rows of a table; where it breaks off, from the other end too."""
        found: dict[Any, tuple[Any, ...]] = {}
        for sql in (select(table), f"{select(table)} DESC"):
            try:
                found.update((row[0], row) for row in database.execute(sql))
                break
            except sqlite3.DatabaseError as error:
                self.faults.append(f"{table}: {error}")
                self._all_hurt |= table in {"sessions", "unheard", "registrations", "gone", "results"}
        for row in sorted(found.values()):
            if is_sound(table, row):
                self.rows[table].append(row)
            else:
                self.faults.append(f"{table}: the row with {COLUMNS[table][0]} {row[0]} is not as written")
                self._hurt_by(table, row)

    def _hurt_by(self, table: str, row: tuple[Any, ...]) -> None:
        if table in {"registrations", "results"}:
            self._hurt.add(row[1])
        elif table in {"sessions", "unheard"}:
            self._hurt.add(row[0])
            if table == "sessions":
                self._broken[row[0]] = str(row[1])
        elif table == "gone":
            self._hurt.update(kept[1] for kept in self.rows["registrations"] if kept[0] == row[0])

    def _weigh(self) -> None:
        """Which sessions are whole; what belongs to the others is left out."""
        known = self._broken | {row[0]: row[1] for row in self.rows["sessions"]}
        if not self._hurt.issubset(known):
            self._all_hurt = True  # nobody knows whose rows those were
        whole = set() if self._all_hurt else set(known) - self._hurt
        self.set_aside.extend(sorted(known[session] for session in set(known) - whole))
        for table in ("sessions", "unheard"):
            self.rows[table] = [row for row in self.rows[table] if row[0] in whole]
        for table in ("registrations", "results"):
            self.rows[table] = [row for row in self.rows[table] if row[1] in whole]
        registrations = {row[0] for row in self.rows["registrations"]}
        self.rows["gone"] = [row for row in self.rows["gone"] if row[0] in registrations]


def _version(database: sqlite3.Connection) -> int:
    """Of the tables; where it cannot be read, all tables are looked for."""
    try:
        return version_of(database)
    except sqlite3.DatabaseError:
        return len(MIGRATIONS)


def inspect(directory: Directory) -> Inspection:
    """Looks at all of a journal. Raises `JournalError` when there is none."""
    if not directory.database.exists():
        raise JournalError(f"there is no journal in {directory.path}")
    with closing(sqlite3.connect(directory.database)) as database:
        return Inspection(database)


def repair(directory: Directory) -> Inspection:
    """Makes a new journal of what can be used again; the old files stay beside it, under another name."""
    inspection = inspect(directory)
    if not inspection.faults:
        return inspection
    mended = directory.path / "journal.db.mended"
    mended.unlink(missing_ok=True)
    with closing(sqlite3.connect(mended, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        migrate(database, str(mended))
        database.execute("BEGIN")
        for table, rows in inspection.rows.items():
            _insert(database, table, rows)
        database.execute("COMMIT")
    aside = _free_name(directory.path)
    for suffix in ("-wal", "-shm", ""):
        path = directory.database.with_name(directory.database.name + suffix)
        if path.exists():
            path.replace(aside.with_name(aside.name + suffix))
    mended.replace(directory.database)
    directory.sync()
    return inspection


def _insert(database: sqlite3.Connection, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - our own names


def _free_name(folder: Path) -> Path:
    number = 1
    while (folder / f"damaged-{number}.db").exists():
        number += 1
    return folder / f"damaged-{number}.db"
