"""Measures the stream and the data source, and prints a line for each figure.

    make bench-stream                               # all, about ten minutes
    make bench-stream ARGS="--only rates pending"

rates: operations a second in micro-batches of 50,000, in four shards and on the driver. pending: a micro-batch at a
million pending operations beside one at 0.3 million. workers: two workers of a cluster beside one, a processor each.
latency: answers between topics of Kafka, beside a query that copies. results: a session's, read and acknowledged.
Spark's first micro-batch of a run does not count. Nothing is written: docs/spark.md has the figures.
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
"""In a micro-batch for workers, so that both have some to read."""
MODES: Final = {"four shards": (), "on the driver": ("--on-driver",)}


def rates(folder: Path) -> None:
    """Operations a second."""
    load = StreamLoad(folder / "load")
    for _ in range(BATCHES + 1):
        load.answered(PER_BATCH)
    for mode, options in MODES.items():
        seconds = batches(load.folder, folder / mode, *options)[1:]
        print(f"rates, {mode}: {PER_BATCH / statistics.mean(seconds):,.0f} operations/s", flush=True)


def pending(folder: Path) -> None:
    """What a micro-batch takes that few operations wait beside, and many."""
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
        # The mean: on the driver snapshots are rare, and a median would not see them.
        few, many = (statistics.mean(seconds[from_:][:BATCHES]) for from_ in (2, 3 + BATCHES))
        print(f"pending, {mode}: {few:.2f} s beside 0.3 million, {many:.2f} s beside 1 million: {many / few:.2f} times")


def workers(folder: Path) -> None:
    """One worker, then two, each with a processor of its own; the driver runs beside them. Once they are warm."""
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
    """A program of its own."""
    subprocess.run([sys.executable, "-m", "bench.stream.stream_latency"], cwd=ROOT, env=paths(), check=True)


def results(_folder: Path) -> None:
    """A program of its own."""
    subprocess.run([sys.executable, "-m", "bench.stream.results_read"], cwd=ROOT, env=paths(), check=True)


PARTS: Final = {part.__name__: part for part in (rates, pending, workers, latency, results)}


def batches(load: Path, out: Path, *options: str) -> list[float]:
    """The seconds of each micro-batch of a stream over a load."""
    command = [sys.executable, "-m", "bench.stream.timed_stream", str(load), str(out), *options]
    done = subprocess.run(command, cwd=ROOT, env=paths(), stdout=subprocess.PIPE, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def paths() -> dict[str, str]:
    """The tree, for Spark's Pythons too."""
    found = environment()
    return found | {"PYTHONPATH": f"{found['PYTHONPATH']}:{ROOT / 'pipeline'}:{ROOT / 'sources'}"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what was asked for."""
    parser = argparse.ArgumentParser(prog="bench.stream", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    for name in parser.parse_args(arguments).only:
        with tempfile.TemporaryDirectory(prefix="bench-stream-") as folder:
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
