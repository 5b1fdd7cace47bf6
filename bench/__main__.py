"""Runs the benchmarks and writes one table, one JSON file and a plot.

    make bench                                    # everything
    make bench-quick                              # small sizes, in less than a minute
    python -m bench --only 'timer/*' --runs 3     # some suites; results are shown but not written

Subject and peers are measured alternately in one run. Nothing is asserted. Unavailable peers are reported and skipped.
"""

import argparse
import dataclasses
import fnmatch
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.measure.lab import Lab
from bench.measure.processes import ROOT, WorkerFailed
from bench.measure.result_rows import Row, table, write_rows
from bench.render.page import write_table
from bench.scale import FULL, QUICK, Scale
from bench.suites import engine_suite, fleet_suite, journal_suite, service_suite, takeover_suite

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "performance.md"
SUITES: Final[dict[str, Callable[[Lab], None]]] = {
    "engine/": engine_suite.engine,
    "engine/uneven": engine_suite.uneven,
    "engine/requests": engine_suite.requests,
    "engine/python-versions": engine_suite.python_versions,
    "timer/": engine_suite.timers,
    "memory/": engine_suite.memory,
    "service/throughput": service_suite.throughput,
    "service/latency": service_suite.latency,
    "service/lateness": service_suite.lateness,
    "service/herd": service_suite.herd,
    "journal/columns": journal_suite.columns,
    "journal/receipt": journal_suite.receipts,
    "journal/recovery": journal_suite.recovery,
    "archive/columns": journal_suite.archived,
    "fleet/columns": fleet_suite.columns,
    "fleet/receipt": fleet_suite.receipts,
    "fleet/takeover-postgres": takeover_suite.takeover_postgres,
    "fleet/takeover-kafka": takeover_suite.takeover_kafka,
}


def main() -> None:
    arguments = parsed()
    scale = QUICK if arguments.quick else FULL
    if arguments.runs:
        scale = dataclasses.replace(scale, runs=arguments.runs)
    rows, skipped = measure(scale, arguments.only)
    print(table(rows))
    for line in skipped:
        print(f"\n{line}")
    is_whole = not (arguments.only or arguments.quick)
    output: Path | None = arguments.output or (RESULTS / "latest.json" if is_whole else None)
    if output is not None:
        write_rows(rows, output)
        print(f"\nwritten: {output}")
        print(plotted(rows, output.parent))
        if arguments.output is None:
            write_table(PAGE, output)
            print(f"written: {PAGE}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Measure Purgatory against its peers.")
    parser.add_argument("--quick", action="store_true", help="small sizes, one pair each; nothing is written")
    parser.add_argument("--only", default="", help="suites that match a pattern, such as 'timer/*'; nothing is written")
    parser.add_argument("--runs", type=int, default=0, help="number of pairs per benchmark")
    parser.add_argument(
        "--output", type=Path, default=None, help="where to write the JSON; the plot is written to the same folder"
    )
    return parser.parse_args()


def measure(scale: Scale, only: str) -> tuple[list[Row], list[str]]:
    """Run the selected suites. Returns their rows, and a line for each thing that was skipped."""
    rows: list[Row] = []
    skipped: list[str] = []
    for name, suite in SUITES.items():
        if only and not fnmatch.fnmatch(name, only) and not name.startswith(only):
            continue
        started = time.monotonic()
        lab = Lab(scale, skipped)
        try:
            suite(lab)
        except WorkerFailed as failure:
            lab.skip(f"{name} failed: {failure}")
        finally:
            lab.close()
        rows.extend(lab.rows)
        print(f"== {name} took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return rows, skipped


def plotted(rows: list[Row], folder: Path) -> str:
    """Write the plot; returns the line to print."""
    try:
        from bench.render.plots import write_plot  # noqa: PLC0415 - the figures do not need it
    except ImportError as missing:
        return f"no plot: {missing.name} is not installed (pip install altair vl-convert-python)"
    return f"written: {write_plot(rows, folder)}"


if __name__ == "__main__":
    main()
