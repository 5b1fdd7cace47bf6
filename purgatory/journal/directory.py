"""The folder of a journal: its files, the lock that keeps a second daemon out, and the number of its last group."""

import contextlib
import fcntl
import os
import zlib
from pathlib import Path
from typing import Final

from purgatory.journal.errors import JournalError, JournalLocked

DATABASE: Final = "journal.db"
LOCK: Final = "lock"
HOLDER_BYTES: Final = 20
"""The first line of the lock file: the process id of the holder. The second is the last group's number."""


class Directory:
    """A locked folder. The lock ends with the process, however that ends, or with `release`.

    The folder itself is locked: a lock on a file in it would end when somebody removes the file.
    """

    def __init__(self, path: Path) -> None:
        """Creates the folder if need be. Raises `JournalLocked`, or `JournalError` when it cannot be used."""
        self.path: Final = path
        self.database: Final = path / DATABASE
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(f"cannot use {path} as data folder: {error.strerror or error}") from None
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, HOLDER_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise JournalLocked(
                f"{path} is in use by process {holder}: stop it first, or choose another folder"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the process id is only for error messages
            os.pwrite(self._lock, f"{os.getpid():<{HOLDER_BYTES - 1}}\n".encode(), 0)
        self._files: list[tuple[int, int]] = []

    def release(self) -> None:
        descriptors = self._lock, self._folder
        self._lock = self._folder = -1  # a thread of the journal that does not end must not write to a later file
        for descriptor in descriptors:
            os.close(descriptor)

    def note_files(self) -> None:
        """The database is open: from now on `check_files` finds what becomes of the files."""
        self._files = self._identities()

    def check_files(self) -> None:
        """Raises `JournalError` if the folder or one of its files is no longer the one that was opened.

        Writing to a removed file succeeds, and nothing of it is there after a restart.
        """
        try:
            if self._identities() == self._files:
                return
        except FileNotFoundError:
            pass
        raise JournalError(f"{self.path}, or a file in it, was removed or replaced: restart the daemon")

    def _identities(self) -> list[tuple[int, int]]:
        paths = (self.path, self.path / LOCK, self.database, self.path / f"{DATABASE}-wal")
        return [(status.st_dev, status.st_ino) for status in map(os.stat, paths)]

    def note_group(self, number: int) -> None:
        """Notes that all groups up to this one are in the journal; 0: none need be.

        It is not synced: a kill of the process does not take it back, a power cut may.
        """
        text = f"{number:020}"
        with contextlib.suppress(OSError):  # a full disk: an older note is true as well
            os.pwrite(self._lock, f"{text} {zlib.crc32(text.encode()):010}\n".encode(), HOLDER_BYTES)

    def noted_group(self) -> int:
        """The number noted last; 0 if there is none, or it is not as written."""
        text, _, crc32 = os.pread(self._lock, 32, HOLDER_BYTES).partition(b" ")
        return int(text) if crc32 == b"%010d\n" % zlib.crc32(text) else 0

    def sync(self) -> None:
        """Makes the folder's entries durable, which an fsync of a file does not, and the note."""
        os.fsync(self._lock)
        os.fsync(self._folder)
