"""Compares the report with the same aggregates hand-written in DuckDB, and the replay on two cores with one.

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
from pathlib import Path
from typing import Final

from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import ROOT, environment
from bench.measure.worker import Numbers

__all__ = ["main", "replay", "report"]

TIMEOUT_S: Final = 3_600


def report(lab: Lab, history: Path) -> None:
    """The report compared with DuckDB."""
    reported = timed(history, "-m", "purgatory_pipeline.cli", "report", str(history), "--window", "1h", "--out")
    by_hand = timed(history, "-m", "bench.pipeline.report_sql", str(history))
    figure = Figure(f"report/operations={operations_in(history)}", "s", "seconds")
    lab.measure([figure], ("report", reported), {"duckdb": by_hand}, warm_up=False)


def replay(lab: Lab, history: Path) -> None:
    """The replay on two cores compared with one. Each replay is a process that prints its own duration."""

    def on_cores(cores: int) -> Measure:
        arguments = ("-m", "bench.pipeline.timings", str(history))
        return timed(history, *arguments, PYSPARK_SUBMIT_ARGS=f"--master local[{cores}] pyspark-shell")

    figure = Figure(f"replay/operations={operations_in(history)}", "ops/s")
    lab.measure([figure], ("two cores", on_cores(2)), {"one core": on_cores(1)}, warm_up=False)


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
        return {"seconds": seconds, "operations": float(operations_in(history))}

    return measure


def main() -> None:
    """Replay an archive once."""
    from purgatory_pipeline.replay.command import replay as run  # noqa: PLC0415 -- the bench does without Spark
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
