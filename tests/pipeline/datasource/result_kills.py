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
from purgatory_pipeline.spark.spark_session import spark_session
from purgatory_pipeline.streaming.datasource import PurgatoryDataSource

from tests.daemon_process import DaemonProcess
from tests.pipeline.conftest import worker_environment

SESSION = "nightly"
PER_KILL = 400
LIFE_S = (3.0, 10.0)
END_S = 120


def job(address: str, folder: Path) -> None:
    """Write results to files, 50 at a time, until killed."""
    spark = spark_session("results")
    spark.dataSource.register(PurgatoryDataSource)
    reader = spark.readStream.format("purgatory").option("address", address).option("session", SESSION)
    writer = reader.option("maxRows", 50).load().coalesce(1).writeStream.format("parquet")
    query = writer.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()


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


def written(folder: Path) -> list[int]:
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


def drive(folder: Path, address: str, kills: int, seed: int, per_kill: int = PER_KILL) -> list[int]:
    """Kill the job `kills` times while results arrive, alternately between read and commit and at a random moment.

    Before each start, `per_kill` results are added.

    Returns the ids that are committed at the end, sorted.
    """
    rng = random.Random(seed)
    with Client(address) as client:
        client.advance(("t", 0), high_watermark=1_000_000)
        for kill in range(kills + 1):
            first = kill * per_kill + 1
            client.register(SESSION, first, produce([("t", 0)], offsets=list(range(per_kill))))
            before = newest(folder, "commits")
            process = start(address, folder)
            if kill < kills and kill % 2 == 0:
                until(lambda before=before: is_in_a_batch(folder, before), process, folder)  # type: ignore[misc]
            elif kill < kills:
                time.sleep(rng.uniform(*LIFE_S))  # a random moment is the point of the test
            else:
                until(lambda: not client.status().unacknowledged_results, process, folder)
            assert process.poll() is None, (folder / "log").read_text()[-2_000:]
            end(process)
    return written(folder)


def run(folder: Path, kills: int, seed: int) -> int:
    """Run in full against a daemon of its own and print the result. Returns the exit code."""
    daemon = DaemonProcess(folder / "daemon")
    try:
        ids = drive(folder, daemon.address, kills, seed)
    finally:
        daemon.kill()
    expected = list(range(1, PER_KILL * (kills + 1) + 1))
    print(f"{kills} kills, {len(expected):,} results: {'each once' if ids == expected else f'wrong: {len(ids)}'}")
    return 0 if ids == expected else 1


if __name__ == "__main__":
    job(sys.argv[1], Path(sys.argv[2]))
