"""Reads the files that settings name."""

import errno
import stat
from pathlib import Path


def read_regular_file(path: Path) -> bytes:
    """The content of a regular file; links are followed.

    Raises OSError for anything else: opening a FIFO would block until another process writes to it.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_bytes()
