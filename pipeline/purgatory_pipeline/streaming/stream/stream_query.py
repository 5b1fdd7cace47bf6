"""The Spark query of a stream: inputs, shards, outputs, and one log line per micro-batch."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.spark.spark_session import own_session
from purgatory_pipeline.streaming.stream.divide_shards import last_number
from purgatory_pipeline.streaming.stream.driver_shard import STATES, DriverShard
from purgatory_pipeline.streaming.stream.payloads import PAYLOAD_DDL, clock_packer
from purgatory_pipeline.streaming.stream.shard_seeds import newest_division, write_division
from purgatory_pipeline.streaming.stream.shard_step import OUTCOMES, PLAYED_DDL, TABLES, ShardProcessor
from purgatory_pipeline.streaming.stream.stream_inputs import StreamInput, StreamUnusable
from purgatory_pipeline.streaming.stream.stream_outputs import StreamOutput
from purgatory_pipeline.streaming.stream.wire_records import OPERATION

STATE_STORE: Final = "spark.sql.streaming.stateStore"
SETTINGS: Final = {
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Writes only the changes instead of all files of the store: 20 to 40 % less time per batch.
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    # The checkpoint identifies inputs by name, so that a heartbeat can be added or removed between runs.
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
}

LOCAL_FILES: Final = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""Settings for a checkpoint in a local folder. Spark's default starts about thirty processes (chmod, readlink) per
micro-batch, which takes 0.1 s or more. TRAP: this manager silently does not overwrite existing files, so the offsets
of an uncommitted batch would stay. It is therefore used only if the last batch is committed, and only locally."""


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream. `heartbeat_s`: interval at which this machine's clock advances time; 0: never."""

    checkpoint: str
    shards: int = 4
    delay_ms: int = 2_000
    on_driver: bool = False
    once: bool = False
    heartbeat_s: int = 0
    trigger: str = "0 seconds"
    name: str = "purgatory"


class BatchWriter:
    """Writes the outputs of each micro-batch and prints one line about it."""

    def __init__(self, output: StreamOutput, driver: DriverShard | None, *, quiet: bool = False) -> None:
        self._output: Final = output
        self._driver: Final = driver
        self._quiet: Final = quiet
        self._is_first = True

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one micro-batch, possibly for the second time."""
        is_first, self._is_first = self._is_first, False
        if is_first:
            self._output.clear(batch)
        if self._driver is None:
            counts = self._output.write_frame(frame, batch)
        else:
            played = self._driver.play(frame.toArrow(), batch)
            counts = self._output.write_tables(played, frame, batch, is_first=is_first)
            self._driver.commit(batch)
        if counts and not self._quiet:
            said = [
                f"{counts[name]:,} {name.replace('_', ' ')}" for name in TABLES if counts.get(name) or name == OUTCOMES
            ]
            print(f"batch {batch}: {', '.join(said)}; {counts['pending']:,} pending", file=sys.stderr, flush=True)


def start_stream(
    session: SparkSession,
    inputs: list[StreamInput],
    output: StreamOutput,
    options: StreamOptions,
    *,
    quiet: bool = False,
) -> StreamingQuery:
    """Start the query. It continues from its checkpoint, if there is one, with the number of shards of the first run.

    The query runs in a session of its own, because its settings would break other queries of `session`.
    """
    session = own_session(session)
    use_state_store(session)
    checkpoint = open_location(options.checkpoint)
    is_done = last_number(options.checkpoint, "offsets") == last_number(options.checkpoint, "commits")
    if checkpoint.spark_prefix == "file://" and is_done:
        session.conf.set(*LOCAL_FILES)
    division = None
    if not options.on_driver:
        require_python(session.sparkContext.pythonExec)
        division = newest_division(options.checkpoint) or write_division(options.checkpoint, 0, [b""] * options.shards)
    shards = 1 if division is None else division.shards
    session.conf.set("spark.sql.shuffle.partitions", str(shards))
    # The order matters: Spark polls its sources one after another. Sources that advance time (heartbeats, events) come
    # first. Polled last, they could return an event without the registration written before it, which would be late.
    parts = [heartbeats(session, options.heartbeat_s, shards)] if options.heartbeat_s else []
    in_order = sorted(inputs, key=lambda one: one.side == OPERATION)
    parts += [one.for_driver(session) if options.on_driver else one.payloads(session, shards) for one in in_order]
    payloads = parts[0]
    for part in parts[1:]:
        payloads = payloads.unionByName(part, allowMissingColumns=True)
    driver = None
    if division is None:
        driver = DriverShard(checkpoint.child(STATES).uri, options.delay_ms)
    else:
        by_shard = payloads.groupBy("shard")
        processor = ShardProcessor(options.delay_ms, division)
        payloads = by_shard.transformWithStateInPandas(processor, PLAYED_DDL, "append", "None")
    writer = (
        payloads.writeStream.queryName(options.name)
        .foreachBatch(BatchWriter(output, driver, quiet=quiet))
        .option("checkpointLocation", checkpoint.spark_uri)
    )
    triggered = writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime=options.trigger)
    return triggered.start()


def require_python(python: str) -> None:
    """Check the Python interpreter: Spark plans a stateful step on the driver, with the interpreter path of executors.

    Raises `StreamUnusable` if this path does not exist on the driver.
    """
    if shutil.which(python) is None:
        raise StreamUnusable(
            f"{python} not found, and Spark needs the executors' interpreter on the driver too: start in the "
            f'folder that has it, for example after ln -s "$VIRTUAL_ENV" environment'
        )


def use_state_store(session: SparkSession) -> None:
    """Configure the state store and the checkpoint, for writing and for reading them."""
    for name, value in SETTINGS.items():
        session.conf.set(name, value)


def heartbeats(session: SparkSession, every_s: int, shards: int) -> DataFrame:
    """Payloads that only advance time."""
    ticks = session.readStream.format("rate").name("heartbeat").option("rowsPerSecond", 1).load()
    rows = ticks.where(F.col("value") % every_s == 0).select(F.unix_millis("timestamp").alias("at_ms"))
    return rows.mapInArrow(clock_packer(shards), PAYLOAD_DDL)
