"""The journal's database: opening, reading, committing groups, maintenance. Used by one thread at a time."""

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from purgatory.engine.marks.registry import NO_VALUE
from purgatory.engine.snapshot.snapshots import SavedKey
from purgatory.journal import crash_points
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.group import Moment, WriteFailure
from purgatory.journal.integrity import changed_row, missing_groups
from purgatory.journal.row_codec import is_intact
from purgatory.journal.sql_schema import migrate, select
from purgatory.journal.statements import ORDER, Statements, moment_of

PAGE_BYTES: Final = 4_096

WAL_HEADER: Final = struct.Struct(">16x8s8x")
"""Header of the write-ahead log (sqlite.org/fileformat2.html): the salt, which changes at each restart of the log."""

WAL_FRAME: Final = struct.Struct(">8x8s8x")
"""Header of a frame, before its page: the salt of the log that it belongs to."""

WAL_PAGES_MAX: Final = 4_000
"""Pages of the write-ahead log after which it is checkpointed, between two commits, and overwritten from its start.

It is not truncated, because syncing a file of constant size takes half as long as syncing one that grows.
"""

WAL_PAGES_KEPT: Final = 2 * WAL_PAGES_MAX
"""A log that has grown beyond this is truncated when it is restarted."""

PRIVATE: Final = 0o600
"""Mode of the files: they contain names, values and marks of all callers."""
VACUUM_PAGES: Final = 512
"""Maximum of pages that one step of incremental vacuum moves."""

FREE_PAGES_KEPT: Final = 256
"""Free pages that are kept in the file for reuse."""

REWRITTEN: Final = ".rewritten"
"""Suffix of a complete and durable file that will replace the journal."""

FILE_WRONG: Final = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR}
"""Errors that are not the disk's."""

FSYNC_FAILED: Final = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class Store:
    """An open journal. Methods raise sqlite3.Error where the disk fails; see `describe_failure`."""

    def __init__(self, directory: Directory, crash: crash_points.CrashPoints) -> None:
        """Open the file, or create it.

        Raises:
            JournalError: It cannot be opened, or is damaged.
        """
        self._directory: Final = directory
        self._crash: Final = crash
        self._database = self._open()

    # Opening.

    def _open(self) -> sqlite3.Connection:
        path = self._directory.database
        try:
            self._finish_rewrite()
            missing = missing_groups(self._directory)  # before SQLite writes to the file, which would hide it
            if missing is not None:
                raise damaged(self._directory.path, missing)
            path.touch(mode=PRIVATE)  # SQLite gives its log the same mode
            # Without an isolation level the module begins no transactions of its own. The connection is opened on the
            # event loop's thread and used by the journal's.
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
            try:
                _prepare(database, str(path))
                self._directory.sync()
                self._directory.note_files()
            except BaseException:
                database.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise typed_error(path, error) from None
        return database

    def reopen(self) -> None:
        """Open a new connection: after an I/O error the cache of the old one cannot be trusted."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._database = self._open()

    def rewrite(self) -> None:
        """Copy everything that is known to be durable to a new file, which replaces the old one.

        After a failed fsync the kernel may have marked dirty pages as clean, and a second fsync would succeed without
        writing them. So nothing that was written since the last successful fsync can be relied on.
        """
        new_file = self._sibling(".new")
        # With a new connection: what the old one has cached may not be in the file.
        self.reopen()
        new_file.unlink(missing_ok=True)
        new_file.touch(mode=PRIVATE)
        self._database.execute("VACUUM INTO ?", (str(new_file),))
        with new_file.open("rb") as written:
            os.fsync(written.fileno())
        # Under an intermediate name: `_finish_rewrite` has to remove the old log before the file becomes the journal,
        # and it can repeat that after a crash.
        new_file.replace(self._sibling(REWRITTEN))
        self._directory.sync()
        self._database.close()
        self._database = self._open()

    def _finish_rewrite(self) -> None:
        """Replace the journal by the rewritten file, if there is one, possibly from before a crash.

        The old file's log must be deleted first: SQLite would replay it into the new file, which already contains it.
        """
        rewritten = self._sibling(REWRITTEN)
        if rewritten.exists():
            for suffix in ("-wal", "-shm"):
                self._sibling(suffix).unlink(missing_ok=True)
            rewritten.replace(self._directory.database)
            self._directory.sync()

    def close(self) -> None:
        self._database.close()

    # Writing.

    def commit(self, statements: Statements) -> None:
        """Commit one transaction. It is durable when this returns."""
        self._crash.reached(crash_points.BEFORE_BEGIN)
        self.check_files()
        with self._transaction():
            self._write(statements)
            self._crash.reached(crash_points.BEFORE_COMMIT)
        # After the commit, never before it: the journal must not end before the stored number.
        self._directory.note_group(moment_of(statements)[1])
        self._crash.reached(crash_points.AFTER_COMMIT)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # Takes the write lock now. A plain BEGIN takes it with the first change, and the transaction could fail as busy
        # in its middle.
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:  # commits, or rolls back
            yield

    def _write(self, statements: Statements) -> None:
        """Execute statements in the transaction that is open."""
        for sql in ORDER:
            if statements[sql]:
                self._database.executemany(sql, statements[sql])

    def check_files(self) -> None:
        """See `Directory.check_files`."""
        self._directory.check_files()

    def maintain(self, *, idle: bool) -> bool:
        """Do one bounded step of maintenance; return whether there is more to do. `idle`: no commit is waiting."""
        if not idle:
            self._directory.sync()  # after a power cut, only damage to groups since then goes undetected
        if idle and self._free_pages() > FREE_PAGES_KEPT:
            # Not `execute`: the pragma returns no rows, so the module stops after its first step, which frees one page.
            self._database.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES});")
            self._crash.reached(crash_points.AFTER_VACUUM)
            return True
        # Only while no commit waits: TRUNCATE waits for readers, and a log that has to grow again takes twice as long
        # to sync as one of constant size.
        if idle and self._wal_bytes():
            self._checkpoint("TRUNCATE")
        elif self._is_wal_full():
            self._checkpoint("PASSIVE")  # does not wait for readers
        return False

    def _checkpoint(self, mode: str) -> None:
        # Sync first. Until the log is restarted, a log that is readable only in part would mix its pages with newer
        # ones in the file; the number of the last group detects that, after a power cut only if it is durable.
        self._directory.sync()
        self._database.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._crash.reached(crash_points.AFTER_CHECKPOINT)

    def _wal_bytes(self) -> int:
        wal = self._sibling("-wal")
        return wal.stat().st_size if wal.exists() else 0

    def _is_wal_full(self) -> bool:
        """Whether WAL_PAGES_MAX pages were written since the log was restarted: the last of them then has its salt.

        The log's index (-shm) has this number, but closing any descriptor of that file in this process would drop the
        POSIX locks that SQLite holds on it.
        """
        place = WAL_HEADER.size + (WAL_PAGES_MAX - 1) * (WAL_FRAME.size + PAGE_BYTES)
        if self._wal_bytes() < place + WAL_FRAME.size:
            return False
        with self._sibling("-wal").open("rb") as log:
            (salt,) = WAL_HEADER.unpack(log.read(WAL_HEADER.size))
            log.seek(place)
            return bool(WAL_FRAME.unpack(log.read(WAL_FRAME.size)) == (salt,))

    def _sibling(self, suffix: str) -> Path:
        path = self._directory.database
        return path.with_name(path.name + suffix)

    def _free_pages(self) -> int:
        return int(self._database.execute("PRAGMA freelist_count").fetchone()[0])

    def size_bytes(self) -> int:
        return self._directory.database.stat().st_size + self._wal_bytes()

    # Reading.

    def verify(self, check: str = "quick_check") -> None:
        """Check the structure of the file by this pragma; integrity_check also compares the indexes with their tables.

        Raises:
            JournalDamaged: It is broken.
        """
        try:
            answer = self._database.execute(f"PRAGMA {check}(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            answer = str(error)
        if answer != "ok":
            raise damaged(self._directory.path, f"the file is broken: {' '.join(answer.split())}")

    def moment(self) -> tuple[Moment, int, bool] | None:
        """Moment and number of the last group, and whether the daemon shut down cleanly; None in a new journal."""
        for _, engine_ms, wall_ms, boot_ms, boot_id, number, is_clean in self.rows("moment"):
            return Moment(engine_ms, wall_ms, boot_ms, boot_id), number, bool(is_clean)
        return None

    def count(self, table: str) -> int:
        return int(self._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - ours

    def signal_keys(self) -> list[SavedKey]:
        """All keys, in the order in which they have to be restored. Raises `JournalDamaged`."""
        values = {key: (value, failed) for _, key, failed, value in self.rows("key_values")}
        principals = {key: principal for _, key, principal in self.rows("key_principals")}
        return [
            (key, count, *values.get(key, (NO_VALUE, 0)), principals.get(key, ""))
            for _, key, count in self.rows("keys")
        ]

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """See `intact_rows`."""
        return intact_rows(self._database, self._directory.path, table)


def _prepare(database: sqlite3.Connection, name: str) -> None:
    """Configure the connection and migrate the tables to the newest version."""
    pragmas = (
        # The page size and auto_vacuum take effect only in a file without tables, and the page size only before WAL
        # mode. FULL syncs the log at each commit, which NORMAL does not.
        f"page_size = {PAGE_BYTES}",
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        "synchronous = FULL",
        # By `maintain`, between two groups: SQLite would checkpoint within a commit, while answers wait for it.
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {WAL_PAGES_KEPT * PAGE_BYTES}",
        "busy_timeout = 5000",
        "temp_store = MEMORY",
        # Some builds of SQLite overwrite deleted content with zeros, and write further pages only for that.
        "secure_delete = FAST",
    )
    for pragma in pragmas:
        database.execute(f"PRAGMA {pragma}").fetchall()
    migrate(database, name)


def intact_rows(database: sqlite3.Connection, folder: Path, table: str) -> Iterator[tuple[Any, ...]]:
    """All rows of a table, with the values of its `COLUMNS`, ordered by the first one.

    Raises:
        JournalDamaged: The checksum of a row is wrong, or the table cannot be read.
    """
    try:
        for row in database.execute(select(table)):
            if not is_intact(table, row):
                raise damaged(folder, changed_row(table, row[0]))
            yield row[:-1]
    except sqlite3.DatabaseError as error:
        raise damaged(folder, f"table {table} cannot be read: {error}") from None


def typed_error(path: Path, error: sqlite3.Error | OSError) -> JournalError:
    """The error for a file that cannot be opened or read."""
    if isinstance(error, OSError):
        return JournalError(f"cannot open {path}: {error.strerror or error}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # Read-only although it may be written: its header is wrong. ERROR: it lacks a table, or has one too many.
    if code in FILE_WRONG or (code == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK)):
        return damaged(path.parent, f"the file is no longer a database ({error})")
    return JournalError(f"cannot open {path}: {error}")


def describe_failure(error: sqlite3.Error) -> WriteFailure:
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL:
        return WriteFailure(is_full=True, reason=f"no space left for the journal ({error}): free some disk space")
    return WriteFailure(is_full=False, reason=f"cannot write the journal ({error})")
