"""Snapshots of the journal's file next to the log, so that the log can be trimmed and a new daemon need not read all of
it. The position is in the file itself, so file and position cannot disagree, whichever daemon took the snapshot.
"""

import logging
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.journal.errors import JournalDamaged, damaged
from purgatory.journal.sql_schema import MIGRATIONS, OLDEST, READABLE_FROM, migrate
from purgatory.journal.store import FILE_WRONG
from purgatory.replicated_log.entry import PART_BYTES_MAX
from purgatory.replicated_log.errors import LogRefused
from purgatory.replicated_log.replica import PART, SNAPSHOT, LogPlace, Replica, check_rows, read_place, start_place
from purgatory.replicated_log.replicated_log import ReplicatedLog, Snapshot

LOGGER: Final = logging.getLogger(__name__)

FASTEST: Final = 1
"""Level of compression: higher ones make it a tenth smaller and take three times as long."""

READ_S: Final = 2.0
"""How long to wait for one entry."""

SQLITE_HEADER: Final = struct.Struct(">16sH10xI")
"""The beginning of a database: magic, bytes of a page, pages."""
SQLITE_MAGIC: Final = b"SQLite format 3\0"
UNPACKED_BYTES: Final = 1 << 20
"""How much is decompressed at once."""


class LastSnapshot(NamedTuple):
    """How far the last snapshot reaches."""

    position: int = -1
    """Position of the last entry that it includes; -1: there is no snapshot."""
    logged_ms: int = 0
    """When that entry was appended, by the log's clock; without a snapshot, the first entry. 0: not known."""

    def age_s(self, logged_ms: int) -> float:
        """Its age when another entry was appended. By the log's clock, as those of the daemons may differ."""
        return max(0, logged_ms - self.logged_ms) / 1_000 if self.logged_ms else 0.0


def find_last(log: ReplicatedLog) -> LastSnapshot:
    """Return how far the last snapshot reaches. Raises `FleetLogError`."""
    snapshot = log.last_snapshot()
    position = -1 if snapshot is None else snapshot.position
    entries = log.read(max(0, position), READ_S)  # trimming keeps it
    return LastSnapshot(position, entries[0].logged_ms if entries else 0)


def store_snapshot(database: Path, log: ReplicatedLog, place: LogPlace | None = None) -> int:
    """Store a snapshot of a journal's file that may be in use, and return its position.

    Args:
        database: The file.
        log: Used by this thread only.
        place: The place of a journal that is not a copy of a log yet.

    Raises:
        LogUnavailable: Nothing was stored that a reader would use.
        JournalDamaged: The file is damaged. Nothing was stored.
        sqlite3.Error: The file cannot be read, or there is no space for the copy.
    """
    with tempfile.TemporaryDirectory(prefix=SNAPSHOT, dir=database.parent) as folder:
        copy = Path(folder) / "copy.db"
        # A connection of its own, which only reads: the journal's thread goes on with its commits.
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source:
            try:
                source.execute("VACUUM INTO ?", (str(copy),))
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in FILE_WRONG:
                    raise damaged(database.parent, str(error)) from None
                raise
        with closing(sqlite3.connect(copy, isolation_level=None)) as copied:
            if place is not None:
                start_place(copied, place)
            position = read_place(copied, database.parent).position
            check_rows(copied, database.parent)  # a damaged snapshot would be all that is left, once the log is trimmed
            drop_new_tables(copied)
        content = zlib.compress(copy.read_bytes(), FASTEST)
    log.put_snapshot(position, [content[at : at + PART_BYTES_MAX] for at in range(0, len(content), PART_BYTES_MAX)])
    return position


def drop_new_tables(database: sqlite3.Connection) -> None:
    """Turn a file back to the oldest version that has all its rows, so that daemons of that version can load it."""
    for version in range(len(MIGRATIONS), OLDEST, -1):
        tables = [table for table, readable_from in READABLE_FROM.items() if readable_from == version]
        if any(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables):  # noqa: S608 - ours
            return
        for table in tables:
            database.execute(f"DROP TABLE {table}")
        database.execute(f"PRAGMA user_version = {version - 1}")


def store_and_trim(database: Path, log: ReplicatedLog) -> LastSnapshot:
    """Store a snapshot, and delete what is before the previous one. It stays, as a reader may be loading it.

    Arguments and errors as in `store_snapshot`, result as in `find_last`.
    """
    previous = log.last_snapshot()
    position = store_snapshot(database, log)
    if previous is not None:
        log.trim(min(previous.position, position))
    return find_last(log)


def load_snapshot(log: ReplicatedLog, replica: Replica) -> bool:
    """Replace a standby's file by the last snapshot that can be decoded.

    Returns:
        Whether there is one that has more than the file.

    Raises:
        JournalTooNew: It is of a later release. As in the following cases, the file is unchanged.
        LogLost: It has another history than the file.
        LogUnavailable: The log does not answer.
    """
    path = replica.directory.path / PART
    snapshot = log.last_snapshot()
    while snapshot is not None and snapshot.position > replica.place.position:
        try:
            unpack(snapshot, path)
        except LogRefused as error:
            LOGGER.warning("%s; trying the snapshot before it", error)
            snapshot = log.last_snapshot(snapshot.position)
        else:
            replica.replace_by(path)
            return True
    return False


def unpack(snapshot: Snapshot, path: Path) -> LogPlace:
    """Write the content of a snapshot to a file, and return its place. Raises LogUnavailable, JournalTooNew, or
    LogRefused: it cannot be decoded.
    """
    try:
        with path.open("wb") as file:
            file.writelines(_decompressed(snapshot.read()))
        with closing(sqlite3.connect(path)) as database:
            migrate(database, f"the snapshot of position {snapshot.position}")
            place = read_place(database, path.parent)
            check_rows(database, path.parent)
    except (zlib.error, ValueError, sqlite3.Error, JournalDamaged) as error:
        what = error.what if isinstance(error, JournalDamaged) else error
        raise LogRefused(f"the snapshot of position {snapshot.position} cannot be used ({what})") from None
    return place


def _decompressed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a file in pieces of limited size. Raises ValueError, zlib.error if it is not a whole journal."""
    unpacking, size, left = zlib.decompressobj(), 0, 0
    for chunk in chunks:
        packed = chunk
        while packed:
            piece = unpacking.decompress(packed, UNPACKED_BYTES)
            packed = unpacking.unconsumed_tail
            left = left - len(piece) if size else _size_of_file(piece) - len(piece)
            size += len(piece)
            if left < 0:
                raise ValueError("it is longer than its header says")
            yield piece
    rest = unpacking.flush()
    if not size or left != len(rest):
        raise ValueError("it is not complete")
    yield rest


def _size_of_file(beginning: bytes) -> int:
    """The size of a file of SQLite by its header. Raises ValueError."""
    magic, page_bytes, pages = SQLITE_HEADER.unpack_from(beginning.ljust(SQLITE_HEADER.size, b"\0"))
    if magic != SQLITE_MAGIC:
        raise ValueError("it is not a journal")
    return int(page_bytes * pages)
