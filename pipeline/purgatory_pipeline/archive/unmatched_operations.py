"""Operations with only one of their two ends in an archive: the buckets that differ in the survey, one by one.

Both ends of an operation are mostly written at about the same time. So each task first pairs what it finds in its own
files, and only unpaired ends are shuffled. Such an end may still belong to an operation whose pair a task has already
dropped (a second outcome, say): so all rows of these few operations are then read again and counted in full.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.archive import schema
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.integers import Flags
from purgatory_pipeline.archive.survey import Selection, columns_of, operations_of, parts_of

NO_OUTCOME: Final = "no outcome"
NO_REGISTRATION: Final = "no registration"
REPEATED: Final = "repeated"

MARGIN_MS: Final = 60_000
"""Around a window: the wall clock may have jumped between the two ends of an operation."""

_KEY: Final = ["run_id", "session_number", "operation_id"]
_NUMBERS: Final = ("session_number", "operation_id", "call_number", "registered_at_ms")
_ROWS: Final = (
    "run_id string, session_number bigint, operation_id bigint, call_number bigint, registered_at_ms bigint, "
    "ended boolean, inside boolean, hash bigint"
)
_UNMATCHED: Final = ("run_id", "what", "early", "before_run", "count")
_NEVER: Final = 2**63 - 1


@dataclass(frozen=True)
class UnmatchedCount:
    """How many operations of a run do not have exactly one registration and one outcome.

    `early`: registered before the run's first registration that is in the archive. `before_run`: before the run began.
    """

    run_id: str
    what: str
    early: bool
    before_run: bool
    operations: int


@dataclass(frozen=True)
class CandidateReader:
    """The work of a task: reads chunks of files and yields the operations of the buckets that differ.

    `drop_pairs`: leaves out pairs found within a chunk. Not where rows are there twice: a pair would hide its copy.
    `only`: restricts to these operations (sorted hashes); None: all.
    """

    uri: str
    chunks: Sequence[Sequence[ArchiveFile]]
    window: Selection
    differing: Flags
    drop_pairs: bool
    only: npt.NDArray[np.int64] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes the numbers of chunks."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                parts = [part for file in self.chunks[number] for part in self._candidates(file)]
                if parts:
                    rows = pa.concat_tables(parts)
                    yield from (rows.filter(_unpaired(rows)) if self.drop_pairs else rows).to_batches()

    def _candidates(self, file: ArchiveFile) -> Iterator[pa.Table]:
        ended = file.table == schema.OUTCOMES
        near = self.window.widened(MARGIN_MS)
        for part in parts_of(self.uri, file, columns_of(file.table, self.window)):
            operations = operations_of(file, part, self.window)
            hashes = operations.hashes.view(np.int64)
            kept = self.differing[operations.buckets] & (operations.item == 0)
            if self.only is not None:
                kept &= np.isin(hashes, self.only)
            if not ended:
                kept &= near.holds(operations.at_ms)
            numbers = operations.session, operations.operation, operations.call, operations.registered_at_ms
            columns = {name: values[kept] for name, values in zip(_NUMBERS, numbers, strict=True)}
            count = int(np.count_nonzero(kept))
            yield pa.table(
                {
                    "run_id": pa.repeat(pa.scalar(file.run_id), count),
                    **columns,
                    "ended": np.full(count, ended),
                    "inside": operations.inside[kept],
                    "hash": hashes[kept],
                }
            )


def find_unmatched(
    spark: SparkSession, reading: CandidateReader, first_registered_ms: dict[str, int], started_ms: dict[str, int]
) -> list[UnmatchedCount]:
    """Counts unmatched operations by run, in a few rows each. Both tables are by run, on the wall clock."""
    # First only what its own task could not pair. That misses operations with, say, a second outcome in another chunk:
    # one task has dropped their pair. So the rows of all suspects are read again, this time with their pairs.
    if reading.drop_pairs:
        suspects = _operations(spark, reading).where("what is not null").select("hash").toArrow()
        reading = replace(reading, drop_pairs=False, only=suspects.column("hash").to_numpy())
    run_ids = sorted({*first_registered_ms, *started_ms})
    starts = [(run_id, first_registered_ms.get(run_id, _NEVER), started_ms.get(run_id, 0)) for run_id in run_ids]
    firsts = spark.createDataFrame(starts, "run_id string, first_ms bigint, started_ms bigint")
    early = F.col("registered_at_ms") < F.coalesce("first_ms", F.lit(_NEVER))
    before_run = F.col("registered_at_ms") < F.coalesce("started_ms", F.lit(0))
    counted = (
        _operations(spark, reading)
        .where("what is not null")
        .join(F.broadcast(firsts), "run_id", "left")
        .groupBy("run_id", "what", early.alias("early"), before_run.alias("before_run"))
        .count()
    )
    found = [UnmatchedCount(*(row[name] for name in _UNMATCHED)) for row in counted.collect()]
    return sorted(found, key=lambda one: (one.run_id, one.what, one.early, one.before_run))


def _operations(spark: SparkSession, reading: CandidateReader) -> DataFrame:
    """One row for each operation read; `what` is wrong with it, or null."""
    ended = F.col("ended")
    return (
        spark.range(0, len(reading.chunks), 1, len(reading.chunks))
        .mapInArrow(reading, _ROWS)
        .groupBy(*_KEY)
        .agg(
            F.count_distinct(F.when(~ended, F.col("call_number"))).alias("registrations"),
            F.count_distinct(F.when(ended, F.col("call_number"))).alias("outcomes"),
            F.max(F.col("inside") & ~ended).alias("registered_inside"),
            F.max(F.col("inside") & ended).alias("ended_inside"),
            F.min("registered_at_ms").alias("registered_at_ms"),
            F.first("hash").alias("hash"),
        )
        .withColumn("what", _what())
    )


def _what() -> Column:
    registered, ended = F.col("registered_inside"), F.col("ended_inside")
    repeated = (F.col("outcomes") > 1) | (F.col("registrations") > 1)
    return (
        F.when((F.col("outcomes") == 0) & registered, NO_OUTCOME)
        .when((F.col("registrations") == 0) & ended, NO_REGISTRATION)
        .when(repeated & (registered | ended), REPEATED)
    )


def _unpaired(rows: pa.Table) -> pa.Array:
    """Which rows are not one half of exactly one registration and one outcome."""
    _, place, counts = np.unique(rows.column("hash").to_numpy(), return_inverse=True, return_counts=True)
    ends = np.bincount(place, weights=rows.column("ended").to_numpy(), minlength=len(counts))
    return pa.array(~((counts == 2) & (ends == 1))[place])
