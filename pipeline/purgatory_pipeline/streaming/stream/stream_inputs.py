"""Inputs of a stream: folders of files or Kafka topics, read as payloads for shards."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.streaming.stream.file_rows import file_packer
from purgatory_pipeline.streaming.stream.payloads import PAYLOAD_DDL, record_packer

KAFKA: Final = "kafka"
JSON: Final = "json"
FORMATS: Final = {True: ("protobuf", JSON), False: ("parquet", JSON)}
"""Formats of Kafka records (True) and of files (False); the first is the default."""
AHEAD_MS: Final = 3_600_000


class StreamUnusable(PipelineError):
    """A stream cannot be read or written with the given options."""


class StreamInput:
    """One of the two inputs: `side` is OPERATION or EVENT, `uri` a folder or `kafka://BROKERS/TOPIC`.

    Rows dated more than `ahead_ms` after the start of their micro-batch are set aside.

    Raises `StreamUnusable` if the URI or the format is not supported.
    """

    def __init__(
        self, side: str, uri: str, form: str, files_per_batch: int, records_per_batch: int, ahead_ms: int = AHEAD_MS
    ) -> None:
        self.side: Final = side
        self.uri: Final = uri
        self.is_kafka: Final = uri.startswith(f"{KAFKA}://")
        forms = FORMATS[self.is_kafka]
        if form not in ("", *forms):
            raise StreamUnusable(f"unknown format {form!r} for {uri}; supported: {', '.join(forms)}")
        self._is_json: Final = form == JSON
        self._files_per_batch: Final = files_per_batch
        self._records_per_batch: Final = records_per_batch
        self._ahead_ms: Final = ahead_ms

    def payloads(self, session: SparkSession, shards: int) -> DataFrame:
        """The input as a stream of payloads (`payloads.PAYLOAD`)."""
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
        parts = urlsplit(self.uri)
        topic = parts.path.strip("/")
        if not parts.netloc or not topic:
            raise StreamUnusable(f"not a Kafka URI: {self.uri}; expected kafka://BROKER:PORT/TOPIC")
        reader = (
            session.readStream.format(KAFKA)
            .name(self.side)
            .option("kafka.bootstrap.servers", parts.netloc)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self._records_per_batch)
        )
        for name, value in parse_qsl(parts.query):
            reader = reader.option(name, value)
        return reader.load().select(
            F.col("value").alias("record"),
            F.unix_millis("timestamp").alias("at_ms"),
            F.col("offset").alias("place"),
            F.col("key").cast("string").alias("caller"),
            self._latest_ms(),
        )
