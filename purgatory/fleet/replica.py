"""The journal's file as a copy of the log: which entries it includes, and how a standby adds further ones.

The file may be discarded at any time: everything in it is in the log, or in the last snapshot next to it.
"""

import logging
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.fleet.entry import Entry, Kind, unpack_rows
from purgatory.fleet.reign import ReignState
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged, JournalError
from purgatory.journal.group import Moment
from purgatory.journal.statements import ORDER, UPSERT, Statements
from purgatory.journal.store import Store

LOGGER: Final = logging.getLogger(__name__)

MARK: Final = "copy-of-a-log"
"""An empty file in the folder. Without it, a journal is nobody's copy, and must not be discarded."""

PLACE_TABLE: Final = """
CREATE TABLE IF NOT EXISTS log_place (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    writer BLOB NOT NULL,
    logged_ms INTEGER NOT NULL,
    leader TEXT NOT NULL,
    own_writer BLOB NOT NULL
)
"""


class LogPlace(NamedTuple):
    """What a file includes of the log."""

    # In the order of the columns.
    position: int = -1
    epoch: int = 0
    number: int = 0
    writer: bytes = b""
    logged_ms: int = 0
    """When its last group was appended, by the log's clock; 0: it has none."""
    leader: str = ""
    """The leader's addresses, for people; empty: there is none."""
    own_writer: bytes = b""
    """The writer with which a daemon with this file last led."""

    @property
    def state(self) -> ReignState:
        return ReignState(self.position, self.epoch, self.number, self.writer)

    def at(self, state: ReignState) -> "LogPlace":
        return self._replace(position=state.position, epoch=state.epoch, number=state.number, writer=state.writer)


def read_place(database: sqlite3.Connection) -> LogPlace:
    """Return the place of a file; the beginning of the log for a new one."""
    database.execute(PLACE_TABLE)
    row = database.execute(f"SELECT {', '.join(LogPlace._fields)} FROM log_place").fetchone()  # noqa: S608 - our own
    return LogPlace(*row) if row else LogPlace()


def write_place(database: sqlite3.Connection, place: LogPlace) -> None:
    """Store the place, in the transaction of the rows that it is about."""
    database.execute("INSERT OR REPLACE INTO log_place VALUES (1, ?, ?, ?, ?, ?, ?, ?)", place)


class CopyStore(Store):
    """A file that needs no fsync for each commit: after a power failure it may be older, but it is never torn."""

    def _open(self) -> sqlite3.Connection:
        database = super()._open()
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(PLACE_TABLE)
        return database

    def write(self, statements: Statements) -> None:
        """Execute statements in the transaction that is open."""
        for sql in ORDER:
            if statements[sql]:
                self._database.executemany(sql, statements[sql])


class Replica(CopyStore):
    """The file of a standby. A damaged one is discarded. Its folder is locked until `release`."""

    def __init__(self, folder: Path) -> None:
        """Raises `JournalError`."""
        self.directory: Final = Directory(folder)
        try:
            try:
                self._start()
            except JournalDamaged as damaged:
                if not is_copy(folder):
                    raise
                LOGGER.warning("%s; it is discarded, and fetched again from the log", damaged)
                self.discard()
        except BaseException:
            self.directory.release()
            raise

    def _start(self) -> None:
        super().__init__(self.directory, CrashPoints())
        self.verify()
        self.place = read_place(self._database)
        found = self.moment()
        folder = self.directory.path
        if found is not None and not is_copy(folder):
            raise JournalError(
                f"{folder} contains a journal that is not in the log: start a fleet with it (purgatory fleet init "
                "--from), or choose another folder"
            )
        (folder / MARK).touch()
        self.moment_ms = 0 if found is None else found[0].engine_ms
        """The engine's time of the last group, milliseconds."""

    def discard(self) -> None:
        """Start with an empty file."""
        if hasattr(self, "_database"):
            self.close()
        discard_files(self.directory)
        self._start()

    def replace_by(self, path: Path) -> None:
        """Take a complete file, of any daemon of the fleet, as this one's."""
        self.close()
        discard_files(self.directory)
        path.replace(self.directory.database)
        self._start()
        # The daemon that took the snapshot led then. This one must not believe that it did.
        self.place = self.place._replace(own_writer=b"")
        write_place(self._database, self.place)

    def apply(self, entry: Entry, state: ReignState) -> None:
        """Add a valid entry to the file.

        Args:
            entry: A whole group, or another entry.
            state: The state of the reign after it.
        """
        place = self.place.at(state)
        statements: Statements | None = None
        if entry.kind is Kind.GROUP:
            statements = unpack_rows(entry)
            place = place._replace(logged_ms=entry.logged_ms)
        elif entry.kind is Kind.CLAIM:
            place = place._replace(leader=f"{entry.address} (HTTP: {entry.http_address})")
        elif entry.kind is Kind.RESIGNATION:
            place = place._replace(leader="")
        else:
            return  # the next group includes it
        self._database.execute("BEGIN IMMEDIATE")
        try:
            if statements is not None:
                self.write(statements)
            write_place(self._database, place)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self.place = place
        if statements is not None:
            moment, number = moment_of(statements)
            self.moment_ms = moment.engine_ms
            self.directory.note_group(number)

    def note_lead(self, claim: Entry, state: ReignState) -> None:
        """Remember that this daemon leads, so that it claims first after a restart."""
        self.place = self.place._replace(own_writer=claim.writer)
        self.apply(claim, state)

    def release(self) -> None:
        """Close the file and unlock the folder."""
        self.close()
        self.directory.release()


def moment_of(statements: Statements) -> tuple[Moment, int]:
    """Return the moment and the number of a group."""
    engine_ms, wall_ms, boot_ms, boot_id, number, *_ = statements[UPSERT["moment"]][0]
    return Moment(engine_ms, wall_ms, boot_ms, boot_id), number


def discard_files(directory: Directory) -> None:
    """Remove the journal's files. The lock file then no longer names a group that a new file would lack."""
    directory.note_group(0)
    for path in directory.path.glob(f"{directory.database.name}*"):
        path.unlink()


def is_copy(folder: Path) -> bool:
    """Whether the journal in a folder is a copy of a fleet's log."""
    return (folder / MARK).exists()


def forget_place(path: Path) -> None:
    """Turn a file into one that is no copy of a log."""
    database = sqlite3.connect(path)
    try:
        database.execute("DROP TABLE IF EXISTS log_place")
    finally:
        database.close()
