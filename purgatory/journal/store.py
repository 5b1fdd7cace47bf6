"""The journal's file: opened, written a group at a time, read at start, kept small. One thread uses it at a time."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from purgatory.journal.crash_points import (
    AFTER_CHECKPOINT,
    AFTER_COMMIT,
    AFTER_VACUUM,
    BEFORE_BEGIN,
    BEFORE_COMMIT,
    CrashPoints,
)
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged, JournalError
from purgatory.journal.group import Closed, Moment, SessionState
from purgatory.journal.row_codec import changes_from, is_sound
from purgatory.journal.sql_schema import COLUMNS, migrate, select
from purgatory.journal.statements import ORDER, Statements

PAGE_BYTES: Final = 4_096
WAL_PAGES_MAX: Final = 4_000
"""Pages of the write-ahead log after which it is copied into the file, between two commits, and begun anew in place: to
sync what is written over takes half as long as to sync a file that grows.
"""

WAL_PAGES_KEPT: Final = 2 * WAL_PAGES_MAX
"""What the log has grown to beyond this is cut off when it is begun anew."""

WAL_HEADER: Final = struct.Struct("16x8s8x")
"""The log begins so: eight bytes that are others each time it is begun anew (sqlite.org/fileformat2.html)."""

WAL_FRAME: Final = struct.Struct("8x8s8x")
"""And so each page in it, with the bytes of the log that it was written in."""

VACUUM_PAGES: Final = 512
"""Pages that one step of giving space back may move."""

FREE_PAGES_KEPT: Final = 256
"""Free pages that are left in the file: they will be wanted again."""

REWRITTEN: Final = ".rewritten"
"""Suffix of a whole and durable file that is to take the place of the other."""

FSYNC_FAILED: Final = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class Store:
    """An open journal. Methods raise sqlite3.Error where the disk fails; `explained` says what that means."""

    def __init__(self, directory: Directory, crash: CrashPoints) -> None:
        """Opens the file, or makes it. Raises `JournalError`."""
        self._directory: Final = directory
        self._crash: Final = crash
        self._database = self._open()

    # Opening.

    def _open(self) -> sqlite3.Connection:
        path = self._directory.database
        try:
            self._finish_rewrite()
            database = _connect(path)
            try:
                _prepare(database, str(path))
                self._directory.sync()
            except BaseException:
                database.close()
                raise
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
                raise damaged(self._directory.path, f"the file is no longer a database ({error})") from None
            raise JournalError(f"cannot open {path}: {error}") from None
        except OSError as error:
            raise JournalError(f"cannot open {path}: {error.strerror or error}") from None
        return database

    def reopen(self) -> None:
        """Forgets what the connection believes, after the disk has failed it."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._database = self._open()

    def rewrite(self) -> None:
        """Writes all that is known to be durable into a new file, which takes the place of the old one.

        After a failed fsync the system may take pages for written that are not, and trying again would succeed without
        writing them: so nothing that was written since the last good one is relied on.
        """
        fresh = self._beside(".new")
        self.reopen()
        fresh.unlink(missing_ok=True)
        self._database.execute("VACUUM INTO ?", (str(fresh),))
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(self._beside(REWRITTEN))
        self._directory.sync()
        self._database.close()
        self._database = self._open()

    def _finish_rewrite(self) -> None:
        """A file that was written anew takes its place. What the old one had is all in it, so a log that stayed beside
        the old one must go first.
        """
        rewritten = self._beside(REWRITTEN)
        if rewritten.exists():
            for suffix in ("-wal", "-shm"):
                self._beside(suffix).unlink(missing_ok=True)
            rewritten.replace(self._directory.database)
            self._directory.sync()

    def close(self) -> None:
        """Gives the file up; what was committed is kept."""
        self._database.close()

    # Writing.

    def commit(self, statements: Statements) -> None:
        """One transaction. It is durable when this returns."""
        self._crash.reached(BEFORE_BEGIN)
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            for sql in ORDER:
                if statements[sql]:
                    database.executemany(sql, statements[sql])
            self._crash.reached(BEFORE_COMMIT)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        self._crash.reached(AFTER_COMMIT)

    def tidy(self, *, at_rest: bool) -> bool:
        """A bounded step of keeping the files small; whether there is more to do. `at_rest`: nothing waits for it."""
        if at_rest and self._free_pages() > FREE_PAGES_KEPT:
            self._database.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
            self._crash.reached(AFTER_VACUUM)
            return True
        if at_rest and self._wal_bytes():
            self._checkpoint("TRUNCATE")
        elif self._is_log_long():
            self._checkpoint("PASSIVE")  # waits for nobody who reads
        return False

    def _checkpoint(self, mode: str) -> None:
        self._database.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._crash.reached(AFTER_CHECKPOINT)

    def _wal_bytes(self) -> int:
        wal = self._beside("-wal")
        return wal.stat().st_size if wal.exists() else 0

    def _is_log_long(self) -> bool:
        """Whether so many pages were written since it was begun anew: the last of them is of this log.

        The log's index would say it shorter, but who closes that file gives up the locks that SQLite has on it.
        """
        place = WAL_HEADER.size + (WAL_PAGES_MAX - 1) * (WAL_FRAME.size + PAGE_BYTES)
        if self._wal_bytes() < place + WAL_FRAME.size:
            return False
        with self._beside("-wal").open("rb") as log:
            header = log.read(WAL_HEADER.size)
            log.seek(place)
            return WAL_HEADER.unpack(header) == WAL_FRAME.unpack(log.read(WAL_FRAME.size))

    def _beside(self, suffix: str) -> Path:
        path = self._directory.database
        return path.with_name(path.name + suffix)

    def _free_pages(self) -> int:
        return int(self._database.execute("PRAGMA freelist_count").fetchone()[0])

    def size_bytes(self) -> int:
        """Of all its files."""
        return self._directory.database.stat().st_size + self._wal_bytes()

    # Reading. Each raises `JournalDamaged` at the first row that cannot be trusted.

    def verify(self) -> None:
        """The file's own structure. Raises `JournalDamaged`."""
        try:
            said = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            said = str(error)
        if said != "ok":
            raise damaged(self._directory.path, f"the file is broken: {said}")

    def moment(self) -> tuple[Moment, int, bool] | None:
        """The last moment, the number of the last group, and whether the last daemon ended in good order."""
        for row in self._rows("moment"):
            return Moment(*row[1:5]), row[5], bool(row[6])
        return None

    def sessions(self) -> Iterator[SessionState]:
        """Of each session."""
        for row in self._rows("sessions"):
            yield SessionState(*row)

    def unheard(self) -> Iterator[tuple[int, int]]:
        """(session, the sequence number above which its client may have other results)."""
        for row in self._rows("unheard"):
            yield row[0], row[1]

    def partitions(self) -> Iterator[tuple[tuple[str, int], bytes]]:
        """(name, content) in order of first mention."""
        for _, topic, number, content in self._rows("partitions"):
            yield (topic, number), content

    def changes(self) -> Iterator[tuple[int, list[tuple[tuple[str, int], bytes]]]]:
        """(row, partitions that changed later than the rows of `partitions` say)."""
        for change, content in self._rows("changes"):
            yield change, changes_from(content)

    def signal_keys(self) -> Iterator[tuple[str, int]]:
        """(key, count), those signalled last at the end."""
        for _, key, count in self._rows("keys"):
            yield key, count

    def registrations(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """(row, session, content, bits of who is gone)."""
        bits = dict(self._rows("gone"))
        for row in self._rows("registrations"):
            yield row[0], row[1], row[5], bits.get(row[0], b"")

    def results(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """(row, session, first sequence number, how many, content)."""
        for row in self._rows("results"):
            yield row[0], row[1], row[2], row[3], row[4]

    def count(self, table: str) -> int:
        """Rows of a table."""
        return int(self._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - ours

    def _rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """All rows of a table in order of its first column."""
        folder = self._directory.path
        try:
            for row in self._database.execute(select(table)):
                if not is_sound(table, row):
                    raise damaged(folder, f"the row of {table} with {COLUMNS[table][0]} {row[0]} is not as written")
                yield row[:-1]
        except sqlite3.DatabaseError as error:
            raise damaged(folder, f"table {table} cannot be read: {error}") from None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)


def _prepare(database: sqlite3.Connection, name: str) -> None:
    """Settings of the connection, and the newest version of the tables."""
    pragmas = (
        f"page_size = {PAGE_BYTES}",
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        "synchronous = FULL",
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {WAL_PAGES_KEPT * PAGE_BYTES}",
        "busy_timeout = 5000",
        "temp_store = MEMORY",
    )
    for pragma in pragmas:
        database.execute(f"PRAGMA {pragma}").fetchall()
    migrate(database, name)


def damaged(folder: Path, what: str) -> JournalDamaged:
    """The error for a journal that cannot be trusted."""
    return JournalDamaged(
        f"the journal in {folder} is damaged: {what}. `purgatory journal check {folder}` says what is left, `purgatory "
        f"journal repair {folder}` sets the rest aside"
    )


def explained(error: sqlite3.Error) -> Closed:
    """What an error of the disk means for those who want something kept."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL:
        return Closed(is_full=True, reason=f"the journal has no room on its disk ({error}): free some")
    return Closed(is_full=False, reason=f"the journal cannot be written ({error})")
