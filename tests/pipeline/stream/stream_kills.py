"""Kills a running stream repeatedly and checks that no outcome is lost or duplicated.

The command runs in a process of its own on local[2], reading folders that grow. At a random moment it is killed
with all its children and then restarted. With executors, the stream runs on a standalone cluster of two workers and one
executor is killed each time instead. At the end, every operation must have exactly the outcome that the engine gives.

In full: `python -m tests.pipeline stream-kills`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.pipeline.conftest import worker_environment
from tests.pipeline.standalone_cluster import StandaloneCluster
from tests.pipeline.stream.simulated_history import SimulatedHistory
from tests.pipeline.stream.stream_folders import StreamFolders

Main = Callable[[list[str]], int]
SLICES_PER_KILL = 3
LIFE_S = (4.0, 14.0)
"""Time between two kills: from before the first micro-batch to several batches later."""
END_S = 600


class KilledStream:
    """The `stream` command over some folders, which can be started and killed."""

    def __init__(self, folders: StreamFolders, log: Path, more: Sequence[str]) -> None:
        self._log = log
        self.words = [
            "stream", "--registrations", str(folders.registrations), "--events", str(folders.events),
            "--results", str(folders.results), "--shards", "2", "--delay", "100ms", "--files-per-batch", "1",
        ]  # fmt: skip
        """The command without settings of Spark."""
        self._settings = [
            "--conf", "spark.driver.memory=1g", "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", "spark.ui.enabled=false", *more,
        ]  # fmt: skip

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own, so that the JVM and Python workers are killed with it."""
        command = [sys.executable, "-m", "purgatory_pipeline.cli", *self.words, *more, *self._settings]
        environment = {**os.environ, **worker_environment()}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class KillDrive:
    """A history that arrives in slices, SLICES_PER_KILL of them before each kill."""

    def __init__(self, folder: Path, kills: int, seed: int, more: Sequence[str]) -> None:
        self.rng = random.Random(seed)
        self.history = SimulatedHistory.of_seed(seed, 1_000 + 500 * kills)
        self.folders = StreamFolders(folder)
        self._log = folder / "log"
        self._parts = self.folders.slices(self.history.rows, SLICES_PER_KILL * (kills + 1))
        self.stream = KilledStream(self.folders, self._log, more)

    def feed(self) -> None:
        """Add rows, then wait for a random time."""
        for _ in range(SLICES_PER_KILL):
            self.folders.write(self._parts.pop(0))
        time.sleep(self.rng.uniform(*LIFE_S))  # a random moment is the point of the test

    def check(self, process: subprocess.Popen[bytes]) -> None:
        """Assert that the stream is still running."""
        assert process.poll() is None, self._log.read_text()[-2_000:]

    def finish(self, main: Main | None = None) -> list[str]:
        """Process the remaining rows. Returns the outcomes that were lost, wrong or duplicated.

        `main` runs the command for the last time, in this process; by default it has one of its own, as before.
        """
        for part in self._parts:
            self.folders.write(part)
        self.folders.write([{"at_ms": self.history.end_ms + 100}])
        words = [*self.stream.words, "--once"]
        code = main(words) if main else self.stream.start("--once").wait(END_S)
        assert code == 0, self._log.read_text()[-2_000:]
        surplus = Counter(map(repr, self.folders.outcomes()))
        surplus.subtract(map(repr, self.history.outcomes))
        return [f"{count:+d} {outcome}" for outcome, count in surplus.items() if count]


def kill_driver(
    folder: Path, kills: int, seed: int, more: Sequence[str], main: Main | None = None
) -> tuple[int, list[str]]:
    """Kill the whole stream `kills` times, and finish with `main`. Returns the number of operations, and the wrong
    outcomes.
    """
    drive = KillDrive(folder, kills, seed, ["--master", "local[2]", *more])
    for _ in range(kills):
        process = drive.stream.start()
        drive.feed()
        drive.check(process)
        drive.stream.kill(process)
    return len(drive.history.outcomes), drive.finish(main)


def kill_executors(folder: Path, kills: int, seed: int) -> tuple[int, list[str]]:
    """Kill one of two executors `kills` times. Returns the same as `kill_driver`."""
    with StandaloneCluster(folder / "cluster") as cluster:
        inherited = [f"spark.executorEnv.{name}={value}" for name, value in worker_environment().items()]
        settings = [word for setting in (*inherited, "spark.executor.memory=768m") for word in ("--conf", setting)]
        drive = KillDrive(folder / "stream", kills, seed, ["--master", cluster.url, *settings])
        process = drive.stream.start()
        for _ in range(kills):
            drive.feed()
            drive.check(process)
            while not (running := executor_processes(cluster.folder.resolve())):
                time.sleep(0.2)  # the last one has just been killed
            os.kill(drive.rng.choice(running), signal.SIGKILL)
        drive.stream.kill(process)
        return len(drive.history.outcomes), drive.finish()


def executor_processes(folder: Path) -> list[int]:
    """Process ids of the executors of the cluster in `folder`, recognised by their working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
            if is_executor and folder in (process / "cwd").resolve().parents:
                found.append(int(process.name))
    return sorted(found)


def run(folder: Path, kills: int, seed: int, *, executors: bool) -> int:
    """Run in full and print the result. Returns the exit code."""
    if executors:
        operations, wrong = kill_executors(folder, kills, seed)
    else:
        operations, wrong = kill_driver(folder, kills, seed, [])
    print(f"{kills} kills, {operations:,} operations: {len(wrong)} lost, wrong or duplicated {wrong[:3]}")
    return 1 if wrong else 0
