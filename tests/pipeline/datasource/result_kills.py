"""Kills a query that reads a session's results, between read and commit among other moments: each result once.

    python -m tests.pipeline.datasource.result_kills --kills 10

With `--job ADDRESS FOLDER` it is the query itself, which is what is killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from purgatory_client import Client
from purgatory_client.batches import produce
from purgatory_pipeline.datasource import PurgatoryDataSource
from purgatory_pipeline.spark.spark_session import spark_session

from tests.daemon_process import DaemonProcess
from tests.pipeline.conftest import worker_environment

SESSION = "nightly"
PER_KILL = 400
LIFE_S = (3.0, 10.0)
END_S = 120


def job(address: str, folder: Path) -> None:
    """Writes all results as files, a few at a time, until it is killed."""
    spark = spark_session("results")
    spark.dataSource.register(PurgatoryDataSource)
    reader = spark.readStream.format("purgatory").option("address", address).option("session", SESSION)
    writer = reader.option("maxRows", 50).load().coalesce(1).writeStream.format("parquet")
    query = writer.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()


def start(address: str, folder: Path) -> subprocess.Popen[bytes]:
    """The job in a group of its own."""
    command = [sys.executable, "-m", __spec__.name, "--job", address, str(folder)]
    settings = ["--driver-memory", "1g", "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    environment = worker_environment() | {"PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"])}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=os.environ | environment)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills the job with all its children."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def written(folder: Path) -> list[int]:
    """The ids of all results that Spark's sink has committed."""
    manifests = sorted((folder / "out" / "_spark_metadata").glob("[0-9]*"))
    names = {line.split('"path":"')[1].split('"')[0] for one in manifests for line in one.read_text().splitlines()[1:]}
    return sorted(
        id_
        for name in names
        for id_ in pq.ParquetFile(name.removeprefix("file://")).read().column("operation_id").to_pylist()
    )


def newest(folder: Path, log: str) -> int:
    """The last micro-batch that a log of the checkpoint names: `offsets` as begun, `commits` as committed."""
    return max((int(path.name) for path in (folder / "checkpoint" / log).glob("[0-9]*")), default=-1)


def is_in_a_batch(folder: Path, before: int) -> bool:
    """Whether the query has committed a micro-batch after that one, and begun another that it has not committed."""
    committed = newest(folder, "commits")
    return before < committed < newest(folder, "offsets")


def until(reached: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits for what the job should bring about."""
    deadline = time.monotonic() + END_S
    while not reached():
        said = (folder / "log").read_text()[-2_000:]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.005)


def drive(folder: Path, address: str, kills: int, seed: int) -> list[int]:
    """Kills the job so often while results come, by turns between read and commit and at a moment that is drawn.

    Returns the ids that are committed in the end.
    """
    rng = random.Random(seed)
    with Client(address) as client:
        client.advance(("t", 0), high_watermark=1_000_000)
        for kill in range(kills + 1):
            first = kill * PER_KILL + 1
            client.register(SESSION, first, produce([("t", 0)], offsets=list(range(PER_KILL))))
            before = newest(folder, "commits")
            process = start(address, folder)
            if kill < kills and kill % 2 == 0:
                until(lambda before=before: is_in_a_batch(folder, before), process, folder)  # type: ignore[misc]
            elif kill < kills:
                time.sleep(rng.uniform(*LIFE_S))  # the moment is what is drawn
            else:
                until(lambda: not client.status().unacknowledged_results, process, folder)
            assert process.poll() is None, (folder / "log").read_text()[-2_000:]
            end(process)
    return written(folder)


def main() -> int:
    """Drives the job and says what was found."""
    parser = argparse.ArgumentParser(description="Kills a query that reads results.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", nargs=2, metavar=("ADDRESS", "FOLDER"))
    options = parser.parse_args()
    if options.job:
        job(options.job[0], Path(options.job[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="result-kills-") as name:
        folder = Path(name)
        daemon = DaemonProcess(folder / "daemon")
        try:
            ids = drive(folder, daemon.address, options.kills, options.seed)
        finally:
            daemon.kill()
    expected = list(range(1, PER_KILL * (options.kills + 1) + 1))
    print(
        f"{options.kills} kills, {len(expected):,} results: {'each once' if ids == expected else f'wrong: {len(ids)}'}"
    )
    return 0 if ids == expected else 1


if __name__ == "__main__":
    sys.exit(main())
