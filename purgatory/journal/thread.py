"""The journal's thread: makes one group after the other durable and reports each.

While the disk fails, it keeps the group and retries, so no submitted group is lost. After a failed fsync the file is
rewritten before anything else (`Store.rewrite`).
"""

import logging
import queue
import sqlite3
import threading
from typing import Final

from purgatory.journal.crash_points import AFTER_TELLING, CrashPoints
from purgatory.journal.errors import JournalError
from purgatory.journal.group import Group, Report, WriteFailure
from purgatory.journal.statements import StatementBuilder, Statements
from purgatory.journal.store import FSYNC_FAILED, Store, describe_failure
from purgatory.threads import run_promptly

LOGGER: Final = logging.getLogger(__name__)

RETRY_S: Final = 0.5
IDLE_S: Final = 0.5
"""Maintenance that may delay a commit, such as shrinking the file, starts after this time without a group."""

GROUPS_PER_MAINTENANCE: Final = 32

IOERR: Final = 10
"""Low byte of all SQLite error codes for failed reads and writes."""


class JournalThread:
    """Writes groups: `start`, then `submit` one group at a time, and finally `close`."""

    def __init__(self, store: Store, builder: StatementBuilder, report: Report, crash: CrashPoints) -> None:
        self.errors = 0
        """Number of disk failures."""
        self.bytes = store.size_bytes()
        """Size of the files at the last maintenance."""
        self._store: Final = store
        self._builder: Final = builder
        self._report: Final = report
        self._crash: Final = crash
        self._groups: Final[queue.SimpleQueue[Group | None]] = queue.SimpleQueue()
        self._closing: Final = threading.Event()
        self._must_reopen = False
        self._must_rewrite = False
        self._logged = ""
        """Reason for the last failure; empty once the disk works again. Further failures for it are not logged."""
        self._is_lost = False
        """The files were found to be removed or replaced; reported once."""
        self._groups_unmaintained = 0
        """Groups since the last maintenance. Checking file sizes takes longer than writing a small group."""
        self._thread: Final = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, group: Group) -> None:
        """Submit a group. It must not be modified afterwards."""
        self._groups.put(group)

    def close(self, timeout_s: float) -> bool:
        """Write all submitted groups and end. Return False if that failed or timed out."""
        self._closing.set()
        self._groups.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and self._groups.empty()

    # The thread.

    def _run(self) -> None:
        run_promptly()  # it is woken several times for each group, and the answers wait for it
        try:
            while self._step():
                pass
        except Exception as error:
            LOGGER.exception("the journal's thread has failed")
            self._report(WriteFailure(is_full=False, reason=f"the journal has failed ({error}): restart the daemon"))
        finally:
            # Here and not in `close`, which may time out while this thread is in the middle of a commit.
            self._store.close()

    def _step(self) -> bool:
        """Write the next group, or do maintenance if there is none. Return False at the end."""
        try:
            group = self._groups.get(timeout=IDLE_S)
        except queue.Empty:
            self._check_files()
            # One bounded step at a time: a new group waits for at most one.
            while self._maintain(idle=True) and self._groups.empty():
                pass
            return True
        # It is the last in the queue, so all groups that were submitted before it have been written.
        if group is None:
            return False
        # Translated once, outside the retries, because translating changes the builder's record of the rows.
        if not self._commit(self._builder.statements(group)):
            return False
        self._report(group)
        self._crash.reached(AFTER_TELLING)
        self._groups_unmaintained += 1
        if self._groups_unmaintained >= GROUPS_PER_MAINTENANCE:
            self._maintain(idle=False)
        return True

    def _commit(self, statements: Statements) -> bool:
        """Retry until the group is durable. Return False if the daemon ends before that."""
        while True:
            try:
                self._recover()
                self._store.commit(statements)
            except (sqlite3.Error, JournalError, OSError) as error:
                self._on_failure(error)
                # While the daemon ends, each group gets one attempt and no retries.
                if self._closing.wait(RETRY_S):
                    LOGGER.error("the daemon is exiting, and its last changes could not be written to the journal")  # noqa: TRY400
                    return False
            else:
                self._logged = ""
                return True

    def _recover(self) -> None:
        if self._must_rewrite:
            self._store.rewrite()
            self._must_rewrite = False
            LOGGER.warning("the journal was rewritten after a failed fsync")
        elif self._must_reopen:
            self._store.reopen()
        # Reset only here: if reopening itself fails, the next attempt has to reopen again, or it would use a closed
        # connection.
        self._must_reopen = False

    def _on_failure(self, error: sqlite3.Error | JournalError | OSError) -> None:
        self.errors += 1
        if isinstance(error, sqlite3.Error):
            failure = describe_failure(error)
            code = getattr(error, "sqlite_errorcode", 0)
            if code in FSYNC_FAILED:
                # Not repeated on the same file: the kernel may count the lost pages as written, and a second fsync
                # would succeed.
                self._must_rewrite = True
            elif code & 0xFF == IOERR:
                self._must_reopen = True
        else:
            failure = WriteFailure(is_full=False, reason=str(error))
        if failure.reason != self._logged:
            LOGGER.warning("%s; retrying", failure.reason)
        self._logged = failure.reason
        self._report(failure)

    def _check_files(self) -> None:
        """Check the files while no groups are committed; each commit checks them as well."""
        try:
            self._store.check_files()
        except (JournalError, OSError) as error:
            if not self._is_lost:
                self._is_lost = True
                self._on_failure(error)

    def _maintain(self, *, idle: bool) -> bool:
        """Do a step of maintenance. A failure is only logged: if the disk really fails, the next commit reports it."""
        self._groups_unmaintained = 0
        try:
            more = self._store.maintain(idle=idle)
            self.bytes = self._store.size_bytes()
        except (sqlite3.Error, OSError) as error:
            LOGGER.warning("maintenance of the journal failed (%s); will be retried", error)
            # Also without a group: a checkpoint whose fsync failed may have lost pages of committed groups.
            if getattr(error, "sqlite_errorcode", 0) in FSYNC_FAILED:
                self._must_rewrite = True
            return False
        return more
