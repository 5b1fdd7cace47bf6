"""The journal's file as a copy of the log: which entries it includes, and how a standby adds further ones.

The file may be discarded at any time: everything in it is in the log, or in the last snapshot next to it.
"""

import logging
import os
import shutil
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged, JournalError, JournalTooNew, damaged
from purgatory.journal.row_codec import checksum
from purgatory.journal.sql_schema import COLUMNS
from purgatory.journal.statements import Statements, moment_of
from purgatory.journal.store import Store, intact_rows, typed_error
from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import LogLost
from purgatory.replicated_log.reign import ReignState

LOGGER: Final = logging.getLogger(__name__)

MARK: Final = "copy-of-a-log"
"""An empty file in the folder. Without it, a journal is nobody's copy, and must not be discarded."""

PLACE_TABLE, CLAIMS_TABLE = (
    files(__package__).joinpath(f"{name}.sql").read_text("utf-8") for name in ("log_place", "log_claims")
)
CLAIMS_KEPT: Final = 10_000

PART: Final = "snapshot.part"
"""A snapshot that is being loaded."""
SNAPSHOT: Final = "snapshot-"
"""Beginning of the name of a folder with a snapshot that is being stored."""


class LogPlace(NamedTuple):
    """The part of the log that a file includes. The columns of its table are the fields of the state, then the others.

    Attributes:
        state: The state of a reader after the last entry that is included.
    """

    state: ReignState = ReignState()
    logged_ms: int = 0
    """When its last group was appended, by the log's clock; 0: it has none."""
    leader: str = ""
    """The leader's addresses, for people; empty: there is none."""
    own_writer: bytes = b""
    """The writer with which a daemon with this file last led."""

    @property
    def position(self) -> int:
        """Position of the last entry that is included; -1: none."""
        return self.state.position

    @property
    def row(self) -> tuple[int | str | bytes, ...]:
        return (*self.state, *self[1:])


def read_place(database: sqlite3.Connection, folder: Path) -> LogPlace:
    """Return the place of a file; the beginning of the log for a new one. Raises `JournalDamaged`."""
    database.execute(PLACE_TABLE)
    size = len(ReignState._fields)
    columns = ", ".join((*ReignState._fields, *LogPlace._fields[1:]))
    for *values, crc32 in database.execute(f"SELECT {columns}, crc32 FROM log_place"):  # noqa: S608 - our own names
        place = LogPlace(ReignState(*values[:size]), *values[size:])
        if [*map(type, values)] != [*map(type, LogPlace().row)] or checksum(*values) != crc32:
            raise damaged(folder, "checksum mismatch in table log_place")
        return place
    return LogPlace()


def write_place(database: sqlite3.Connection, place: LogPlace) -> None:
    """Store the place, in the transaction of the rows that it is about."""
    values, state = (*place.row, checksum(*place.row)), place.state
    database.execute(f"INSERT OR REPLACE INTO log_place VALUES (1{', ?' * len(values)})", values)  # noqa: S608 - ours
    if 0 <= state.position == state.claim_position:
        claim = state.epoch, state.claim_position, state.claim_writer
        database.execute("INSERT OR REPLACE INTO log_claims VALUES (?, ?, ?)", claim)
        database.execute("DELETE FROM log_claims WHERE epoch < ?", (state.epoch - CLAIMS_KEPT,))


def start_place(database: sqlite3.Connection, place: LogPlace) -> None:
    """Make a file that has no place yet a copy of a log."""
    database.execute(PLACE_TABLE)
    database.execute(CLAIMS_TABLE)
    write_place(database, place)


def check_descends(later: sqlite3.Connection, folder: Path, place: ReignState) -> None:
    """Raise LogLost unless the history of a later file contains that of a file with this state."""
    rows = later.execute("SELECT * FROM log_claims WHERE epoch BETWEEN ? AND ?", (place.epoch, place.epoch + 1))
    claims = {epoch: (position, writer) for epoch, position, writer in rows}
    following, _ = claims.get(place.epoch + 1, (place.position + 1, b""))
    if (
        read_place(later, folder).state.log_id != place.log_id
        or claims.get(place.epoch) != (place.claim_position, place.claim_writer)
        or following <= place.position
    ):
        raise LogLost(
            f"the last snapshot does not contain what the file in {folder} has, the claim of epoch {place.epoch} or "
            "entries after it: the file belongs to another log, or this one was made again, or restored from a backup"
        )


def check_rows(database: sqlite3.Connection, folder: Path) -> None:
    """Read all rows. Raises `JournalDamaged`."""
    for table in COLUMNS:
        for _ in intact_rows(database, folder, table):
            pass


class CopyStore(Store):
    """A file that needs no fsync for each commit: after a power failure it may be older, but it is never torn."""

    def _open(self) -> sqlite3.Connection:
        database = super()._open()
        try:
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(PLACE_TABLE)
            database.execute(CLAIMS_TABLE)
        except sqlite3.Error as error:
            database.close()
            raise typed_error(self._directory.database, error) from None
        return database


class Replica(CopyStore):
    """The file of a standby. A damaged one is discarded. Its folder is locked until `release`."""

    def __init__(self, folder: Path) -> None:
        """Raises `JournalError`."""
        self.directory: Final = Directory(folder)
        try:
            discard_parts(folder)
            try:
                self._start()
            # A wrong version can be damage. If it is not, the log is too new as well, and says so.
            except (JournalDamaged, JournalTooNew) as error:
                if not is_copy(folder):
                    raise
                why = error.what if isinstance(error, JournalDamaged) else error
                LOGGER.warning("the copy in %s cannot be used (%s); it is discarded, and fetched again", folder, why)
                self.discard()
        except BaseException:
            self.directory.release()
            raise

    def _start(self) -> None:
        folder = self.directory.path
        super().__init__(self.directory, CrashPoints())
        # Everything, and now: a standby only writes to its file, and would find the damage when it takes over.
        self.verify("integrity_check")
        check_rows(self._database, folder)
        self.place = read_place(self._database, folder)
        found = self.moment()
        if found is not None and not is_copy(folder):
            raise JournalError(
                f"{folder} contains a journal that is not in the log: start a fleet with it (purgatory fleet init "
                "--from), or choose another folder"
            )
        if not is_copy(folder):
            (folder / MARK).touch()
            # Before the first group: after a power failure, groups without this file would not be a copy.
            self.directory.sync()
        self.moment_ms = 0 if found is None else found[0].engine_ms
        """The engine's time of the last group, milliseconds."""

    def discard(self) -> None:
        """Start with an empty file."""
        if hasattr(self, "_database"):
            self.close()
        discard_files(self.directory)
        self._start()

    def replace_by(self, path: Path) -> None:
        """Take a complete file, of any daemon of the fleet, as this one's. Raises LogLost if it has another history."""
        if self.place.position >= 0:
            with closing(sqlite3.connect(path)) as later:
                check_descends(later, self.directory.path, self.place.state)
        with path.open("rb") as complete:
            os.fsync(complete.fileno())  # a power failure must not leave its name without its content
        self.close()
        discard_files(self.directory)
        path.replace(self.directory.database)
        self._start()
        # The daemon that took the snapshot led then. This one must not believe that it did.
        self.place = self.place._replace(own_writer=b"")
        write_place(self._database, self.place)

    def check_writable(self) -> None:
        """Write to the file, to no effect. Raises sqlite3.Error."""
        with self._transaction():
            write_place(self._database, self.place)

    def apply(self, entry: Entry, state: ReignState) -> None:
        """Add a valid entry to the file, which is then in this state of the reign. A group must be whole."""
        place = self.place._replace(state=state)
        statements: Statements | None = None
        if entry.kind is Kind.GROUP:
            assert entry.rows is not None, f"position {entry.position} was not decoded"
            statements = entry.rows
            place = place._replace(logged_ms=entry.logged_ms)
        elif entry.kind is Kind.CLAIM:
            place = place._replace(leader=f"{entry.address} (HTTP: {entry.http_address})")
        elif entry.kind is Kind.RESIGNATION:
            place = place._replace(leader="")
        elif entry.kind is Kind.HEARTBEAT:
            return  # the next group includes it
        with self._transaction():
            if statements is not None:
                self._write(statements)
            write_place(self._database, place)
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


def discard_files(directory: Directory) -> None:
    """Remove the journal's files. The lock file then no longer names a group that a new file would lack."""
    directory.note_group(0)
    for path in directory.path.glob(f"{directory.database.name}*"):
        path.unlink()


def discard_parts(folder: Path) -> None:
    """Remove unfinished snapshots of processes that were killed."""
    (folder / PART).unlink(missing_ok=True)
    for path in folder.glob(f"{SNAPSHOT}*"):
        shutil.rmtree(path)


def is_copy(folder: Path) -> bool:
    """Whether the journal in a folder is a copy of a fleet's log."""
    return (folder / MARK).exists()


def forget_place(path: Path) -> None:
    """Turn a copy of a log into a plain file."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE IF EXISTS log_place")
        database.execute("DROP TABLE IF EXISTS log_claims")
