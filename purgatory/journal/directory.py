"""The folder of a journal: its files, the lock against a second daemon, and the number of the last group."""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from purgatory.journal.errors import JournalError

DATABASE: Final = "journal.db"
LOCK: Final = "lock"
HOLDER_BYTES: Final = 20
"""Length of the first line of the lock file, the process id of the holder. The second line is the last group's number.
"""


class Directory:
    """A locked folder. The lock is released with the process, however that ends, or by `release`.

    The folder itself is locked, because a lock on a file in it would be lost if the file was removed.
    """

    def __init__(self, path: Path) -> None:
        """Lock the folder. Create it if it does not exist.

        Raises:
            JournalError: It cannot be used, or another process has locked it.
        """
        self.path: Final = path
        self.database: Final = path / DATABASE
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"cannot use {path} as data folder: {error.strerror or error}") from None
        try:
            # Not a POSIX lock (`lockf`): the process would lose it as soon as it closes any descriptor of the same
            # file.
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, HOLDER_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise JournalError(
                f"{path} is in use by process {holder}: stop it first, or choose another folder"
            ) from None
        with contextlib.suppress(OSError):  # disk full: the process id is only used in error messages
            os.pwrite(self._lock, f"{os.getpid():<{HOLDER_BYTES - 1}}\n".encode(), 0)
        self._files: list[tuple[int, int]] = []

    def release(self) -> None:
        descriptors = self._lock, self._folder
        self._lock = self._folder = -1  # a journal thread that is still running must not write to a file opened later
        for descriptor in descriptors:
            os.close(descriptor)

    def note_files(self) -> None:
        """Remember the identity of the open files, for `check_files`."""
        self._files = self._identities()

    def check_files(self) -> None:
        """Check that the folder and its files are still the ones that were opened.

        Writing to a removed file succeeds, but the data is lost at the next restart.

        Raises:
            JournalError: One of them was removed or replaced.
        """
        try:
            if self._identities() == self._files:
                return
        except FileNotFoundError:
            pass
        raise JournalError(f"{self.path}, or a file in it, was removed or replaced: restart the daemon")

    def _identities(self) -> list[tuple[int, int]]:
        # With the log: commits are appended to it, and once its name is gone, the next daemon does not find them.
        # The folder itself is not checked: these files are found through it.
        paths = (self.path / LOCK, self.database, self.path / f"{DATABASE}-wal")
        return [(status.st_dev, status.st_ino) for status in map(os.stat, paths)]

    def note_group(self, number: int) -> None:
        """Store the number of the last group that is in the journal.

        It survives a kill of the process. It is not synced, so a power cut may restore an older number; see `sync`.
        """
        text = f"{number:020}"
        # One write of a fixed length, in place. A new file under the same name would need an fsync of the folder for
        # each group.
        with contextlib.suppress(OSError):  # disk full: an older number is still correct
            os.pwrite(self._lock, f"{text} {zlib.crc32(text.encode()):010}\n".encode(), HOLDER_BYTES)

    def noted_group(self) -> int:
        """The number stored last; 0 if there is none or its checksum is wrong."""
        # A number that was torn by a power cut counts as none: it must not make a complete journal look cut off.
        text, _, crc32 = os.pread(self._lock, 32, HOLDER_BYTES).partition(b" ")
        return int(text) if crc32 == b"%010d\n" % zlib.crc32(text) else 0

    def sync(self) -> None:
        """Make the folder's entries durable, which an fsync of a file does not, and the number of the last group."""
        os.fsync(self._lock)
        os.fsync(self._folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Directory]:
    """Lock an existing folder, so that no daemon can start on it in the meantime. Raises `JournalError`."""
    if not path.is_dir():
        raise JournalError(f"no such folder: {path}")
    directory = Directory(path)
    try:
        yield directory
    finally:
        directory.release()
