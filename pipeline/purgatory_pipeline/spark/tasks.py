"""Work in tasks of Spark. Sessions of Spark Connect have no `SparkContext`, so what needs one is here."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from importlib import resources
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

Part = TypeVar("Part")
Value = TypeVar("Value")
_OBJECTS: Final = pa.schema([("octets", pa.binary())])
BROADCAST_ROWS_MAX: Final = 1_000_000
"""Up to this many rows of slots are broadcast, so that joining the rows of a table with them needs no shuffle."""


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def parallelism(spark: SparkSession) -> int:
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()


def is_small(spark: SparkSession) -> bool:
    """Whether all rows of a shuffle go to one task, as `spark_session` sets it for few rows."""
    return spark.conf.get("spark.sql.shuffle.partitions") == "1"


def small_side(frame: DataFrame, rows_max: int | None = None) -> DataFrame:
    """The smaller side of a join, broadcast if it has at most `rows_max` rows. In a small session a broadcast
    saves no shuffle and costs a job.
    """
    if is_small(frame.sparkSession) or (rows_max is not None and frame.count() > rows_max):
        return frame
    return F.broadcast(frame)


def collected(frames: Mapping[str, DataFrame]) -> dict[str, pa.Table]:
    """The rows of several frames, by one query. Columns of the same name have the same type in all frames."""
    tagged = [frame.withColumn("frame", F.lit(name)) for name, frame in frames.items()]
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), tagged).toArrow()
    return {name: rows.filter(pc.field("frame") == name).select(frame.columns) for name, frame in frames.items()}


def in_tasks(
    spark: SparkSession, parts: Sequence[Part], do: Callable[[Part], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """The rows that `do` gives for each part, in a task of its own. PySpark broadcasts what is large of both."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from do(parts[number])

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(work, from_arrow_schema(schema))


def results_of(spark: SparkSession, parts: Sequence[Part], do: Callable[[Part], Value]) -> list[Value]:
    """What `do` gives for each part, in a task of its own. Runs at once."""
    if not is_connect(spark):  # no query has to be planned, and Python workers that exist are used again
        return spark.sparkContext.parallelize(parts, max(len(parts), 1)).map(do).collect()

    def pickled(part: Part) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"octets": [pickle.dumps(do(part))]}, _OBJECTS)

    found = in_tasks(spark, parts, pickled, _OBJECTS).toArrow()
    return [pickle.loads(octets) for octets in found.column("octets").to_pylist()]  # noqa: S301 - of our own tasks


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A table as a DataFrame. Spark itself stops at an empty chunk, and Spark Connect at an empty table."""
    if table.num_rows:
        return spark.createDataFrame(table.combine_chunks())
    return spark.createDataFrame([], from_arrow_schema(table.schema))


def queried(folder: str, name: str, **inputs: DataFrame | float | str) -> DataFrame:
    """The rows of the query NAME.sql of a folder of ours. It names its inputs in braces: frames, numbers and texts."""
    text = resources.files("purgatory_pipeline").joinpath(folder, f"{name}.sql").read_text("utf-8")
    frames = (value for value in inputs.values() if isinstance(value, DataFrame))
    found = next(frames).sparkSession.sql(text, None, **inputs)
    # Spark Connect names checkpoints by their ids, and drops each with the last Python frame that is made of it.
    vars(getattr(found, "_plan", found))["inputs"] = inputs
    return found
