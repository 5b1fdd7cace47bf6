"""Measures the pipeline: the report compared with DuckDB, and the replay on one core and on two.

    make bench-pipeline                                       # 10 million operations, which are made first
    python -m bench.pipeline --only replay --operations 1M

Histories are stored in `.build/histories` and made if missing. Rows of the same name are replaced in
`bench/results/pipeline.json`, and the table in docs/pipeline.md is written again.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.measure.lab import Lab
from bench.measure.processes import ROOT
from bench.measure.result_rows import Row, read_rows, table, write_rows
from bench.pipeline.history.make import TRUTH, make_history
from bench.pipeline.history.plan import Plan
from bench.pipeline.timings import replay, report
from bench.render.page import write_table
from bench.scale import FULL

__all__ = ["MEASURED", "main", "merged"]

RESULTS: Final = ROOT / "bench" / "results" / "pipeline.json"
PAGE: Final = ROOT / "docs" / "pipeline.md"
BEGINS: Final = "<!-- the table of bench/results/pipeline.json, written by make bench-pipeline -->"
HISTORIES: Final = ROOT / ".build" / "histories"
RUNS: Final = 3
MEASURED: Final[dict[str, Callable[[Lab, Path], None]]] = {"report": report, "replay": replay}


def main() -> None:
    """Measures what was asked for."""
    given = parsed()
    measured = history(given.histories, given.operations)
    with_lab = Lab(dataclasses.replace(FULL, runs=given.runs), [])
    for name, measure in MEASURED.items():
        if given.only in ("", name):
            measure(with_lab, measured)
    print(table(with_lab.rows))
    if not given.dry:
        write_rows(merged(read_rows(RESULTS) if RESULTS.exists() else [], with_lab.rows), RESULTS)
        write_table(PAGE, RESULTS, begins=BEGINS)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.pipeline", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--operations", default="10M", help="size of the history")
    parser.add_argument("--histories", type=Path, default=HISTORIES, help="folder of generated histories")
    parser.add_argument("--only", choices=["", *MEASURED], default="", help="one of the two")
    parser.add_argument("--runs", type=int, default=RUNS, help="pairs of each")
    parser.add_argument("--dry", action="store_true", help="nothing is written")
    return parser.parse_args()


def history(folder: Path, size: str) -> Path:
    """The history of this size, which is generated if it is missing."""
    path = folder / size.lower()
    if not (path / TRUTH).exists():
        operations = int(size.lower().replace("k", "000").replace("m", "000000"))
        make_history(Plan(operations, runs=max(24, operations // 1_000_000)), path, os.cpu_count() or 1)
    return path


def merged(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """The rows of both, those of now in place of older ones, by name."""
    rows = {row.key: row for row in (*before, *now)}
    return sorted(rows.values(), key=lambda row: (row.name, row.peer or ""))


if __name__ == "__main__":
    main()
