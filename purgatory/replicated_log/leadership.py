"""The lead of this process, from its claim until it exits.

It never becomes a standby again: its memory may differ from the log. A new process starts from the log alone.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from purgatory.journal.crash_points import AFTER_APPEND, AFTER_COMMIT, BEFORE_APPEND, BEFORE_COMMIT, CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged, JournalError
from purgatory.journal.group import Moment
from purgatory.journal.sql_schema import OLDEST
from purgatory.journal.statements import Statements, moment_of
from purgatory.replicated_log.entry import Entry, Kind, pack_rows
from purgatory.replicated_log.errors import FleetLogError
from purgatory.replicated_log.log_writer import LogWriter, PendingAppend
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replica import CopyStore, discard_files, read_place, write_place

LOGGER: Final = logging.getLogger(__name__)

CONFIRMED_MS_MAX: Final = 1_500
HEARTBEAT_S_MAX: Final = 0.5

EXIT_REPLACED: Final = 75
"""EX_TEMPFAIL: the supervisor starts the daemon again, as a standby."""


class Leadership:
    """Appends a leader's entries, on one thread at a time. Implements `recovery.Takeover`."""

    def __init__(
        self,
        folder: Path,
        reign: Reign,
        writer: LogWriter,
        started_ms: int,
        elapsed_ms: Callable[[], int],
        silence_s: float,
    ) -> None:
        """Args:
        reign: At the claim, which `writer` has made.
        started_ms: The engine's time of the last group, milliseconds; `elapsed_ms` returns the time since then.
        silence_s: Time without an entry after which a standby claims.
        """
        # A standby hears three heartbeats in its silence, and claims some time after the last moment of a read here.
        self.heartbeat_s: Final = min(HEARTBEAT_S_MAX, silence_s / 4)
        self.confirmed_ms = min(CONFIRMED_MS_MAX, int(silence_s * 750))
        self.reign: Final = reign
        self.append_ms = 0.0
        """Duration of the last append."""
        self.appended_bytes = 0
        """Content of all entries appended so far."""
        self.logged_ms = 0
        """When the last entry was appended, by the log's clock; 0: none yet."""
        self._has_resigned = False
        self._folder: Final = folder
        self._writer: Final = writer
        self._moment_ms = started_ms
        self._elapsed_ms: Final = elapsed_ms
        self._lock: Final = threading.Lock()
        """Heartbeats during the restore come from another thread than the journal's first group."""
        self._pending: PendingAppend | None = None
        self._began_s = 0.0

    def open_store(self, directory: Directory, crash: CrashPoints) -> "LeaderStore":
        """Open the file whose groups are appended to the log."""
        return LeaderStore(directory, crash, self)

    def passed_ms(self, _last: Moment) -> int:
        """Return the time since the last group. See `Standby.elapsed_ms`."""
        return self._elapsed_ms()

    def begin(self, kind: Kind, moment_ms: int, content: bytes = b"", tables: int = OLDEST) -> None:
        """Send an entry to the log; `finish` must follow. No other thread can append in between."""
        self._lock.acquire()
        self._began_s, self._moment_ms = time.monotonic(), moment_ms
        self.appended_bytes += len(content)
        try:
            self._pending = self._writer.begin(kind, moment_ms, content, tables)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, FleetLogError):
                self.exit(str(error))
            raise

    def finish(self) -> Entry:
        """Return the entry that was sent. If it does not count, or that cannot be known, the process exits."""
        assert self._pending is not None, "nothing was sent"
        try:
            entry = self._pending.finish()
            self.logged_ms = entry.logged_ms
            self.append_ms = (time.monotonic() - self._began_s) * 1_000
            return entry
        except FleetLogError as error:
            self.exit(str(error))
        finally:
            self._pending = None
            self._lock.release()

    def heartbeat(self) -> None:
        """Show that this process is alive while the journal is being restored."""
        if not self._has_resigned:
            self.begin(Kind.HEARTBEAT, self._moment_ms)
            self.finish()

    def resign(self) -> None:
        """Let a standby take over at once. Nothing may be appended afterwards. Only the first call does something."""
        with self._lock:
            if self._has_resigned:
                return
            self._has_resigned = True
            try:
                self._writer.append(Kind.RESIGNATION, self._moment_ms)
                LOGGER.info("resigned from epoch %d", self.reign.state.epoch)
            except FleetLogError as error:
                LOGGER.warning("could not resign (%s); a standby takes over after its silence", error)

    def cannot_serve(self, error: JournalError) -> NoReturn:
        """Hand over, as this daemon's own file cannot be used."""
        self.resign()
        if isinstance(error, JournalDamaged):
            directory = Directory(self._folder)
            discard_files(directory)
            directory.release()
        self.exit(error.what if isinstance(error, JournalDamaged) else str(error))

    @staticmethod
    def exit(reason: str) -> NoReturn:
        """End the process at once: what it could still answer might not be true any more."""
        exit_to_be_restarted(f"no longer the leader: {reason}")


def exit_to_be_restarted(reason: str) -> NoReturn:
    """End the process at once."""
    LOGGER.critical("%s; exiting, to be restarted as a standby", reason)
    os._exit(EXIT_REPLACED)


class LeaderStore(CopyStore):
    """The leader's file. A group is in the log before it is committed here, so the file is a prefix of the log."""

    def __init__(self, directory: Directory, crash: CrashPoints, leadership: Leadership) -> None:
        self._leadership: Final = leadership
        super().__init__(directory, crash)
        self._place = read_place(self._database, directory.path)

    def commit(self, statements: Statements) -> None:
        """Append a group to the log, and commit it. It counts when this returns; otherwise the process exits."""
        failed: sqlite3.Error | None = None
        self.check_files()
        moment, number = moment_of(statements)
        content, tables = pack_rows(statements)
        self._crash.reached(BEFORE_APPEND)
        self._leadership.begin(Kind.GROUP, moment.engine_ms, content, tables)
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._write(statements)
        except sqlite3.Error as error:
            failed = error
        finally:
            # Its outcome must be known before anything else is decided.
            entry = self._leadership.finish()
        self._crash.reached(AFTER_APPEND)
        place = self._place._replace(state=self._leadership.reign.resting, logged_ms=entry.logged_ms)
        try:
            if failed is not None:
                raise failed
            write_place(self._database, place)
            self._crash.reached(BEFORE_COMMIT)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(error)
        self._place = place
        self._directory.note_group(number)
        self._crash.reached(AFTER_COMMIT)

    def check_files(self) -> None:
        """Exit if the files were removed: a copy of the log need not be saved."""
        try:
            super().check_files()
        except JournalError as error:
            self._leadership.resign()
            self._leadership.exit(str(error))

    def rewrite(self) -> None:
        """After a failed fsync: not on this file."""
        self._give_up(sqlite3.OperationalError("an fsync has failed"))

    def _give_up(self, error: sqlite3.Error) -> NoReturn:
        """Hand over: the group is in the log, but this file lacks it. The next process fetches the file again."""
        self._leadership.resign()
        discard_files(self._directory)
        self._leadership.exit(f"cannot write the journal's file ({error})")

    def close(self) -> None:
        """Close the file, and resign. Called after the last group."""
        self._leadership.resign()
        super().close()
