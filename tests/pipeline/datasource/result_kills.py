"""Kills a query that reads a session's results, also between read and commit, and checks that each result is written
once.

In full: `python -m tests.pipeline result-kills`. Run as a program with ADDRESS and FOLDER, this module is the query
that is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from purgatory_client import Client
from purgatory_client.batches import produce
from purgatory_pipeline.datasource import PurgatoryDataSource
from purgatory_pipeline.spark.spark_session import spark_session
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.kit.daemon import DaemonProcess
from tests.pipeline.conftest import worker_environment

SESSION = "nightly"
PER_KILL = 400
LIFE_S = (3.0, 10.0)
END_S = 120


def start_query(spark: SparkSession, address: str, folder: Path) -> StreamingQuery:
    """The query: it writes results to files, 50 at a time."""
    spark.dataSource.register(PurgatoryDataSource)
    reader = spark.readStream.format("purgatory").option("address", address).option("session", SESSION)
    writer = reader.option("maxRows", 50).load().coalesce(1).writeStream.format("parquet")
    return writer.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint")).start()


def job(address: str, folder: Path) -> None:
    """Run the query until killed."""
    start_query(spark_session("results"), address, folder).awaitTermination()


def start(address: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the job in a process group of its own."""
    command = [sys.executable, "-m", __name__, address, str(folder)]
    settings = ["--driver-memory", "1g", "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    environment = worker_environment() | {"PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"])}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=os.environ | environment)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the job with all its children."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def written_ids(folder: Path) -> list[int]:
    """Ids of all results that Spark's file sink has committed."""
    manifests = sorted((folder / "out" / "_spark_metadata").glob("[0-9]*"))
    names = {line.split('"path":"')[1].split('"')[0] for one in manifests for line in one.read_text().splitlines()[1:]}
    return sorted(
        id_
        for name in names
        for id_ in pq.ParquetFile(name.removeprefix("file://")).read().column("operation_id").to_pylist()
    )


def newest(folder: Path, log: str) -> int:
    """The last micro-batch in a log of the checkpoint: `offsets` (started) or `commits` (committed). -1 if empty."""
    return max((int(path.name) for path in (folder / "checkpoint" / log).glob("[0-9]*")), default=-1)


def is_in_a_batch(folder: Path, before: int) -> bool:
    """Whether a micro-batch after `before` is committed and the next one has started but is not committed."""
    committed = newest(folder, "commits")
    return before < committed < newest(folder, "offsets")


def until(reached: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until `reached()`; fail if the job ends first or END_S seconds pass."""
    deadline = time.monotonic() + END_S
    while not reached():
        said = (folder / "log").read_text()[-2_000:]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.005)


def add_results(client: Client, life: int, per_kill: int) -> None:
    """Add `per_kill` results, whose ids follow those of earlier lives of the job."""
    client.advance(("t", 0), high_watermark=1_000_000)
    client.register(SESSION, life * per_kill + 1, produce([("t", 0)], offsets=list(range(per_kill))))


def kill_repeatedly(folder: Path, client: Client, kills: int, seed: int, per_kill: int = PER_KILL) -> None:
    """Kill the job `kills` times while results arrive, alternately between read and commit and at a random moment.

    Before each start, `per_kill` results are added.
    """
    rng = random.Random(seed)
    for kill in range(kills):
        add_results(client, kill, per_kill)
        before = newest(folder, "commits")
        process = start(client.address, folder)
        if kill % 2 == 0:
            until(lambda before=before: is_in_a_batch(folder, before), process, folder)  # type: ignore[misc]
        else:
            time.sleep(rng.uniform(*LIFE_S))  # a random moment is the point of the test
        assert process.poll() is None, (folder / "log").read_text()[-2_000:]
        end(process)


def run(folder: Path, kills: int, seed: int) -> int:
    """Run in full against a daemon of its own and print the result. Returns the exit code."""
    with DaemonProcess(folder / "daemon") as daemon, Client(daemon.address) as client:
        kill_repeatedly(folder, client, kills, seed)
        add_results(client, kills, PER_KILL)
        process = start(daemon.address, folder)
        until(lambda: not client.status().unacknowledged_results, process, folder)
        end(process)
    ids = written_ids(folder)
    expected = list(range(1, PER_KILL * (kills + 1) + 1))
    print(f"{kills} kills, {len(expected):,} results: {'each once' if ids == expected else f'wrong: {len(ids)}'}")
    return 0 if ids == expected else 1


if __name__ == "__main__":
    job(sys.argv[1], Path(sys.argv[2]))
