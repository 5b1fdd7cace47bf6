"""Where a stream's outcomes go: folders of files, a topic of Kafka, or a table; what is set aside goes to files.

A micro-batch that is done again, after a kill, writes the same again: files and tables are replaced by the number of
the batch, so each outcome is there once. Kafka may get some twice: consumers tell by caller and id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_pipeline.archive.location import open_location
from purgatory_pipeline.stream.payloads import unpacked
from purgatory_pipeline.stream.shard_step import OUTCOMES, TABLES, PlayedBatch
from purgatory_pipeline.stream.stream_inputs import KAFKA, StreamUnusable

TABLE: Final = "table:"
BATCH: Final = "batch"
"""The column, and the folder, with the number of the micro-batch."""

COUNTED: Final = pa.schema([("table", pa.string()), ("count", pa.int64()), ("pending", pa.int64())])
COUNTED_DDL: Final = "table string, count long, pending long"
Counts = dict[str, int]
"""Rows of each table; under `pending`, how many operations wait."""


class AddedCounts(AccumulatorParam[Counts]):
    """Adds up what tasks have counted."""

    def zero(self, value: Counts) -> Counts:
        """Nothing."""
        del value
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802 - Spark's name
        """The sums."""
        return {name: value1.get(name, 0) + value2.get(name, 0) for name in value1 | value2}


class StreamOutput:
    """`uri`: a folder, `kafka://BROKERS/TOPIC`, or `table:NAME`. `aside`: a folder for what was set aside.

    Raises `StreamUnusable` for what cannot be one.
    """

    def __init__(self, uri: str, aside: str) -> None:
        self.uri: Final = uri
        self._to_spark: Callable[[DataFrame, int], None] | None = None
        """Writes the outcomes of a batch where only Spark can."""
        self._counts: Accumulator[Counts] | None = None
        """One for all batches: Spark never forgets an accumulator."""
        self._folders: Final = {name: f"{aside}/{name}" for name in TABLES}
        if uri.startswith(TABLE):
            self._to_spark = self._to_table
        elif uri.startswith(f"{KAFKA}://"):
            parts = urlsplit(uri)
            if not parts.netloc or not parts.path.strip("/"):
                raise StreamUnusable(f"{uri}: write kafka://BROKER:PORT/TOPIC")
            self._to_spark = self._to_topic
        else:
            open_location(uri)
            self._folders[OUTCOMES] = f"{uri}/{OUTCOMES}"

    def write_frame(self, played: DataFrame, batch: int) -> Counts:
        """Writes a micro-batch, given as records of `PLAYED_DDL`. Each shard writes files of its own, where it is."""
        if self._to_spark is None:
            rows = played.mapInArrow(part_writer(self._folders, batch), COUNTED_DDL)
            return counts_of(rows.toArrow())
        # One job for all of it: Spark writes the outcomes, the rest is written and counted on the way to it.
        if self._counts is None:
            self._counts = played.sparkSession.sparkContext.accumulator({}, AddedCounts())
        self._counts.value = {}
        others = {name: folder for name, folder in self._folders.items() if name != OUTCOMES}
        read = outcome_reader(others, batch, self._counts)
        self._to_spark(played.mapInArrow(read, from_arrow_schema(TABLES[OUTCOMES])), batch)
        return self._counts.value

    def write_tables(self, played: PlayedBatch, frame: DataFrame, batch: int) -> Counts:
        """The same for what the driver has; `frame` is any frame of the session."""
        folders = self._folders
        if self._to_spark is not None:
            folders = {name: folder for name, folder in self._folders.items() if name != OUTCOMES}
            if played.tables[OUTCOMES].num_rows:
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
        name = self.uri.removeprefix(TABLE)
        numbered = rows.withColumn(BATCH, F.lit(batch).cast("long"))
        if rows.sparkSession.catalog.tableExists(name):
            numbered.write.mode("overwrite").insertInto(name)
        else:
            numbered.write.partitionBy(BATCH).format("parquet").saveAsTable(name)


def part_writer(folders: dict[str, str], batch: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Writes the records' tables that have a folder, and says how many rows each record has."""

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
    """Writes what one shard has of a batch, whole or not at all; if it is there already, it is replaced by the same."""
    place = open_location(folder)
    parent = f"{place.root}/{BATCH}={batch:08d}"
    place.filesystem.create_dir(parent, recursive=True)
    name = f"shard-{shard:05d}.parquet"
    pq.write_table(rows, f"{parent}/_{name}", filesystem=place.filesystem)
    place.filesystem.move(f"{parent}/_{name}", f"{parent}/{name}")


def outcome_reader(
    folders: dict[str, str], batch: int, counts: Accumulator[Counts]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Writes and counts the records' tables, and gives the rows of outcomes, which have no folder."""
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
