"""The report beside the same aggregates hand-written in DuckDB, and how its time grows with the history.

Both are whole processes: Python (and Java) starts, the archive is read, the tables are written. The report also does
what `check` does and draws its page; it has the memory that it has by default, DuckDB 4 GB.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import ROOT, environment
from bench.measure.worker import Numbers

__all__ = ["by_hand", "operations_in", "report", "reported"]

TIMEOUT_S: Final = 3_600


def report(lab: Lab, histories: Sequence[Path]) -> None:
    """The first history beside DuckDB; each further one beside the first, as time for each operation."""
    first = histories[0]
    lab.measure(
        [Figure(f"report/operations={operations_in(first)}", "s", "seconds")],
        ("report", reported(first)),
        {"duckdb": by_hand(first)},
        warm_up=False,
    )
    for other in histories[1:]:
        lab.measure(
            [Figure(f"report/growth/operations={operations_in(other)}", "us/op", "us_each")],
            ("report", reported(other)),
            {"self": reported(first)},
            runs=1,
            warm_up=False,
        )


def operations_in(history: Path) -> int:
    """How many operations a generated history has."""
    return int(json.loads((history / "_truth" / "truth.json").read_text("utf-8"))["plan"]["operations"])


def reported(history: Path) -> Measure:
    """Times the command `report`."""
    return timed(history, "-m", "purgatory_pipeline.cli", "report", str(history), "--window", "1h", "--out")


def by_hand(history: Path) -> Measure:
    """Times the same in DuckDB."""
    return timed(history, "-m", "bench.pipeline.report_sql", str(history))


def timed(history: Path, *command: str) -> Measure:
    """Times a Python process; its last argument is a folder for what it leaves."""

    def measure() -> Numbers:
        with tempfile.TemporaryDirectory(prefix="bench-report-") as out:
            started = time.monotonic()
            subprocess.run(
                [sys.executable, *command, out],
                cwd=ROOT,
                env=environment(),
                stdout=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=True,
            )
            seconds = time.monotonic() - started
        return {"seconds": seconds, "us_each": seconds / operations_in(history) * 1e6}

    return measure
