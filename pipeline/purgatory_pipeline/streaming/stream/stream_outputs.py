"""Outputs of a stream: outcomes go to files, a Kafka topic or a table; rows set aside go to files.

A micro-batch that is repeated after a crash writes the same outcomes again. Files and table partitions are replaced by
batch number, so each outcome is stored once. A Kafka topic may contain duplicates; deduplicate by caller and id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.streaming.stream.payloads import unpacked
from purgatory_pipeline.streaming.stream.shard_step import OUTCOMES, TABLES, PlayedBatch
from purgatory_pipeline.streaming.stream.stream_inputs import KAFKA, StreamUnusable

TABLE: Final = "table:"
BATCH: Final = "batch"
"""Name of the column and of the folders with the number of the micro-batch."""

IMPLEMENTATION: Final = "spark.sql.catalogImplementation"

COUNTED: Final = pa.schema([("table", pa.string()), ("count", pa.int64()), ("pending", pa.int64())])
COUNTED_DDL: Final = "table string, count long, pending long"
Counts = dict[str, int]
"""Number of rows by table; under `pending`, the number of pending operations."""


class AddedCounts(AccumulatorParam[Counts]):
    """Adds the counts of Spark tasks."""

    def zero(self, value: Counts) -> Counts:
        """Nothing."""
        del value
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802 - Spark's name
        """The sums."""
        return {name: value1.get(name, 0) + value2.get(name, 0) for name in value1 | value2}


class StreamOutput:
    """`uri`: a folder, `kafka://BROKERS/TOPIC`, or `table:NAME`. `aside`: a folder for rows set aside.

    Raises `StreamUnusable` if `uri` is not a valid output.
    """

    def __init__(self, uri: str, aside: str) -> None:
        self.uri: Final = uri
        self._to_spark: Callable[[DataFrame, int], None] | None = None
        """Writes the outcomes of a batch to a topic or table; None for files, which are written without Spark."""
        self._counts: Accumulator[Counts] | None = None
        """Shared by all batches, because Spark never frees an accumulator."""
        self._folders: Final = {name: open_location(aside).child(name).uri for name in TABLES}
        if uri.startswith(TABLE):
            self._to_spark = self._to_table
        elif uri.startswith(f"{KAFKA}://"):
            parts = urlsplit(uri)
            if not parts.netloc or not parts.path.strip("/"):
                raise StreamUnusable(f"not a Kafka URI: {uri}; expected kafka://BROKER:PORT/TOPIC")
            self._to_spark = self._to_topic
        else:
            self._folders[OUTCOMES] = open_location(uri).child(OUTCOMES).uri

    def require_catalog(self, session: SparkSession) -> None:
        """Raise `StreamUnusable` for a table whose name the catalog forgets when the process ends."""
        own_catalog = self.uri.removeprefix(TABLE).partition(".")[0]
        names = [f"spark.sql.catalog.{name}" for name in (own_catalog, "spark_catalog")]
        is_kept = any(session.conf.get(name, None) for name in names)
        if self.uri.startswith(TABLE) and not is_kept and session.conf.get(IMPLEMENTATION) == "in-memory":
            raise StreamUnusable(
                f"--results {self.uri}: Spark's catalog is in memory and forgets the table when this command ends: "
                f"give --conf {IMPLEMENTATION}=hive, or set up another catalog by --conf spark.sql.catalog.NAME"
            )

    def clear(self, batch: int) -> None:
        """Remove the files that an earlier run wrote for a micro-batch that it did not commit.

        With changed options, such as another delay, other shards may have outcomes this time, so they would not all be
        overwritten.
        """
        for folder in self._folders.values():
            part = open_location(folder).child(f"{BATCH}={batch:08d}")
            if part.names():
                part.filesystem.delete_dir(part.root)

    def write_frame(self, played: DataFrame, batch: int) -> Counts:
        """Write a micro-batch, given as records of `PLAYED_DDL`. Each executor writes the files of its shards."""
        if self._to_spark is None:
            rows = played.mapInArrow(part_writer(self._folders, batch), COUNTED_DDL)
            return counts_of(rows.toArrow())
        # A single Spark job: other tables are written and counted by the function that passes outcomes on to Spark.
        if self._counts is None:
            self._counts = played.sparkSession.sparkContext.accumulator({}, AddedCounts())
        self._counts.value = {}
        others = {name: folder for name, folder in self._folders.items() if name != OUTCOMES}
        read = outcome_reader(others, batch, self._counts)
        self._to_spark(played.mapInArrow(read, from_arrow_schema(TABLES[OUTCOMES])), batch)
        return self._counts.value

    def write_tables(self, played: PlayedBatch, frame: DataFrame, batch: int, *, is_first: bool) -> Counts:
        """Write the result of a shard on the driver; `frame` is any frame of the session.

        `is_first`: this is the first batch of the run, which an earlier run may have written already.
        """
        folders = self._folders
        if self._to_spark is not None:
            folders = {name: folder for name, folder in self._folders.items() if name != OUTCOMES}
            if played.tables[OUTCOMES].num_rows or is_first:
                self._to_spark(frame.sparkSession.createDataFrame(played.tables[OUTCOMES]), batch)
        for name, rows in played.tables.items():
            if rows.num_rows and name in folders:
                write_part(folders[name], batch, 0, rows)
        return {name: rows.num_rows for name, rows in played.tables.items()} | {"pending": played.pending}

    def _to_topic(self, rows: DataFrame, batch: int) -> None:
        del batch
        parts = urlsplit(self.uri)
        key = F.concat_ws("/", "caller", "operation_id")
        values = rows.select(key.alias("key"), F.to_json(F.struct("*")).alias("value"))
        writer = values.write.format(KAFKA).option("kafka.bootstrap.servers", parts.netloc)
        writer.option("topic", parts.path.strip("/")).save()

    def _to_table(self, rows: DataFrame, batch: int) -> None:
        name, session = self.uri.removeprefix(TABLE), rows.sparkSession
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}, {BATCH} long) USING parquet PARTITIONED BY ({BATCH})"
        )
        # Replaces the partition even if a repeated batch has no outcomes this time.
        insert = f"INSERT OVERWRITE {name} PARTITION ({BATCH} = {batch}) SELECT * FROM {{rows}}"  # noqa: S608 - the user's own
        session.sql(insert, rows=rows)


def part_writer(folders: dict[str, str], batch: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that writes those tables of the records that have a folder, and yields the row counts."""

    def write(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in records:
            for name, count, shard, octets in zip(
                *(found.column(name).to_pylist() for name in ("table", "count", "shard", "rows")), strict=True
            ):
                if count and name in folders:
                    write_part(folders[name], batch, shard, unpacked([octets]))
            yield found.select(COUNTED.names)

    return write


def write_part(folder: str, batch: int, shard: int, rows: pa.Table) -> None:
    """Write one shard's rows of a batch atomically, replacing the file of an earlier attempt."""
    place = open_location(folder).child(f"{BATCH}={batch:08d}")
    place.filesystem.create_dir(place.root, recursive=True)
    name = f"shard-{shard:05d}.parquet"
    unfinished = place.child(f"_{name}").root
    pq.write_table(rows, unfinished, filesystem=place.filesystem, write_page_checksum=True)
    place.filesystem.move(unfinished, place.child(name).root)


def outcome_reader(
    folders: dict[str, str], batch: int, counts: Accumulator[Counts]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that writes and counts the records' tables and yields the outcomes, which have no folder."""
    write = part_writer(folders, batch)

    def read(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = TABLES[OUTCOMES]
        for found in records:
            counts.add(counts_of(pa.Table.from_batches(write([found]))))
            outcomes = found.filter(pc.equal(found.column("table"), OUTCOMES))
            yield from unpacked(outcomes.column("rows").to_pylist(), schema).cast(schema).to_batches()

    return read


def counts_of(found: pa.Table) -> Counts:
    """The sums over all shards."""
    counts: Counts = {}
    for row in found.to_pylist():
        counts[row["table"]] = counts.get(row["table"], 0) + row["count"]
        counts["pending"] = counts.get("pending", 0) + row["pending"]
    return counts
