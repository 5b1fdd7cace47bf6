"""The tables of the journal, and the migrations of older versions. docs/durability.md describes each table."""

import sqlite3
from typing import Final

from purgatory.journal.errors import JournalTooNew

APPLICATION_ID: Final = 0x50555247
"""'PURG', so that `file` and people can tell."""

VERSION_1: Final = """
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

VERSION_2: Final = """
CREATE TABLE unheard (
    session INTEGER PRIMARY KEY,
    after_sequence INTEGER NOT NULL,
    crc32 INTEGER NOT NULL
);
"""

VERSION_3: Final = """
CREATE TABLE principals (
    session INTEGER PRIMARY KEY,
    principal TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE refused_ids (
    session INTEGER PRIMARY KEY,
    ranges BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
"""
"""Tables of their own: new columns of `sessions` would change the checksums of its rows."""

VERSION_4: Final = """
CREATE TABLE callbacks (
    session INTEGER PRIMARY KEY,
    url TEXT NOT NULL,
    token TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE dead_letters (
    letter INTEGER PRIMARY KEY,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
"""

VERSION_5: Final = """
CREATE TABLE incarnations (
    session INTEGER PRIMARY KEY,
    incarnation TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
"""

MIGRATIONS: Final[tuple[str, ...]] = (VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_5)
"""The script that makes version n + 1 out of version n; version 0 is an empty file. Only ever appended to."""

ADDED_IN: Final = {
    "awaiting_resume": 2, "principals": 3, "refused_ids": 3, "callbacks": 4, "dead_letters": 4, "incarnations": 5,
}  # fmt: skip
"""The version that added a table, where it is not the first."""

NAMES_ON_DISK: Final = {"awaiting_resume": "unheard"}
"""What a table is called on disk, where it goes by another name here: a rename would cost every user a migration."""

COLUMNS: Final = {
    "moment": ("one", "engine_ms", "wall_ms", "boot_ms", "boot_id", "group_number", "clean"),
    "sessions": (
        "session", "session_id", "highest_operation_id", "last_sequence", "acknowledged_sequence", "sequence_shift",
    ),
    "awaiting_resume": ("session", "after_sequence"),
    "principals": ("session", "principal"),
    "refused_ids": ("session", "ranges"),
    "callbacks": ("session", "url", "token"),
    "incarnations": ("session", "incarnation"),
    "dead_letters": ("letter", "content"),
    "registrations": ("registration", "session", "first_operation_id", "last_operation_id", "operations", "content"),
    "gone": ("registration", "bits"),
    "results": ("result", "session", "first_sequence", "results", "content"),
    "partitions": ("place", "topic", "number", "content"),
    "changes": ("change", "content"),
    "keys": ("place", "key", "count"),
}  # fmt: skip
"""The columns of each table, without the checksum, which is the last."""

SURROGATE_KEYED: Final = {"moment", "partitions", "keys"}
"""Tables whose first column is a number without meaning, which the checksum leaves out."""


def name_on_disk(table: str) -> str:
    return NAMES_ON_DISK.get(table, table)


def select(table: str) -> str:
    """SQL for all rows of a table with all columns, in order of the first."""
    columns = COLUMNS[table]
    return f"SELECT {', '.join(columns)}, crc32 FROM {name_on_disk(table)} ORDER BY {columns[0]}"  # noqa: S608 - our own names


def version_of(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def migrate(database: sqlite3.Connection, name: str, migrations: tuple[str, ...] = MIGRATIONS) -> int:
    """Brings a journal to the newest version, one transaction per version; returns the version that it had.

    Raises `JournalTooNew` for one of a later version than this program knows.
    """
    version = version_of(database)
    if version > len(migrations):
        raise JournalTooNew(
            f"{name} is of version {version}, and this program knows versions up to {len(migrations)}: run the "
            f"program that wrote it, or a newer one"
        )
    for number, script in enumerate(migrations[version:], version + 1):
        pragmas = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"
        database.executescript(f"BEGIN IMMEDIATE; {script}; {pragmas} COMMIT;")
    return version
