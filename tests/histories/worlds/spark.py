"""Streams of Spark that are killed, and queries that read results: `make stream-kills SEED=0 ARGS="--count 3"`.

No outcome may be lost, wrong or duplicated. `python -m tests.histories.worlds.spark ADDRESS FOLDER` is the query.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from purgatory_client import Client
from purgatory_client.batches import produce
from purgatory_pipeline.datasource import PurgatoryDataSource
from purgatory_pipeline.spark.spark_session import spark_session
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.engine import plain
from tests.histories.history import History
from tests.histories.tables import features_of
from tests.histories.worlds.stream import differences
from tests.kit.daemon import DaemonProcess
from tests.pipeline.conftest import worker_environment
from tests.pipeline.standalone_cluster import StandaloneCluster
from tests.pipeline.stream.simulated_history import SimulatedHistory, StreamFolders

PATHS = ("stream",)
FAULTS = ("kill",)
FEATURES = ("produce", "fetch", "delete_records", "signal", "composite")
KILLS: Final = 10
Main = Callable[[list[str]], int]
SLICES_PER_KILL: Final = 3
STREAM_LIFE_S: Final = (4.0, 14.0)
"""Time between two kills: from before the first micro-batch to several batches later."""
STOP_S: Final = (0.5, 8.0)
KILLED, STOPPED, GIVEN_UP = FAULTS_OF_EXECUTORS = "killed executors", "stopped workers", "workers of a lost executor"
WRITE_ON_S: Final = 0.5
"""A worker writes its files in less."""
SPECULATION: Final = {
    "spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.executor.memory": "768m",
}  # fmt: skip
QUERY_LIFE_S: Final = (3.0, 10.0)
REPEATED: Final = re.compile(r'^.*SparkListenerTaskStart.*("Attempt":[1-9]|"Speculative":true)', re.MULTILINE)
END_S: Final = 600
SESSION: Final = "nightly"
PER_KILL: Final = 400


class SparkProgram:
    """Runs in a process group of its own, so that the JVM and Python workers are killed with it."""

    def __init__(self, log: Path, command: Sequence[str], **environment: str) -> None:
        self._log: Final = log
        with log.open("ab") as stream:
            self.process: Final = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=stream, stderr=stream, start_new_session=True,
                env={**os.environ, **worker_environment(), **environment},
            )  # fmt: skip

    def check(self) -> None:
        assert self.process.poll() is None, self._log.read_text()[-2_000:]

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached()`; fail if the program ends first or END_S seconds pass."""
        deadline_s = time.monotonic() + END_S
        while not reached():
            self.check()
            assert time.monotonic() < deadline_s, self._log.read_text()[-2_000:]
            time.sleep(0.005)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class StreamWorld:
    """The command `stream`, on a history that arrives in slices, SLICES_PER_KILL of them before each kill."""

    def __init__(self, folder: Path, kills: int, seed: int, more: Sequence[str]) -> None:
        self.history: Final = SimulatedHistory.of_seed(seed, 1_000 + 500 * kills)
        self._random: Final = random.Random(seed)
        self._folders: Final = StreamFolders(folder)
        self._folder: Final = folder
        self._log: Final = folder / "log"
        self._parts: Final = self._folders.slices(self.history.rows, SLICES_PER_KILL * (kills + 1))
        self._words: Final = [
            "stream", "--registrations", str(self._folders.registrations), "--events", str(self._folders.events),
            "--results", str(self._folders.results), "--checkpoint", str(folder / "checkpoint"),
            "--shards", "2", "--delay", "100ms", "--files-per-batch", "1",
        ]  # fmt: skip
        """The command without settings of Spark."""
        self._settings: Final = [
            "--conf", "spark.driver.memory=1g", "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", "spark.ui.enabled=false", *more,
        ]  # fmt: skip

    def start(self, *more: str) -> SparkProgram:
        return SparkProgram(self._log, ["purgatory_pipeline.cli", *self._words, *more, *self._settings])

    def kill_driver(self, kills: int) -> None:
        for _ in range(kills):
            program = self.start()
            self._feed()
            time.sleep(self._random.uniform(*STREAM_LIFE_S))  # a random moment is the point of the test
            program.check()
            program.kill()

    def hit_executors(self, faults: int, cluster: Path) -> Counter[str]:
        """Cause faults, each when a task begins to write. Returns how many of each kind."""
        program, caused = self.start(), Counter[str]()
        for _ in range(faults):
            written = self._written()
            self._feed()
            program.until(partial(self._has_written_more, written))
            while not (running := executor_processes(cluster.resolve())):
                time.sleep(0.2)  # the last one has just been killed
            busy = [executor for executor in running if any(map(children_of, children_of(executor)))]
            caused[self._hit(self._random.choice(busy or running), program)] += 1
        program.kill()
        return caused

    def _written(self) -> int:
        """How many micro-batches have written outcomes, or begun to."""
        return len(list((self._folders.results / "outcomes").glob("batch=*")))

    def _has_written_more(self, than: int) -> bool:
        return self._written() > than

    def _hit(self, executor: int, program: SparkProgram) -> str:
        """Kill an executor; or stop its Python workers for a while, so that others repeat their tasks, and both write.

        An executor that is killed ends its workers. If their parent is stopped it cannot, and they go on after their
        task is done elsewhere and the micro-batch is committed.
        """
        fault = self._random.choice(FAULTS_OF_EXECUTORS)
        parents = children_of(executor)
        workers = [child for parent in parents for child in children_of(parent)]
        committed = newest(self._folder, "commits")
        if fault == KILLED or not workers:
            os.kill(executor, signal.SIGKILL)
            return KILLED
        if fault == STOPPED:
            send(signal.SIGSTOP, workers)
            time.sleep(self._random.uniform(*STOP_S))  # until after the other attempt, or while it writes
        else:
            send(signal.SIGSTOP, [*parents, *workers])
            os.kill(executor, signal.SIGKILL)
            program.until(lambda: newest(self._folder, "commits") > committed)
        send(signal.SIGCONT, workers)
        time.sleep(WRITE_ON_S)
        send(signal.SIGCONT, parents)
        return fault

    def _feed(self) -> None:
        for _ in range(SLICES_PER_KILL):
            self._folders.write(self._parts.pop(0))

    def finish(self, main: Main | None = None) -> list[str]:
        """Process the remaining rows. Returns the outcomes that were lost, wrong or duplicated.

        `main` runs the command for the last time, in this process; by default it has one of its own, as before.
        """
        for part in self._parts:
            self._folders.write(part)
        self._folders.write([{"at_ms": self.history.end_ms + 100}])
        code = main([*self._words, "--once"]) if main else self.start("--once").process.wait(END_S)
        assert code == 0, self._log.read_text()[-2_000:]
        return differences(self._folders.outcomes(), self.history.outcomes)


def children_of(parent: int) -> list[int]:
    """Process ids of the children of a process (Linux); none if it has ended."""
    lists = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def send(signal_number: int, processes: Iterable[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # it was ended
            os.kill(process, signal_number)


def executor_processes(folder: Path) -> list[int]:
    """Process ids of the executors of the cluster in `folder`, recognised by their working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
            if is_executor and folder in (process / "cwd").resolve().parents:
                found.append(int(process.name))
    return sorted(found)


class ResultsWorld:
    """A query that reads the results of a session and writes them to files, 50 at a time."""

    def __init__(self, folder: Path, client: Client, seed: int, per_kill: int = PER_KILL) -> None:
        self._folder: Final = folder
        self._client: Final = client
        self._random: Final = random.Random(seed)
        self._per_kill: Final = per_kill
        self.added = 0

    def kill(self, kills: int) -> None:
        """Kill the query while results arrive, alternately between read and commit and at a random moment."""
        for number in range(kills):
            self.add()
            before = newest(self._folder, "commits")
            program = self.start()
            if number % 2 == 0:
                program.until(partial(is_in_a_batch, self._folder, before))
            else:
                time.sleep(self._random.uniform(*QUERY_LIFE_S))  # a random moment is the point of the test
            program.check()
            program.kill()

    def add(self) -> None:
        """Add results, whose ids follow those of earlier ones."""
        self._client.advance(("t", 0), high_watermark=1_000_000)
        batch = produce([("t", 0)], offsets=list(range(self._per_kill)))
        self._client.register(SESSION, self.added + 1, batch)
        self.added += self._per_kill

    def start(self) -> SparkProgram:
        settings = "--driver-memory 1g --master local[2] --conf spark.ui.enabled=false pyspark-shell"
        command = ["tests.histories.worlds.spark", self._client.address, str(self._folder)]
        return SparkProgram(self._folder / "log", command, PYSPARK_SUBMIT_ARGS=settings)

    def is_read(self) -> bool:
        """Whether everything has been read and acknowledged."""
        return not self._client.status().unacknowledged_results

    def wrong(self) -> list[str]:
        """Results that were not written once."""
        return differences(written_ids(self._folder), range(1, self.added + 1))


def start_query(spark: SparkSession, address: str, folder: Path) -> StreamingQuery:
    spark.dataSource.register(PurgatoryDataSource)
    reader = spark.readStream.format("purgatory").option("address", address).option("session", SESSION)
    writer = reader.option("maxRows", 50).load().coalesce(1).writeStream.format("parquet")
    return writer.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint")).start()


def written_ids(folder: Path) -> list[int]:
    """Ids of all results that Spark's file sink has committed."""
    manifests = sorted((folder / "out" / "_spark_metadata").glob("[0-9]*"))
    names = {line.split('"path":"')[1].split('"')[0] for one in manifests for line in one.read_text().splitlines()[1:]}
    tables = [pq.ParquetFile(name.removeprefix("file://")).read() for name in names]
    return sorted(id_ for table in tables for id_ in table.column("operation_id").to_pylist())


def newest(folder: Path, log: str) -> int:
    """The last micro-batch in a log of the checkpoint: `offsets` (started) or `commits` (committed). -1 if empty."""
    return max((int(path.name) for path in (folder / "checkpoint" / log).glob("[0-9]*")), default=-1)


def is_in_a_batch(folder: Path, before: int) -> bool:
    """Whether a micro-batch after `before` is committed and the next one has started but is not committed."""
    committed = newest(folder, "commits")
    return before < committed < newest(folder, "offsets")


def run(history: History) -> None:
    """Kill the stream, kill and stop its executors, or kill the query that reads results, by the seed."""
    seed, operations = history.seed, list[plain.Operation]()
    with tempfile.TemporaryDirectory(prefix="spark-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if seed % 3 == 0:
            world = StreamWorld(folder, KILLS, seed, ["--master", "local[2]"])
            world.kill_driver(KILLS)
            wrong, operations = world.finish(), world.history.operations
        elif seed % 3 == 1:
            cluster = stack.enter_context(StandaloneCluster(folder / "cluster"))
            (events := folder / "spark-events").mkdir()
            inherited = {f"spark.executorEnv.{name}": value for name, value in worker_environment().items()}
            settings = SPECULATION | inherited | {"spark.eventLog.dir": events.as_uri()}
            words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
            world = StreamWorld(folder / "stream", KILLS, seed, ["--master", cluster.url, *words])
            history.figures.update(world.hit_executors(KILLS, cluster.folder))
            for log in events.rglob("events_*"):
                history.figures["repeated tasks"] += len(REPEATED.findall(log.read_text()))
            wrong, operations = world.finish(), world.history.operations
        else:
            daemon = stack.enter_context(DaemonProcess(folder / "daemon"))
            results = ResultsWorld(folder, stack.enter_context(Client(daemon.address)), seed)
            results.kill(KILLS)
            history.seen.note(["produce"], "stream", "kill")
            results.add()
            program = results.start()
            program.until(results.is_read)
            program.kill()
            wrong = results.wrong()
    for operation in operations:
        history.seen.note(features_of(operation), "stream", "kill")
    history.judge.complaints.extend(wrong)
    history.figures["kills"] += KILLS


if __name__ == "__main__":
    start_query(spark_session("results"), sys.argv[1], Path(sys.argv[2])).awaitTermination()
