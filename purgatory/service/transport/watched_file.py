"""Files that settings name: how they are read, and one that is read again once it has changed and is complete."""

import errno
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

Fingerprint = tuple[int, ...]


def read_regular_file(path: Path) -> bytes:
    """The content of a regular file; links are followed.

    Raises OSError for anything else: opening a FIFO would block until another process writes to it.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_bytes()


class WatchedFile:
    """`what` it is, for people; `take` reads it and puts what it says in force, or raises and changes nothing."""

    def __init__(self, what: str, path: Path, take: Callable[[Path], None]) -> None:
        self.what: Final = what
        self._path: Final = path
        self._take: Final = take
        self._taken_as = self._seen = _fingerprint(path)

    def take(self) -> None:
        """Reads it now. Raises what `take` raises."""
        self._taken_as = self._seen = _fingerprint(self._path)  # before it is read: a change meanwhile is seen later
        self._take(self._path)

    def has_settled(self) -> bool:
        """Whether it is another file than was last read, and was the same for two looks: few are written all at once,
        and half of a policy may be a policy.
        """
        before, self._seen = self._seen, _fingerprint(self._path)
        return self._seen == before and self._seen != self._taken_as


def _fingerprint(path: Path) -> Fingerprint:
    try:
        status = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return status.st_mtime_ns, status.st_ino, status.st_size
