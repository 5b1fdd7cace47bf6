"""Outputs of a stream: outcomes go to files, a Kafka topic or a table; rows set aside go to files.

A micro-batch that is repeated after a crash writes the same outcomes again. Files and table partitions are replaced by
batch number, so each outcome is stored once. A Kafka topic may contain duplicates; deduplicate by caller and id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.streaming.stream.shard_task import BATCH, OUTCOMES, TABLES
from purgatory_pipeline.streaming.stream.stream_inputs import KAFKA, StreamUnusable

TABLE: Final = "table:"
IMPLEMENTATION: Final = "spark.sql.catalogImplementation"


class StreamOutput:
    """`uri`: a folder, `kafka://BROKERS/TOPIC`, or `table:NAME`. `quarantine`: a folder for the other tables.

    Raises `StreamUnusable` if `uri` is not a valid output.
    """

    def __init__(self, uri: str, quarantine: str) -> None:
        self.uri: Final = uri
        self._to_spark: Callable[[DataFrame, int], None] | None = None
        """Writes the outcomes of a batch to a topic or table; None for files, which are written without Spark."""
        self.folders: Final = {name: open_location(quarantine).child(name).uri for name in TABLES if name != OUTCOMES}
        """Folders of the tables that are written as files."""
        if uri.startswith(TABLE):
            self._to_spark = self._to_table
        elif uri.startswith(f"{KAFKA}://"):
            parts = urlsplit(uri)
            if not parts.netloc or not parts.path.strip("/"):
                raise StreamUnusable(f"not a Kafka URI: {uri}; expected kafka://BROKER:PORT/TOPIC")
            self._to_spark = self._to_topic
        else:
            self.folders[OUTCOMES] = open_location(uri).child(OUTCOMES).uri

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
        for folder in self.folders.values():
            part = open_location(folder).child(f"{BATCH}={batch:08d}")
            if part.names():
                part.filesystem.delete_dir(part.root)

    def write(self, outcomes: DataFrame, batch: int) -> None:
        """Run the tasks of a micro-batch and write the outcomes that they yield: none if they write files."""
        if self._to_spark is None:
            outcomes.write.format("noop").mode("overwrite").save()
        else:
            self._to_spark(outcomes, batch)

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
