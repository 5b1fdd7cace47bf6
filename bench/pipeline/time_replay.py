"""The replay of a history, unchanged, on one core and on two, and how its time grows with the history.

    python -m bench.pipeline.time_replay ARCHIVE DIR    # one replay: its seconds, Java running already

All else counts: the intake, reading, the engine, comparing with what was recorded, tables and page.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import ROOT, environment
from bench.measure.worker import Numbers
from bench.pipeline.time_report import TIMEOUT_S, operations_in

__all__ = ["main", "replay"]


def replay(lab: Lab, histories: Sequence[Path]) -> None:
    """The first history on two cores, beside one; each further one beside the first, as time for each operation."""
    first = histories[0]
    lab.measure(
        [Figure(f"replay/operations={operations_in(first)}", "ops/s")],
        ("two cores", on_cores(2, first)),
        {"one core": on_cores(1, first)},
        warm_up=False,
    )
    for other in histories[1:]:
        lab.measure(
            [Figure(f"replay/growth/operations={operations_in(other)}", "us/op", "us_each")],
            ("two cores", on_cores(2, other)),
            {"self": on_cores(2, first)},
            runs=1,
            warm_up=False,
        )


def on_cores(cores: int, history: Path) -> Measure:
    """Times a replay with so many tasks at a time, in a process of its own."""

    def measure() -> Numbers:
        with tempfile.TemporaryDirectory(prefix="bench-replay-") as out:
            said = subprocess.run(
                [sys.executable, "-m", "bench.pipeline.time_replay", str(history), out],
                cwd=ROOT,
                env={**environment(), "PYSPARK_SUBMIT_ARGS": f"--master local[{cores}] pyspark-shell"},
                stdout=subprocess.PIPE,
                timeout=TIMEOUT_S,
                check=True,
                text=True,
            ).stdout
        seconds, operations = float(json.loads(said)["seconds"]), float(operations_in(history))
        return {"seconds": seconds, "operations": operations, "us_each": seconds / operations * 1e6}

    return measure


def main() -> None:
    """Replays an archive once."""
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
