"""A Java whose Spark and Kafka start from archives of loaded classes (AppCDS), for all tests that start them.

Loading and verifying classes takes most of the processor time of a JVM that runs for seconds: until its first queries
have run, Spark takes 11 s without an archive and 5 s with one; a Kafka broker takes 2.5 s and 1.1 s to start.

They also compile with the first compiler only, unless told otherwise. An archive is made by a training run
(tests/java_training.py) on first use, in .build/java. It is valid for the same Java and the same jars only; any other
Java program ignores it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
HOME: Final = ROOT / ".build" / "java"
"""The JAVA_HOME of tests: the installed one with another `bin/java`."""
_DUMP: Final = "PURGATORY_ARCHIVE_CLASSES"
"""An environment variable: the file to which a training run writes the archive at its end."""
_LAUNCHER: Final = Path(__file__).with_name("quick_java.sh")
"""A template with the names of folders and of a variable in braces."""


def use_quick_java() -> None:
    """Make this process and its children run Java from HOME. Without an installed Java, does nothing."""
    given = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{given}/bin" if given else None)
    installed = Path(java).resolve().parent.parent if java else HOME
    if given == str(HOME) or not (installed / "lib" / "modules").exists():
        return
    (HOME / "bin").mkdir(parents=True, exist_ok=True)
    for place in (installed, installed / "bin"):
        for entry in place.iterdir():
            if entry.name not in {"bin", "java"}:
                _replace(HOME / place.relative_to(installed) / entry.name, lambda new, to=entry: new.symlink_to(to))  # type: ignore[misc]
    launcher = _LAUNCHER.read_text("utf-8").format(home=HOME, dump=_DUMP, java=installed / "bin" / "java")

    def write(new: Path) -> None:
        new.write_text(launcher, "utf-8")
        new.chmod(0o755)

    _replace(HOME / "bin" / "java", write)
    os.environ["JAVA_HOME"] = str(HOME)
    os.environ["PATH"] = f"{HOME / 'bin'}{os.pathsep}{os.environ['PATH']}"


def ensure_archive(name: str, jars: Path) -> None:
    """Make the archive of "spark" or "kafka" unless there is one of this Java and these jars."""
    if os.environ.get("JAVA_HOME") != str(HOME) or _DUMP in os.environ:
        return
    made_of = f"{(HOME / 'lib' / 'modules').stat().st_mtime_ns} {jars} {jars.stat().st_mtime_ns}"
    stamp = HOME / f"{name}.stamp"
    with (HOME / f"{name}.lock").open("w") as lock:  # several workers may want it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text("utf-8") == made_of:
            return
        partial = HOME / f"{name}.partial"
        command = [sys.executable, "-m", "tests.java_training", name]
        environment = {**os.environ, _DUMP: str(partial), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert partial.exists(), f"no archive of {name}:\n{done.stdout}\n{done.stderr}"
        partial.replace(HOME / f"{name}.jsa")
        stamp.write_text(made_of, "utf-8")


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file or link completely before it gets its name: other workers do the same."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    write(new)
    new.replace(path)
