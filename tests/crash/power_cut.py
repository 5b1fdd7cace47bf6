"""Power cuts: unsynced data is lost, and the wall clock is changed. A library loaded into the daemon copies every
file that it syncs, and shifts its wall clock.
"""

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from tests.crash.limited_disk import NotPossibleHere

SOURCE: Final = Path(__file__).with_name("machine.c")
FILES: Final = ("journal.db", "journal.db-wal")


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


class WallClock:
    """The wall clock of one daemon, for all of its code. No other clock is changed."""

    def __init__(self, library: Path, file: Path) -> None:
        self.environment: Final = {"LD_PRELOAD": str(library), "WALL_STEP_FILE": str(file)}
        """The environment of the daemon."""
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
