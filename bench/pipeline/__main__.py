"""Measures the pipeline: the report compared with DuckDB and as it grows, and the replay on one core and on two.

    make bench-pipeline                                       # 10 million operations, generated first
    make bench-pipeline ARGS="--operations 10M 30M 100M"      # and how the report's time grows
    python -m bench.pipeline --only replay --operations 1M 10M

Histories are stored in `.build/histories` and created if missing: a whole multiple of the first one by repeating it on
further days (`multiplied`), any other by `purgatory-pipeline generate`. Rows of the same name are replaced in
`bench/results/pipeline.json`, and the table in docs/pipeline.md is rewritten.
"""

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from purgatory_pipeline.generate.history_plan import parse_operations

from bench.measure.lab import Lab
from bench.measure.processes import ROOT, environment
from bench.measure.result_rows import Row, read_rows, table, write_rows
from bench.pipeline.multiplied import multiply
from bench.pipeline.timings import operations_in, replay, report
from bench.render.page import write_table
from bench.scale import FULL

__all__ = ["MEASURED", "main", "merged"]

RESULTS: Final = ROOT / "bench" / "results" / "pipeline.json"
PAGE: Final = ROOT / "docs" / "pipeline.md"
BEGINS: Final = "<!-- the table of bench/results/pipeline.json, written by make bench-pipeline -->"
HISTORIES: Final = ROOT / ".build" / "histories"
RUNS: Final = 3
MEASURED: Final[dict[str, Callable[[Lab, Sequence[Path]], None]]] = {"report": report, "replay": replay}


def main() -> None:
    """Measure the selected parts."""
    given = parsed()
    histories: list[Path] = []
    for size in given.operations:
        histories.append(history(given.histories, size, histories[0] if histories else None))
    with_lab = Lab(dataclasses.replace(FULL, runs=given.runs), [])
    for name, measure in MEASURED.items():
        if given.only in ("", name):
            measure(with_lab, histories)
    print(table(with_lab.rows))
    if not given.dry:
        write_rows(merged(read_rows(RESULTS) if RESULTS.exists() else [], with_lab.rows), RESULTS)
        write_table(PAGE, RESULTS, begins=BEGINS)


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="bench.pipeline", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--operations", nargs="+", default=["10M"], help="sizes of histories; the first is compared")
    parser.add_argument("--histories", type=Path, default=HISTORIES, help="where they lie")
    parser.add_argument("--only", choices=["", *MEASURED], default="", help="one of the two")
    parser.add_argument("--runs", type=int, default=RUNS, help="pairs of each")
    parser.add_argument("--dry", action="store_true", help="nothing is written")
    return parser.parse_args()


def history(folder: Path, size: str, first: Path | None) -> Path:
    """A history with `size` operations; if missing, it is made from the first one or generated."""
    path = folder / size.lower()
    if (path / "_truth" / "truth.json").exists():
        return path
    times, rest = divmod(parse_operations(size), operations_in(first)) if first is not None else (0, 0)
    if first is not None and times and not rest:
        multiply(first, path, times)
    else:
        command = [sys.executable, "-m", "purgatory_pipeline.cli", "generate", "--operations", size, "--out", str(path)]
        subprocess.run(command, cwd=ROOT, env=environment(), check=True)
    return path


def merged(before: Sequence[Row], now: Sequence[Row]) -> list[Row]:
    """Merge rows by name; the new ones replace older ones."""
    rows = {row.key: row for row in (*before, *now)}
    return sorted(rows.values(), key=lambda row: (row.name, row.peer or ""))


if __name__ == "__main__":
    main()
