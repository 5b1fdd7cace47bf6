"""Reads files that settings name, and rereads them once they have changed and are complete."""

import errno
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

Fingerprint = tuple[tuple[int, ...], ...]
"""Device, inode, modification time and size of each file, or the number of the error if it cannot be read."""


def read_regular_file(path: Path) -> bytes:
    """Return the content of a regular file; links are followed.

    Raises OSError for anything else: opening a FIFO would block until another process writes to it.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_bytes()


def fingerprint(*paths: Path) -> Fingerprint:
    """Return a value that changes whenever a file is written, disappears or returns, or is replaced by renaming it or a
    link on its path.
    """
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            found.append((error.errno or 0,))
        else:
            found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


class WatchedFile:
    """A file that is reread on changes. `what` describes it in log lines. `take` reads it and applies its content, or
    raises and changes nothing.
    """

    def __init__(self, what: str, path: Path, take: Callable[[Path], None]) -> None:
        self.what: Final = what
        self._path: Final = path
        self._take: Final = take
        self._taken_as = self._seen = fingerprint(path)

    def take(self) -> None:
        """Read it now. Raises any error that `take` raises."""
        # Before reading, so that a change during the read is found by the next check.
        self._taken_as = self._seen = fingerprint(self._path)
        self._take(self._path)

    def has_settled(self) -> bool:
        """Return whether the file has changed since it was last read, and was the same at two checks. Few files are
        written atomically, and half of a policy may be a valid policy.
        """
        # Two looks apart: a file that is being written changes its size or time between them.
        before, self._seen = self._seen, fingerprint(self._path)
        return self._seen == before and self._seen != self._taken_as
