"""Makes the runs of a plan on Spark, each in its own task, and writes them as the daemon writes its archive.

Spark only distributes the work. A task draws one run, plays it and writes its files aside; at its end they are moved to
their places, under names that depend only on the plan. So a task that Spark repeats replaces what its first attempt
left, and nothing is there twice.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import SparkSession

from purgatory import __version__
from purgatory.archive.files import ArchiveWriter, open_archive
from purgatory.archive.records import row_record
from purgatory.archive.rows import make_rows
from purgatory.archive.run_details import RunDetails
from purgatory.archive.schema import ENDED, MARKERS, STARTED
from purgatory.archive.vocabulary import CallStamp, CannotArchive
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.generate.draw.drawn_run import draw_run
from purgatory_pipeline.generate.engine_player import ENDED_PER_CALL, EnginePlayer
from purgatory_pipeline.generate.history_plan import HistoryPlan, RunPlan
from purgatory_pipeline.generate.truth import RUNS, Truth, run_truth, write_text

ROLL_BYTES: Final = 2**40
"""Never reached: a run's files are moved to their places together."""


@dataclass(frozen=True)
class MadeArchive:
    runs: int
    operations: int
    rows: int
    files: int
    bytes: int
    seconds: float


def make_run(plan: RunPlan, out: str) -> Truth:
    """Draws, plays and writes one run and its truth."""
    started_s = time.perf_counter()
    filesystem, root = open_archive(out)
    writer = ArchiveWriter(filesystem, root, plan.run_id, roll_s=math.inf, roll_bytes=ROLL_BYTES)
    details = RunDetails(version=__version__, expired_per_slice=ENDED_PER_CALL, host="generated", pid=0)
    begin = CallStamp(plan.run_id, 0, 0, plan.start_ms)
    started = row_record(MARKERS, begin, marker=STARTED, detail=details.to_json())
    writer.write(MARKERS, make_rows(MARKERS, [started]))
    run = draw_run(plan)
    player = EnginePlayer(run, writer)
    player.play()
    end_ms = run.end_ms
    end = CallStamp(plan.run_id, player.call_number, end_ms, plan.start_ms + end_ms)
    writer.write(MARKERS, make_rows(MARKERS, [row_record(MARKERS, end, marker=ENDED)]))
    writer.roll()
    player.rows[MARKERS] = 2
    seconds = time.perf_counter() - started_s
    truth = run_truth(run, player.tally, player.rows, writer.statistics.files, writer.statistics.bytes, seconds)
    write_text(filesystem, f"{root}/{RUNS}", f"{plan.run_id}.json", json.dumps(truth))
    return truth


def check_empty(out: str) -> None:
    """Raises `ArchiveUnusable` if the folder has files in it or cannot be written."""
    try:
        filesystem, root = open_archive(out)
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    except (CannotArchive, OSError, pa.ArrowException) as error:
        raise ArchiveUnusable(str(error)) from None
    files = [info.path for info in found if info.type == fs.FileType.File]
    if files:
        raise ArchiveUnusable(f"{out} is not empty ({files[0]} and {len(files) - 1} more files): give another --out")


def make_archive(spark: SparkSession, plan: HistoryPlan, out: str) -> MadeArchive:
    """Makes the whole archive; its truth is summed up by `summarize`. Raises `ArchiveUnusable`."""
    check_empty(out)
    started_s = time.perf_counter()
    place = out if "://" in out else str(Path(out).absolute())  # executors may stand elsewhere
    made = (
        spark.range(0, plan.runs, 1, plan.runs)
        .mapInArrow(_maker(plan, place), "operations long, files long, bytes long, rows long")
        .groupBy()
        .sum()
        .collect()[0]
    )
    operations, files, size, rows = (int(value or 0) for value in made)
    return MadeArchive(plan.runs, operations, rows, files, size, time.perf_counter() - started_s)


def _maker(plan: HistoryPlan, out: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                truth = make_run(plan.run(index), out)
                figures = {name: truth[name] for name in ("operations", "files", "bytes")}
                yield pa.RecordBatch.from_pylist([figures | {"rows": sum(truth["rows"].values())}])

    return make
