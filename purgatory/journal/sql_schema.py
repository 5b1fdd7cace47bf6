"""The tables of the journal and their version. docs/durability.md describes each table."""

import sqlite3
from contextlib import closing
from typing import Final

from purgatory.journal.errors import JournalTooNew

APPLICATION_ID: Final = 0x50555247
"""'PURG': lets `file` identify a journal."""

SCHEMA: Final = """
CREATE TABLE moment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    engine_ms INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL,
    boot_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    group_number INTEGER NOT NULL,
    clean INTEGER NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE sessions (
    session INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    highest_operation_id INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    acknowledged_sequence INTEGER NOT NULL,
    sequence_shift INTEGER NOT NULL,
    uncertain_after INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    principal TEXT NOT NULL,
    callback_url TEXT NOT NULL,
    callback_token TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE refused_ids (
    session INTEGER PRIMARY KEY,
    ranges BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE dead_letters (
    letter INTEGER PRIMARY KEY,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE registrations (
    registration INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    first_operation_id INTEGER NOT NULL,
    last_operation_id INTEGER NOT NULL,
    operations INTEGER NOT NULL,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE gone (
    registration INTEGER PRIMARY KEY,
    bits BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE results (
    result INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    results INTEGER NOT NULL,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE partitions (
    place INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL,
    UNIQUE (topic, number)
);
CREATE TABLE changes (
    change INTEGER PRIMARY KEY,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE keys (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    count INTEGER NOT NULL,
    crc32 INTEGER NOT NULL
);
"""

KEY_VALUES: Final = """
CREATE TABLE key_values (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    failed INTEGER NOT NULL,
    value BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
"""
"""Keys with a value, and those that failed. A table of its own, because a further column of `keys` would invalidate the
checksums of its rows.
"""

KEY_PRINCIPALS: Final = """
CREATE TABLE key_principals (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    principal TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
"""
"""Keys that belong to a principal."""

MIGRATIONS: Final = (SCHEMA, KEY_VALUES, KEY_PRINCIPALS)
"""Script n turns version n into version n + 1; version 0 is an empty file. After a release, only append to it."""


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
