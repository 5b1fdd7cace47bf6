"""Snapshots of the journal's file next to the log, so that the log can be trimmed and a new daemon need not read all of
it. The position is in the file itself, so file and position cannot disagree, whichever daemon took the snapshot.
"""

import sqlite3
import tempfile
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.fleet.entry import PART_BYTES_MAX
from purgatory.fleet.replica import PART, SNAPSHOT, Replica, check_rows, read_place
from purgatory.fleet.replicated_log import ReplicatedLog
from purgatory.journal.errors import damaged
from purgatory.journal.store import FILE_WRONG

FASTEST: Final = 1
"""Level of compression: higher ones make it a tenth smaller and take three times as long."""

READ_S: Final = 2.0
"""How long to wait for one entry."""


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


def store_snapshot(database: Path, log: ReplicatedLog) -> None:
    """Store a snapshot of a journal's file that may be in use.

    Args:
        database: The file.
        log: Used by this thread only.

    Raises:
        LogUnavailable: Nothing was stored that a reader would use.
        JournalDamaged: The file is damaged. Nothing was stored.
        sqlite3.Error: The file cannot be read, or there is no space for the copy.
    """
    with tempfile.TemporaryDirectory(prefix=SNAPSHOT, dir=database.parent) as folder:
        copy = Path(folder) / "copy.db"
        # A connection of its own, which only reads: the journal's thread goes on with its commits.
        source = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            source.execute("VACUUM INTO ?", (str(copy),))
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in FILE_WRONG:
                raise damaged(database.parent, str(error)) from None
            raise
        finally:
            source.close()
        copied = sqlite3.connect(copy)
        try:
            position = read_place(copied, database.parent).position
            check_rows(copied, database.parent)  # a damaged snapshot would be all that is left, once the log is trimmed
        finally:
            copied.close()
        content = zlib.compress(copy.read_bytes(), FASTEST)
    log.put_snapshot(position, [content[at : at + PART_BYTES_MAX] for at in range(0, len(content), PART_BYTES_MAX)])


def store_and_trim(database: Path, log: ReplicatedLog) -> LastSnapshot:
    """Store a snapshot, and delete what is before the previous one. It stays, as a reader may be loading it.

    Arguments and errors as in `store_snapshot`, result as in `find_last`.
    """
    previous = log.last_snapshot()
    store_snapshot(database, log)
    if previous is not None:
        log.trim(previous.position + 1)
    return find_last(log)


def load_snapshot(log: ReplicatedLog, replica: Replica) -> bool:
    """Replace a standby's file by the last snapshot.

    Returns:
        Whether there is one.

    Raises:
        LogRefused: The snapshot is damaged.
        LogUnavailable: The log does not answer; the file is unchanged.
    """
    snapshot = log.last_snapshot()
    if snapshot is None:
        return False
    unpacking = zlib.decompressobj()
    path = replica.directory.path / PART
    with path.open("wb") as file:
        for chunk in snapshot.read():
            file.write(unpacking.decompress(chunk))
        file.write(unpacking.flush())
    replica.replace_by(path)
    return True
