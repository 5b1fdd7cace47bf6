"""Finds operations with only a registration or only an outcome: compares the rows of differing buckets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.extensions.archive import schema
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.survey import Selection, columns_of, operations_of, parts_of
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.spark.spark_session import SMALL_ROWS
from purgatory_pipeline.spark.tasks import frame_of

NO_OUTCOME: Final = "no outcome"
NO_REGISTRATION: Final = "no registration"
REPEATED: Final = "repeated"

MARGIN_MS: Final = 60_000
"""Margin around a window, as the wall clock may have jumped between an operation's registration and its outcome."""

_KEY: Final = ["run_id", "session_number", "operation_id"]
_ROWS: Final = pa.schema(
    {
        "run_id": pa.string(),
        **dict.fromkeys(
            ("session_number", "operation_id", "call_number", "registered_at_ms", "registered_ms"), pa.int64()
        ),
        **dict.fromkeys(("ended", "inside"), pa.bool_()),
    }
)
_NEVER: Final = 2**63 - 1


@dataclass(frozen=True)
class UnmatchedCount:
    """A count of a run's operations that do not have exactly one registration and one outcome.

    `continued`: the other half is in another run, because a journal kept the operation across a restart. `early`:
    registered before the run's first registration in the archive. `before_run`: registered before the run started.
    """

    run_id: str
    what: str
    early: bool
    before_run: bool
    continued: bool
    operations: int


@dataclass(frozen=True)
class CandidateReader:
    """A Spark task: reads chunks of files and yields the operations in the differing buckets."""

    uri: str
    chunks: Sequence[Sequence[ArchiveFile]]
    window: Selection
    differing: Flags

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The input batches contain chunk numbers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in self.chunks[number]:
                    yield from self._candidates(file)

    def _candidates(self, file: ArchiveFile) -> Iterator[pa.RecordBatch]:
        ended = file.table == schema.OUTCOMES
        near = self.window.widened(MARGIN_MS)
        for part in parts_of(self.uri, file, columns_of(file.table, self.window)):
            operations = operations_of(file, part, self.window)
            kept = self.differing[operations.buckets] & (operations.item == 0)
            if not ended:
                kept &= near.holds(operations.at_ms)
            count = int(np.count_nonzero(kept))
            yield pa.record_batch(
                {
                    "run_id": pa.repeat(file.run_id, count),
                    "session_number": operations.session[kept],
                    "operation_id": operations.operation[kept],
                    "call_number": operations.call[kept],
                    "registered_at_ms": operations.registered_at_ms[kept],
                    "registered_ms": operations.registered_ms[kept],
                    "ended": pa.repeat(ended, count),
                    "inside": operations.inside[kept],
                }
            )


def find_unmatched(
    spark: SparkSession, reading: CandidateReader, first_registered_ms: dict[str, int], started_ms: dict[str, int]
) -> list[UnmatchedCount]:
    """Counts unmatched operations by run. Both dictionaries map run ids to wall-clock milliseconds."""
    run_ids = sorted({*first_registered_ms, *started_ms})
    starts = [(run_id, first_registered_ms.get(run_id, _NEVER), started_ms.get(run_id, 0)) for run_id in run_ids]
    firsts = spark.createDataFrame(starts, "run_id string, first_ms bigint, started_ms bigint")
    ended = F.col("ended")
    operations = (
        _candidates(spark, reading)
        .groupBy(*_KEY)
        .agg(
            F.count_distinct(F.when(~ended, F.col("call_number"))).alias("registrations"),
            F.count_distinct(F.when(ended, F.col("call_number"))).alias("outcomes"),
            F.max(F.col("inside") & ~ended).alias("registered_inside"),
            F.max(F.col("inside") & ended).alias("ended_inside"),
            F.min("registered_at_ms").alias("registered_at_ms"),
            F.min("registered_ms").alias("registered_ms"),
        )
    )
    early = F.col("registered_at_ms") < F.coalesce("first_ms", F.lit(_NEVER))
    before_run = F.col("registered_at_ms") < F.coalesce("started_ms", F.lit(0))
    # With a journal, sessions keep their numbers across a restart. Unary waits (session 0) end with their daemon.
    others = F.collect_set("what").over(Window.partitionBy("session_number", "operation_id", "registered_ms"))
    is_pair = F.array_contains(others, NO_OUTCOME) & F.array_contains(others, NO_REGISTRATION)
    counted = (
        operations.withColumn("what", _what())
        .where("what is not null")
        .withColumn("continued", (F.col("session_number") > 0) & is_pair)
        .join(F.broadcast(firsts), "run_id", "left")
        .groupBy("run_id", "what", early.alias("early"), before_run.alias("before_run"), "continued")
        .count()
    )
    return [UnmatchedCount(*row) for row in sorted(counted.collect())]


def _candidates(spark: SparkSession, reading: CandidateReader) -> DataFrame:
    """The operations to compare. The driver reads them if they are few, which starts no worker."""
    chunks = len(reading.chunks)
    if sum(file.rows for chunk in reading.chunks for file in chunk) > SMALL_ROWS:
        return spark.range(0, chunks, 1, chunks).mapInArrow(reading, from_arrow_schema(_ROWS))
    numbers = pa.record_batch({"id": range(chunks)})
    found = pa.Table.from_batches(reading([numbers]), _ROWS)
    return frame_of(spark, found)


def _what() -> Column:
    """The kind of mismatch of an operation, or null if it is matched."""
    registered, ended = F.col("registered_inside"), F.col("ended_inside")
    repeated = (F.col("outcomes") > 1) | (F.col("registrations") > 1)
    return (
        F.when((F.col("outcomes") == 0) & registered, NO_OUTCOME)
        .when((F.col("registrations") == 0) & ended, NO_REGISTRATION)
        .when(repeated & (registered | ended), REPEATED)
    )
