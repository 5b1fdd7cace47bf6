"""The folder of a journal: its files, and the lock that keeps a second daemon out."""

import fcntl
import os
from pathlib import Path
from typing import Final

from purgatory.journal.errors import JournalError, JournalLocked

DATABASE: Final = "journal.db"
LOCK: Final = "lock"


class Directory:
    """A locked folder. The lock ends with the process, however that ends, or with `release`."""

    def __init__(self, path: Path) -> None:
        """Creates the folder if need be. Raises `JournalLocked`, or `JournalError` when it cannot be used."""
        self.path: Final = path
        self.database: Final = path / DATABASE
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: Final = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"cannot use {path} as data folder: {error.strerror or error}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise JournalLocked(
                f"{path} is in use by process {holder}: stop it first, or choose another folder"
            ) from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds without the process id, which is only for error messages

    def release(self) -> None:
        os.close(self._lock)

    def sync(self) -> None:
        """Makes the folder's entries durable: an fsync of a file does not cover its name."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
