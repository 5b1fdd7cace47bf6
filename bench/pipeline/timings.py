"""Compares the report with the same aggregates hand-written in DuckDB, and the replay on two cores with one. Also
measures how both grow with the history.

    python -m bench.pipeline.timings ARCHIVE DIR    # one replay: its seconds, with Java already running

Report and DuckDB are measured as whole processes: starting Python (and Java), reading the archive, writing the tables.
The report also does the work of `check` and draws its page; it uses its default memory, DuckDB 4 GB. For a replay
everything but the start of Java is included: the intake, reading, the engine, comparing with the recorded results,
tables and page.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import ROOT, environment
from bench.measure.worker import Numbers

__all__ = ["main", "operations_in", "replay", "report"]

TIMEOUT_S: Final = 3_600


def report(lab: Lab, histories: Sequence[Path]) -> None:
    """The report compared with DuckDB."""

    def reported(history: Path) -> Measure:
        return timed(history, "-m", "purgatory_pipeline.cli", "report", str(history), "--window", "1h", "--out")

    by_hand = timed(histories[0], "-m", "bench.pipeline.report_sql", str(histories[0]))
    compare(lab, histories, Figure("report", "s", "seconds"), ("report", reported), {"duckdb": by_hand})


def replay(lab: Lab, histories: Sequence[Path]) -> None:
    """The replay on two cores compared with one. Each replay is a process that prints its own duration."""

    def on_cores(history: Path, cores: int = 2) -> Measure:
        arguments = ("-m", "bench.pipeline.timings", str(history))
        return timed(history, *arguments, PYSPARK_SUBMIT_ARGS=f"--master local[{cores}] pyspark-shell")

    one_core = on_cores(histories[0], cores=1)
    compare(lab, histories, Figure("replay", "ops/s"), ("two cores", on_cores), {"one core": one_core})


def compare(
    lab: Lab,
    histories: Sequence[Path],
    figure: Figure,
    measured: tuple[str, Callable[[Path], Measure]],
    peers: dict[str, Measure],
) -> None:
    """Compare the first history with the peers, and each further history with the first, as time per operation."""
    name, measure = measured
    first = histories[0]
    whole = Figure(f"{figure.name}/operations={operations_in(first)}", figure.unit, figure.metric)
    lab.measure([whole], (name, measure(first)), peers, warm_up=False)
    for other in histories[1:]:
        each = Figure(f"{figure.name}/growth/operations={operations_in(other)}", "us/op", "us_each")
        lab.measure([each], (name, measure(other)), {"self": measure(first)}, runs=1, warm_up=False)


def operations_in(history: Path) -> int:
    """The number of operations in a generated history."""
    return int(json.loads((history / "_truth" / "truth.json").read_text("utf-8"))["operations"])


def timed(history: Path, *command: str, **variables: str) -> Measure:
    """Time a Python process, unless it prints its own seconds. Its last argument is the folder for its output."""

    def measure() -> Numbers:
        with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as out:
            started = time.monotonic()
            said = subprocess.run(
                [sys.executable, *command, out],
                cwd=ROOT,
                env={**environment(), **variables},
                stdout=subprocess.PIPE,
                timeout=TIMEOUT_S,
                check=True,
                text=True,
            ).stdout
            seconds = time.monotonic() - started
        if said.startswith('{"seconds"'):
            seconds = float(json.loads(said)["seconds"])
        operations = float(operations_in(history))
        return {"seconds": seconds, "operations": operations, "us_each": seconds / operations * 1e6}

    return measure


def main() -> None:
    """Replay an archive once."""
    from purgatory_pipeline.analytics.replay.command import replay as run  # noqa: PLC0415 -- the bench does without Spark
    from purgatory_pipeline.spark.spark_session import spark_session, stop_session  # noqa: PLC0415

    archive, out = sys.argv[1:]
    spark_session("replay")
    started = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):
        run(archive, out=out)
    seconds = time.monotonic() - started
    stop_session()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
