"""The journal's thread: takes groups one after the other, makes each durable, and tells.

While the disk fails it holds the group and tries again, so nothing that was taken is forgotten; when it succeeds at
last, that is told like any other. After a failed fsync the file is written anew before anything else (`Store.rewrite`).
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from typing import Final

from purgatory.journal.crash_points import AFTER_TELLING, CrashPoints
from purgatory.journal.errors import JournalError
from purgatory.journal.group import Closed, Group, Tell
from purgatory.journal.statements import Bookkeeper, Statements
from purgatory.journal.store import FSYNC_FAILED, Store, explained

LOGGER: Final = logging.getLogger(__name__)

RETRY_S: Final = 0.5
REST_S: Final = 0.5
"""Without a group for so long, there is time to give space back."""

GROUPS_UNTIDIED_MAX: Final = 32

IOERR: Final = 10
"""SQLite's codes of failed reads and writes have this in their low byte."""


class JournalThread:
    """Keeps groups. `start` it, `submit` one group at a time, `close` it at the end."""

    def __init__(
        self, store: Store, bookkeeper: Bookkeeper, tell: Tell, crash: CrashPoints, retry_s: float = RETRY_S
    ) -> None:
        self.errors = 0
        """Times that the disk failed."""
        self.bytes = store.size_bytes()
        """Of the files, when last looked."""
        self._store: Final = store
        self._books: Final = bookkeeper
        self._tell: Final = tell
        self._crash: Final = crash
        self._retry_s: Final = retry_s
        self._groups: Final[queue.SimpleQueue[Group | None]] = queue.SimpleQueue()
        self._closing: Final = threading.Event()
        self._must_reopen = False
        self._must_rewrite = False
        self._untidied = 0
        """Groups since the files were last looked at, which costs more than a small group."""
        self._thread: Final = threading.Thread(target=self._work, name="journal", daemon=True)

    def start(self) -> None:
        """Begins to keep."""
        self._thread.start()

    def submit(self, group: Group) -> None:
        """Hands a group over; it and what is in it must not change any more."""
        self._groups.put(group)

    def close(self, timeout_s: float) -> bool:
        """Keeps what was handed over and ends; False: it could not, or not in this time."""
        self._closing.set()
        self._groups.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and self._groups.empty()

    # The thread.

    def _work(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            LOGGER.exception("the journal's thread has ended")
            self._tell(Closed(is_full=False, reason=f"the journal has failed ({error}): restart the daemon"))
        finally:
            self._store.close()

    def _turn(self) -> bool:
        """The next group, or a step of tidying when none comes; False: that was the end."""
        more = True
        try:
            group = self._groups.get(timeout=REST_S)
        except queue.Empty:
            more = self._tidy(at_rest=True)
            while more and self._groups.empty():
                more = self._tidy(at_rest=True)
            return True
        if group is None:
            return False
        if not self._keep(self._books.statements(group)):
            return False
        self._tell(group)
        self._crash.reached(AFTER_TELLING)
        self._untidied += 1
        if self._untidied >= GROUPS_UNTIDIED_MAX:
            self._tidy(at_rest=False)
        return True

    def _keep(self, statements: Statements) -> bool:
        """Until it is durable; False: it never was, and the daemon ends."""
        while True:
            try:
                self._mend()
                self._store.commit(statements)
            except (sqlite3.Error, JournalError, OSError) as error:
                self._note(error)
                if self._closing.wait(self._retry_s):
                    LOGGER.error("the daemon ends, and its last changes are not in the journal")  # noqa: TRY400
                    return False
            else:
                return True

    def _mend(self) -> None:
        if self._must_rewrite:
            self._store.rewrite()
            self._must_rewrite = False
            LOGGER.warning("the journal was written anew after a failed fsync")
        elif self._must_reopen:
            self._store.reopen()
        self._must_reopen = False

    def _note(self, error: sqlite3.Error | JournalError | OSError) -> None:
        self.errors += 1
        if isinstance(error, sqlite3.Error):
            closed = explained(error)
            code = getattr(error, "sqlite_errorcode", 0)
            if code in FSYNC_FAILED:
                self._must_rewrite = True
            elif code & 0xFF == IOERR:
                self._must_reopen = True
        else:
            closed = Closed(is_full=False, reason=str(error))
        LOGGER.warning("%s; trying again", closed.reason)
        self._tell(closed)

    def _tidy(self, *, at_rest: bool) -> bool:
        """A step of keeping the files small. That it fails is told when a commit does."""
        self._untidied = 0
        try:
            more = self._store.tidy(at_rest=at_rest)
            self.bytes = self._store.size_bytes()
        except (sqlite3.Error, OSError) as error:
            LOGGER.warning("tidying the journal failed (%s); it goes on", error)
            if getattr(error, "sqlite_errorcode", 0) in FSYNC_FAILED:
                self._must_rewrite = True
            return False
        return more
