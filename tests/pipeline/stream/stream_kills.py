"""Kills a real stream again and again, and looks whether anything is lost or there twice.

    python -m tests.pipeline.stream.stream_kills --kills 20 [--on-driver | --executors]

The command runs as a process of its own, on local[2], over folders that grow meanwhile; at a random moment it is
killed with all its children, and started again. With `--executors` it runs on a standalone cluster of two workers, and
an executor is killed in place of the whole. In the end every operation must have exactly the outcome that the
engine gives.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.pipeline.conftest import worker_environment
from tests.pipeline.standalone_cluster import StandaloneCluster
from tests.pipeline.stream.simulated_history import SimulatedHistory
from tests.pipeline.stream.stream_folders import StreamFolders

SLICES_PER_KILL = 3
LIFE_S = (4.0, 14.0)
"""Between two kills: from before the first micro-batch to some batches later."""
END_S = 600


class KilledStream:
    """The command over some folders, killed and started."""

    def __init__(self, folders: StreamFolders, log: Path, more: Sequence[str]) -> None:
        self._log = log
        self._command = [
            sys.executable, "-m", "purgatory_pipeline.cli", "stream", "--registrations", str(folders.registrations),
            "--events", str(folders.events), "--results", str(folders.results), "--shards", "2", "--delay", "100ms",
            "--files-per-batch", "1", "--conf", "spark.driver.memory=1g",
            "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.ui.enabled=false", *more,
        ]  # fmt: skip

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """In a group of its own, so that all of it can be killed."""
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, *more], stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **worker_environment()},
            )  # fmt: skip

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class KillDrive:
    """A history that comes in slices, a few for each kill."""

    def __init__(self, folder: Path, kills: int, seed: int, more: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self.history = SimulatedHistory.of_seed(seed, 1_000 + 500 * kills)
        self.folders = StreamFolders(folder)
        self._log = folder / "log"
        self._parts = self.folders.slices(self.history.rows, SLICES_PER_KILL * (kills + 1))
        self.stream = KilledStream(self.folders, self._log, more)

    def go_on(self) -> None:
        """More rows come; then some time passes."""
        for _ in range(SLICES_PER_KILL):
            self.folders.write(self._parts.pop(0))
        time.sleep(self.rng.uniform(*LIFE_S))  # the moment is what is drawn

    def check(self, process: subprocess.Popen[bytes]) -> None:
        """It should be running."""
        assert process.poll() is None, self._log.read_text()[-2_000:]

    def finish(self) -> list[str]:
        """Takes what is left. Returns what was lost, wrong or twice."""
        for part in self._parts:
            self.folders.write(part)
        self.folders.write([{"at_ms": self.history.end_ms + 100}])
        last = self.stream.start("--once")
        assert last.wait(END_S) == 0, self._log.read_text()[-2_000:]
        surplus = Counter(map(repr, self.folders.outcomes()))
        surplus.subtract(map(repr, self.history.outcomes))
        return [f"{count:+d} {outcome}" for outcome, count in surplus.items() if count]


def kill_driver(folder: Path, kills: int, seed: int, more: Sequence[str]) -> tuple[int, list[str]]:
    """Kills the whole of it so often. Returns how many operations there were, and what is wrong."""
    drive = KillDrive(folder, kills, seed, ["--master", "local[2]", *more])
    for _ in range(kills):
        process = drive.stream.start()
        drive.go_on()
        drive.check(process)
        drive.stream.kill(process)
    return len(drive.history.outcomes), drive.finish()


def kill_executors(folder: Path, kills: int, seed: int) -> tuple[int, list[str]]:
    """Kills one executor so often, of two. Returns the same."""
    with StandaloneCluster(folder / "cluster") as cluster:
        inherited = [f"spark.executorEnv.{name}={value}" for name, value in worker_environment().items()]
        settings = [word for setting in (*inherited, "spark.executor.memory=768m") for word in ("--conf", setting)]
        drive = KillDrive(folder / "stream", kills, seed, ["--master", cluster.url, *settings])
        process = drive.stream.start()
        for _ in range(kills):
            drive.go_on()
            drive.check(process)
            while not (running := executors(cluster.folder.resolve())):
                time.sleep(0.2)  # the last one has just been killed
            os.kill(drive.rng.choice(running), signal.SIGKILL)
        drive.stream.kill(process)
        return len(drive.history.outcomes), drive.finish()


def executors(folder: Path) -> list[int]:
    """The processes that are executors of the cluster in a folder: they work below it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
            if is_executor and folder in (process / "cwd").resolve().parents:
                found.append(int(process.name))
    return sorted(found)


def main() -> int:
    """Drives a stream and says what was found."""
    parser = argparse.ArgumentParser(description="Kills a stream again and again.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on-driver", action="store_true")
    parser.add_argument("--executors", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stream-kills-") as folder:
        if options.executors:
            operations, wrong = kill_executors(Path(folder), options.kills, options.seed)
        else:
            more = ["--on-driver"] if options.on_driver else []
            operations, wrong = kill_driver(Path(folder), options.kills, options.seed, more)
    print(f"{options.kills} kills, {operations:,} operations: {len(wrong)} lost, wrong or twice {wrong[:3]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
