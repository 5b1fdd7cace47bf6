"""Inputs and outputs of a stream: folders of files, Kafka topics, tables.

Inputs are read as payloads for shards. Outcomes go to files, a Kafka topic or a table; rows set aside go to files.

A micro-batch that is repeated after a crash writes the same outcomes again. Files and table partitions are replaced by
batch number, so each outcome is stored once. A Kafka topic may contain duplicates; deduplicate by caller and id.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.location import open_location
from purgatory_pipeline.stream.payloads import PAYLOAD_DDL, file_packer, record_packer
from purgatory_pipeline.stream.shard_task import BATCH, OUTCOMES, TABLES

KAFKA: Final = "kafka"
JSON: Final = "json"
FORMATS: Final = {True: ("protobuf", JSON), False: ("parquet", JSON)}
"""Formats of Kafka records (True) and of files (False); the first is the default."""
AHEAD_MS: Final = 3_600_000


class StreamInput:
    """One of the two inputs: `side` is OPERATION or EVENT, `uri` a folder or `kafka://BROKERS/TOPIC`.

    Rows dated more than `ahead_ms` after the start of their micro-batch are set aside.

    Raises `PipelineError` if the URI or the format is not supported.
    """

    def __init__(
        self, side: str, uri: str, form: str, files_per_batch: int, records_per_batch: int, ahead_ms: int = AHEAD_MS
    ) -> None:
        self.side: Final = side
        self.uri: Final = uri
        self.is_kafka: Final = uri.startswith(f"{KAFKA}://")
        forms = FORMATS[self.is_kafka]
        if form not in ("", *forms):
            raise PipelineError(f"unknown format {form!r} for {uri}; supported: {', '.join(forms)}")
        self._is_json: Final = form == JSON
        self._files_per_batch: Final = files_per_batch
        self._records_per_batch: Final = records_per_batch
        self._ahead_ms: Final = ahead_ms

    def payloads(self, session: SparkSession, shards: int) -> DataFrame:
        if self.is_kafka:
            pack = record_packer(shards, self.side, is_json=self._is_json)
            return self._records(session).mapInArrow(pack, PAYLOAD_DDL)
        return self._paths(session).mapInArrow(file_packer(shards, self.side, is_json=self._is_json), PAYLOAD_DDL)

    def _latest_ms(self) -> Column:
        """The latest time that a row may have.

        Spark keeps the start of a micro-batch in the checkpoint, so a repeated batch sets the same rows aside.
        """
        return (F.unix_millis(F.current_timestamp()) + F.lit(self._ahead_ms)).alias("latest_ms")

    def _paths(self, session: SparkSession) -> DataFrame:
        place = open_location(self.uri)
        files = (
            session.readStream.format("binaryFile")
            .name(self.side)
            .schema("path string, modificationTime timestamp, length long, content binary")
            .option("recursiveFileLookup", "true")
            .option("maxFilesPerTrigger", self._files_per_batch)
            # By default Spark silently skips files modified more than a week before the newest one.
            .option("maxFileAge", "36500d")
            .load(place.spark_path(place.root))
        )
        return files.select("path", F.lit(self.uri).alias("uri"), self._latest_ms())

    def _records(self, session: SparkSession) -> DataFrame:
        brokers, topic = kafka_topic(self.uri)
        reader = (
            session.readStream.format(KAFKA)
            .name(self.side)
            .option("kafka.bootstrap.servers", brokers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._records_per_batch)
        )
        for name, value in parse_qsl(urlsplit(self.uri).query):
            reader = reader.option(name, value)
        return reader.load().select(
            F.col("value").alias("record"),
            F.unix_millis("timestamp").alias("at_ms"),
            F.col("offset").alias("place"),
            F.col("key").cast("string").alias("caller"),
            self._latest_ms(),
        )


def kafka_topic(uri: str) -> tuple[str, str]:
    """The brokers and the topic of a URI. Raises `PipelineError`."""
    parts = urlsplit(uri)
    topic = parts.path.strip("/")
    if not parts.netloc or not topic:
        raise PipelineError(f"not a Kafka URI: {uri}; expected kafka://BROKER:PORT/TOPIC")
    return parts.netloc, topic


TABLE: Final = "table:"
IMPLEMENTATION: Final = "spark.sql.catalogImplementation"


class StreamOutput:
    """`uri`: a folder, `kafka://BROKERS/TOPIC`, or `table:NAME`. `quarantine`: a folder for the other tables.

    Raises `PipelineError` if `uri` is not a valid output.
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
            kafka_topic(uri)
            self._to_spark = self._to_topic
        else:
            self.folders[OUTCOMES] = open_location(uri).child(OUTCOMES).uri

    def require_catalog(self, session: SparkSession) -> None:
        """Raise `PipelineError` for a table whose name the catalog forgets when the process ends."""
        own_catalog = self.uri.removeprefix(TABLE).partition(".")[0]
        names = [f"spark.sql.catalog.{name}" for name in (own_catalog, "spark_catalog")]
        is_kept = any(session.conf.get(name, None) for name in names)
        if self.uri.startswith(TABLE) and not is_kept and session.conf.get(IMPLEMENTATION) == "in-memory":
            raise PipelineError(
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
        brokers, topic = kafka_topic(self.uri)
        key = F.concat_ws("/", "caller", "operation_id")
        values = rows.select(key.alias("key"), F.to_json(F.struct("*")).alias("value"))
        writer = values.write.format(KAFKA).option("kafka.bootstrap.servers", brokers)
        writer.option("topic", topic).save()

    def _to_table(self, rows: DataFrame, batch: int) -> None:
        name, session = self.uri.removeprefix(TABLE), rows.sparkSession
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}, {BATCH} long) USING parquet PARTITIONED BY ({BATCH})"
        )
        # Replaces the partition even if a repeated batch has no outcomes this time.
        insert = f"INSERT OVERWRITE {name} PARTITION ({BATCH} = {batch}) SELECT * FROM {{rows}}"  # noqa: S608 - the user's own
        session.sql(insert, rows=rows)
