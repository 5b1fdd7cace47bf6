"""Checks that a journal is complete and unchanged. Nothing here writes to it.

A changed row fails its checksum, and a broken file fails SQLite's own check. Neither shows a lost tail: SQLite takes
the first frame of the write-ahead log with a wrong checksum for the end and silently drops all later commits. It has
to, because a power cut may tear the last commit. So the number of the last committed group is also stored outside the
database, in the lock file (`Directory.note_group`), and a journal that ends before that group is refused.
docs/durability.md states what this detects.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.row_codec import is_intact
from purgatory.journal.sql_schema import COLUMNS, select


def missing_groups(directory: Directory) -> str | None:
    """Return a description of the groups that are missing at the end; None if there are none.

    Raises:
        sqlite3.DatabaseError: The file cannot be read.
    """
    noted = directory.noted_group()
    if not noted:
        return None
    last = 0
    if is_present(directory.database):
        with closing(open_read_only(directory.database)) as database:
            if database.execute("PRAGMA user_version").fetchone()[0]:  # else the tables themselves were in the lost log
                # total() is 0 without rows, where sum() would be NULL: the table is empty between its creation and the
                # first group.
                last = int(database.execute("SELECT total(group_number) FROM moment").fetchone()[0])
    if last >= noted:
        return None
    return f"{directory.database.name} or its -wal was cut off or changed: it ends with group {last} of {noted}"


def faults(directory: Directory) -> tuple[list[str], dict[str, int]]:
    """Read everything. Return descriptions of all faults, and the number of intact rows by table.

    Raises:
        JournalError: There is no journal in the folder.
    """
    # With a number of a last group there was a journal, so a missing file is a fault.
    if not is_present(directory.database) and not directory.noted_group():
        raise JournalError(f"there is no journal in {directory.path}")
    found: list[str] = []
    rows = dict.fromkeys(COLUMNS, 0)
    try:
        missing = missing_groups(directory)
        found += [] if missing is None else [missing]
        if is_present(directory.database):
            with closing(open_read_only(directory.database)) as database:
                answers = database.execute("PRAGMA integrity_check").fetchall()
                found += [f"{directory.database.name}: {answer}" for (answer,) in answers if answer != "ok"]
                for table in COLUMNS:
                    for row in database.execute(select(table)):
                        if is_intact(table, row):
                            rows[table] += 1
                        else:
                            found.append(changed_row(table, row[0]))
    except sqlite3.DatabaseError as error:
        found.append(f"{directory.database.name} cannot be read: {error}")
    return found, rows


def changed_row(table: str, key: object) -> str:
    return f"checksum mismatch in table {table}, row with {COLUMNS[table][0]} = {key}"


def is_present(database: Path) -> bool:
    return database.exists() and database.stat().st_size > 0


def open_read_only(database: Path) -> sqlite3.Connection:
    """Open without changing anything: a writing connection copies the log into the file when it is closed."""
    # After a crash while the journal mode was being changed, only a writer can roll back; there is no log at that time.
    mode = "rw" if database.with_name(f"{database.name}-journal").exists() else "ro"
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode={mode}", uri=True)
