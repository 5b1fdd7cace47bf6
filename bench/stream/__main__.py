"""Measures the stream and the data source, and prints a line for each figure.

    make bench-stream                               # all, about ten minutes
    make bench-stream ARGS="--only rates pending"

rates: operations per second in micro-batches of 50,000, in one shard and in four. pending: a micro-batch with a
million pending operations compared with 0.3 million. workers: two workers of a cluster compared with one, each with its
own processor. latency: answers between topics of Kafka, compared with a query that copies. results: the results of a
session, read and acknowledged. The first micro-batch of a run is ignored. No file is written: docs/spark.md contains
the figures.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.measure.processes import ROOT, environment
from bench.stream.stream_load import StreamLoad
from tests.pipeline.standalone_cluster import StandaloneCluster

__all__ = ["PARTS", "main"]

PER_BATCH: Final = 50_000
BATCHES: Final = 10
FEW_PENDING: Final = 300_000
MANY_PENDING: Final = 1_000_000
FILES_EACH: Final = 4
"""Files per micro-batch in the part `workers`, so that both workers have files to read."""
MODES: Final = {"one shard": ("--shards", "1"), "four shards": ()}


def rates(folder: Path) -> None:
    """Measure operations per second."""
    load = StreamLoad(folder / "load")
    for _ in range(BATCHES + 1):
        load.answered(PER_BATCH)
    for mode, options in MODES.items():
        seconds = batches(load.folder, folder / mode, *options)[1:]
        print(f"rates, {mode}: {PER_BATCH / statistics.mean(seconds):,.0f} operations/s", flush=True)


def pending(folder: Path) -> None:
    """Measure the time of a micro-batch with few and with many pending operations."""
    load = StreamLoad(folder / "load")
    load.answered(PER_BATCH)
    load.staying(FEW_PENDING)
    for _ in range(BATCHES):
        load.answered(PER_BATCH)
    load.staying(MANY_PENDING - FEW_PENDING)
    for _ in range(BATCHES):
        load.answered(PER_BATCH)
    for mode, options in MODES.items():
        seconds = batches(load.folder, folder / mode, *options)
        few, many = (statistics.mean(seconds[from_:][:BATCHES]) for from_ in (2, 3 + BATCHES))
        print(f"pending, {mode}: {few:.2f} s beside 0.3 million, {many:.2f} s beside 1 million: {many / few:.2f} times")


def workers(folder: Path) -> None:
    """Measure one worker, then two, each with its own processor, after a warm-up. The driver runs on the same
    machine.
    """
    load = StreamLoad(folder / "load")
    for _ in range(FILES_EACH * 2 * BATCHES):
        load.answered(PER_BATCH)
    took = []
    for count in (1, 2):
        with StandaloneCluster(folder / f"cluster-{count}", workers=count, memory="2g", pinned=True) as cluster:
            path = f"spark.executorEnv.PYTHONPATH={environment()['PYTHONPATH']}"
            settings = ["--master", cluster.url, "--conf", path, "--conf", "spark.executor.memory=1g"]
            seconds = batches(load.folder, folder / f"workers-{count}", "--files", str(FILES_EACH), *settings)
        took.append(statistics.median(seconds[BATCHES:]))
    one, two = took
    print(f"workers: a micro-batch in {one:.2f} s with one, in {two:.2f} s with two: {one / two:.2f} times")


def latency(_folder: Path) -> None:
    """Runs as a separate program."""
    subprocess.run([sys.executable, "-m", "bench.stream.stream_latency"], cwd=ROOT, env=paths(), check=True)


def results(_folder: Path) -> None:
    """Runs as a separate program."""
    subprocess.run([sys.executable, "-m", "bench.stream.results_read"], cwd=ROOT, env=paths(), check=True)


PARTS: Final = {part.__name__: part for part in (rates, pending, workers, latency, results)}


def batches(load: Path, out: Path, *options: str) -> list[float]:
    """The seconds of each micro-batch of a stream over a load."""
    command = [sys.executable, "-m", "bench.stream.timed_stream", str(load), str(out), *options]
    done = subprocess.run(command, cwd=ROOT, env=paths(), stdout=subprocess.PIPE, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def paths() -> dict[str, str]:
    """The source tree on the path, also for Spark's Python processes."""
    found = environment()
    return found | {"PYTHONPATH": f"{found['PYTHONPATH']}:{ROOT / 'pipeline'}:{ROOT / 'connectors'}"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the selected parts."""
    parser = argparse.ArgumentParser(prog="bench.stream", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    for name in parser.parse_args(arguments).only:
        with tempfile.TemporaryDirectory(prefix="bench-stream-") as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
