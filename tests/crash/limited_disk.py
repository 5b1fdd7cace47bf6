"""A disk that fills up: the operating system prevents the daemon from growing any file."""

import resource
import sqlite3
from contextlib import closing
from pathlib import Path


class NotPossibleHere(Exception):
    """The machine lacks a prerequisite of the test; the message names it."""


class LimitedDisk:
    """Space for a daemon's journal in `folder`. Raises `NotPossibleHere`."""

    def __init__(self, folder: Path) -> None:
        if not hasattr(resource, "prlimit"):
            raise NotPossibleHere("limits of another process cannot be set here")
        folder.mkdir(parents=True)
        self.folder = folder
        self._pid = 0

    def fill(self, pid: int) -> None:
        """Make writes of the process `pid` fail."""
        self._pid = pid
        self._limit(0)

    def free(self) -> None:
        if self._pid:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size_bytes: int) -> None:
        try:
            _, most = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (most if size_bytes < 0 else size_bytes, most))
        except ProcessLookupError:
            self._pid = 0


def fold_log(data: Path) -> None:
    """Checkpoint and truncate the log of a stopped daemon. With a long log the next daemon could write without
    needing new space, although the disk is full.
    """
    with closing(sqlite3.connect(data / "journal.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
