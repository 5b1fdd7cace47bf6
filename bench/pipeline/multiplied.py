"""Makes a longer history from a generated one by repeating its runs on the following days, under new names.

    python -m bench.pipeline.multiplied .build/histories/10m .build/histories/30m 3

Written by the daemon's own code, and an archive like any other: `purgatory-pipeline check` finds nothing wrong. It
takes a tenth of the time in which as many operations are generated.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.files import ArchiveWriter
from tests.pipeline.history.make import TRUTH

__all__ = ["multiply"]

DAY_MS: Final = 86_400_000


def multiply(history: Path, out: Path, times: int) -> None:
    """Writes the history `times` times, on consecutive days. The truth comes last: with it, a history is complete."""
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} has files in it: remove it, or give another folder")
    truth = json.loads((history / TRUTH).read_text("utf-8"))
    runs = sorted({path.name.rpartition("-")[0] for path in history.glob(f"{schema.MARKERS}/*/*/*.parquet")})
    copies = list(product(runs, range(times)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for _ in pool.map(copy_run, *zip(*((history, out, run, day) for run, day in copies), strict=True)):
            pass
    longer = {name: value * times for name, value in truth.items()}
    (out / TRUTH).parent.mkdir(parents=True)
    (out / TRUTH).write_text(json.dumps(longer), "utf-8")


def copy_run(history: Path, out: Path, run: str, time: int) -> None:
    """Writes a copy of one run, moved by `time` times the length of its history."""
    hours = json.loads((history / TRUTH).read_text("utf-8"))["hours"]
    later_ms = time * -(-hours // 24) * DAY_MS
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
    """The rows as those of another run, later by the wall clock; the engine's clock starts at 0 in each run."""
    names = pa.DictionaryArray.from_arrays(np.zeros(rows.num_rows, np.int32), [run_id])
    at = rows.column("at")
    later = pa.array(at.cast(pa.int64()).to_numpy() + later_ms).cast(at.type)
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), "run_id": names, "at": later}
    return pa.RecordBatch.from_pydict(columns)


def main() -> None:
    """Multiplies what is named on the command line."""
    history, out, times = sys.argv[1:]
    multiply(Path(history), Path(out), int(times))


if __name__ == "__main__":
    main()
