"""The tables of the journal and their version. They are in `migrations/`; docs/durability.md describes each table."""

import re
import sqlite3
from contextlib import closing
from importlib.resources import files
from typing import Final

from purgatory.journal.errors import JournalTooNew

APPLICATION_ID: Final = 0x50555247
"""'PURG': lets `file` identify a journal."""

_SCRIPTS: Final = ("1_tables.sql", "2_key_values.sql", "3_key_principals.sql")
MIGRATIONS: Final = tuple(files(__package__).joinpath("migrations", name).read_text("utf-8") for name in _SCRIPTS)
"""Script n turns version n into version n + 1; version 0 is an empty file. After a release, only append to it. One that
only creates tables lets a fleet go back to the release before, until they have rows.
"""


def _readable_from(oldest: int = 3) -> dict[str, int]:
    tables: dict[str, int] = {}
    for version, script in enumerate(MIGRATIONS, 1):
        created = re.findall(r"CREATE TABLE (\w+) \(", script)
        if script.count(";") != len(created) or not created:
            tables = dict.fromkeys(tables, version)
        tables |= dict.fromkeys(created, max(version, oldest))
    return tables


READABLE_FROM: Final = _readable_from()
"""The oldest version, from that of 0.1.0 on, whose programs understand the rows of each table."""
OLDEST: Final = min(READABLE_FROM.values())


def _columns() -> dict[str, tuple[str, ...]]:
    """The columns of each table, as SQLite reads them."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript("".join(MIGRATIONS))
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: tuple(row[1] for row in database.execute(f"PRAGMA table_info({table})")) for table in tables}


COLUMNS: Final = {table: columns[:-1] for table, columns in _columns().items()}
"""The columns of each table, except the last one, which is the checksum."""

SURROGATE_KEYED: Final = {"moment", "partitions", "keys", "key_values", "key_principals"}
"""Tables whose first column is a meaningless number, which is not part of the checksum."""


def select(table: str) -> str:
    """SQL for all rows of a table with all columns, ordered by the first one."""
    columns = COLUMNS[table]
    return f"SELECT {', '.join(columns)}, crc32 FROM {table} ORDER BY {columns[0]}"  # noqa: S608 - our own names


def migrate(database: sqlite3.Connection, name: str, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring a journal to the newest version, one transaction per version.

    Raises:
        JournalTooNew: The file's version is newer than this program.
    """
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise JournalTooNew(
            f"{name} has version {version}; this program supports versions up to {len(migrations)}: run the program "
            "that wrote it, or a newer one"
        )
    for number, script in enumerate(migrations[version:], version + 1):
        # Both pragmas write to the file's header and are part of the transaction, so version and tables change
        # together.
        pragmas = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"
        # `executescript` commits a pending transaction before it starts, so the transaction has to begin inside the
        # script.
        database.executescript(f"BEGIN IMMEDIATE; {script}; {pragmas} COMMIT;")
