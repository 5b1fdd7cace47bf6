"""Disks that fill up: a file system of a few megabytes, or a limit on file sizes if mounting is not permitted."""

import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

SIZE_MB: Final = 64
CHUNK: Final = bytes(65_536)


class NotPossibleHere(Exception):
    """The machine lacks a prerequisite of the test; the message names it."""


class LimitedDisk(Protocol):
    """Space for a daemon's journal in `folder`."""

    folder: Path

    def fill(self, pid: int) -> None:
        """Make writes of the process `pid` fail."""

    def free(self) -> None:
        pass


class SmallFileSystem:
    """A `LimitedDisk` on its own file system, which is filled with one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler: Final = folder / "filler"

    def fill(self, pid: int) -> None:
        try:
            with self._filler.open("wb", buffering=0) as file:
                while file.write(CHUNK):
                    pass
        except OSError:
            return
        raise AssertionError(f"{self.folder} does not fill up")

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class FileSizeLimit:
    """A `LimitedDisk` in any folder: the operating system prevents the process from growing any file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pid = 0

    def fill(self, pid: int) -> None:
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


@contextmanager
def small_file_system(folder: Path) -> Iterator[LimitedDisk]:
    """A file system mounted on a new folder. Raises `NotPossibleHere` if mounting is not permitted."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None:
        raise NotPossibleHere("mount is not installed")
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={SIZE_MB}m", "purgatory-crash-test", str(folder)]
    tried = subprocess.run([mount, *options], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise NotPossibleHere(f"cannot mount a file system: {tried.stderr.strip()}")
    try:
        yield SmallFileSystem(folder)
    finally:
        subprocess.run([unmount, "--lazy", str(folder)], check=True)


@contextmanager
def file_size_limit(folder: Path) -> Iterator[LimitedDisk]:
    """A folder in which a process can be prevented from writing. Raises `NotPossibleHere` if the system cannot do
    that.
    """
    if not hasattr(resource, "prlimit"):
        raise NotPossibleHere("limits of another process cannot be set here")
    folder.mkdir(parents=True)
    yield FileSizeLimit(folder)


def fold_log(data: Path) -> None:
    """Checkpoint and truncate the log of a stopped daemon. With a long log the next daemon could write without
    needing new space, although the disk is full.
    """
    with closing(sqlite3.connect(data / "journal.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


DISKS: Final = (small_file_system, file_size_limit)
