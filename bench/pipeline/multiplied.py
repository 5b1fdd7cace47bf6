"""Makes a longer history from a generated one by repeating its runs on the following days under new names.

    python -m bench.pipeline.multiplied .build/histories/10m .build/histories/30m 3

The daemon's own code writes it, and it is an archive like any other: `purgatory-pipeline check` finds no fault. It
takes a tenth of the time of generating as many operations. Its truth file contains only the plan.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.archive import layout, schema
from purgatory.archive.files import ArchiveWriter

__all__ = ["multiply"]

DAY_MS: Final = 86_400_000
TRUTH: Final = Path("_truth") / "truth.json"


def multiply(history: Path, out: Path, times: int) -> None:
    """Write the history `times` times, on consecutive days. The truth file is written last and marks the result as
    complete.
    """
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} has files in it: remove it, or give another folder")
    truth = json.loads((history / TRUTH).read_text("utf-8"))
    runs = sorted({path.name.rpartition("-")[0] for path in history.glob(f"{schema.MARKERS}/*/*/*.parquet")})
    copies = list(product(runs, range(times)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for _ in pool.map(copy_run, *zip(*((history, out, run, day) for run, day in copies), strict=True)):
            pass
    plan: dict[str, Any] = truth["plan"]
    days = -(-plan["duration_ms"] // DAY_MS) * times
    longer = {"operations": plan["operations"] * times, "runs": len(copies), "duration_ms": days * DAY_MS}
    (out / TRUTH).parent.mkdir(parents=True)
    (out / TRUTH).write_text(json.dumps({"plan": {**plan, **longer}, "planted": truth["planted"]}), "utf-8")


def copy_run(history: Path, out: Path, run: str, time: int) -> None:
    """Write one run once more, shifted by `time` times the length of the history."""
    plan = json.loads((history / TRUTH).read_text("utf-8"))["plan"]
    later_ms = time * -(-plan["duration_ms"] // DAY_MS) * DAY_MS
    writer = ArchiveWriter(fs.LocalFileSystem(), str(out), f"{run}-{time + 1:03d}", roll_s=float("inf"))
    (out / layout.WRITING).mkdir(parents=True, exist_ok=True)
    for table in schema.TABLES:
        for rows in rows_of(history, table, run):
            writer.write(table, moved(rows, writer.run_id, later_ms))
            if writer.is_due:
                writer.roll()
    writer.roll()


def rows_of(history: Path, table: str, run: str) -> Iterator[pa.RecordBatch]:
    """A run's rows of a table, in the order of its files."""
    for path in sorted(history.glob(f"{table}/*/*/{run}-*.parquet"), key=lambda path: path.name):
        yield from pq.ParquetFile(path).iter_batches(batch_size=1 << 17)


def moved(rows: pa.RecordBatch, run_id: str, later_ms: int) -> pa.RecordBatch:
    """The rows under another run id and later by the wall clock. The engine's clock is unchanged: it starts at 0 in
    each run.
    """
    names = pa.DictionaryArray.from_arrays(np.zeros(rows.num_rows, np.int32), [run_id])
    at = rows.column("at")
    later = pa.array(at.cast(pa.int64()).to_numpy() + later_ms).cast(at.type)
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), "run_id": names, "at": later}
    return pa.RecordBatch.from_pydict(columns)


def main() -> None:
    """Multiply the history named on the command line."""
    history, out, times = sys.argv[1:]
    multiply(Path(history), Path(out), int(times))


if __name__ == "__main__":
    main()
