"""Faults of a machine: a process that is stopped, a disk that fills up, power cuts that lose unsynced data, and a wall
clock that is changed.

For the last two a library that is loaded into the daemon copies every file that it syncs, and shifts its wall clock.
"""

import asyncio
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.kit.daemon import StartedDaemon

SOURCE: Final = Path(__file__).with_name("machine.c")
FILES: Final = ("journal.db", "journal.db-wal")


class NotPossibleHere(Exception):
    """The machine lacks a prerequisite of the test; the message names it."""


def build_library(folder: Path) -> Path:
    """Compile the library. Raises `NotPossibleHere`."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NotPossibleHere("no C compiler is installed")
    library = folder / "machine.so"
    arguments = ["-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    tried = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise NotPossibleHere(f"it does not compile: {tried.stderr.strip()}")
    return library


async def stopped(process: StartedDaemon, seconds: float) -> float:
    """Stop a process, and continue it after this time. Returns how long it was stopped, in seconds."""
    began_s = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        ended_s = time.monotonic()
        process.send_signal(signal.SIGCONT)
    return ended_s - began_s


class WallClock:
    """The wall clock of one daemon, for all of its code. No other clock is changed."""

    def __init__(self, library: Path, file: Path) -> None:
        self.environment: Final = {"LD_PRELOAD": str(library), "WALL_STEP_FILE": str(file)}
        self._file: Final = file
        file.write_bytes(bytes(8))

    def step(self, step_s: int) -> None:
        """Set how far the clock is off, also while the daemon runs."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", step_s))


class Power:
    """The synced files of one journal. Raises `NotPossibleHere`."""

    def __init__(self, folder: Path) -> None:
        self._durable: Final = folder / "durable"
        self._durable.mkdir(parents=True)
        self._clock: Final = WallClock(build_library(folder), folder / "wall-step")

    def environment(self, wall_step_s: int) -> dict[str, str]:
        """The environment of a daemon whose wall clock is off by `wall_step_s`."""
        self._clock.step(wall_step_s)
        return {**self._clock.environment, "DURABLE_FOLDER": str(self._durable)}

    def fail(self, data: Path) -> None:
        """Restore each file to its state at its last sync."""
        for file in data.glob("journal.db*"):
            file.unlink()
        data.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self._durable / name).exists():
                shutil.copy(self._durable / name, data / name)


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
