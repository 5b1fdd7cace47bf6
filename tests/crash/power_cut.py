"""Power cuts: unsynced data is lost, and the wall clock is changed. A library loaded into the daemon copies every
file that it syncs.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.crash.limited_disk import NotPossibleHere

SOURCE: Final = Path(__file__).with_name("machine.c")
FILES: Final = ("journal.db", "journal.db-wal")


class Power:
    """The synced files of one journal. Raises `NotPossibleHere`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise NotPossibleHere("no C compiler is installed")
        self._durable: Final = folder / "durable"
        self._durable.mkdir(parents=True)
        library = folder / "machine.so"
        arguments = ["-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
        tried = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
        if tried.returncode:
            raise NotPossibleHere(f"it does not compile: {tried.stderr.strip()}")
        self._library: Final = library

    def environment(self, wall_step_s: int) -> dict[str, str]:
        """The environment of a daemon whose wall clock is off by `wall_step_s`."""
        folder, library = str(self._durable), str(self._library)
        return {"LD_PRELOAD": library, "DURABLE_FOLDER": folder, "WALL_STEP_S": str(wall_step_s)}

    def fail(self, data: Path) -> None:
        """Restore each file to its state at its last sync."""
        for file in data.glob("journal.db*"):
            file.unlink()
        data.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self._durable / name).exists():
                shutil.copy(self._durable / name, data / name)
