"""The Spark query of a stream: inputs, shards, outputs, and one log line per micro-batch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from purgatory_pipeline.location import open_location
from purgatory_pipeline.spark.spark_session import own_session
from purgatory_pipeline.stream.endpoints import StreamInput, StreamOutput
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.stream.payloads import PAYLOAD_DDL, clock_packer
from purgatory_pipeline.stream.shard_state import ShardLayout, saved_layout, write_layout
from purgatory_pipeline.stream.shard_task import OUTCOMES, TABLES, AddedCounts, ShardTask
from purgatory_pipeline.stream.wire_records import OPERATION

SETTINGS: Final = {
    # The checkpoint identifies inputs by name, so that a heartbeat can be added or removed between runs.
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    # TRAP: adaptive execution skips the tasks of a micro-batch without payloads, but each task must save its shard.
    "spark.sql.adaptive.enabled": "false",
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
    once: bool = False
    heartbeat_s: int = 0


class BatchWriter:
    """Plays each micro-batch in its shards, writes the outputs and prints one line about it."""

    def __init__(
        self, session: SparkSession, output: StreamOutput, layout: ShardLayout, delay_ms: int, *, quiet: bool
    ) -> None:
        self._output: Final = output
        self._layout: Final = layout
        self._delay_ms: Final = delay_ms
        self._quiet: Final = quiet
        self._counts: Final = session.sparkContext.accumulator({}, AddedCounts())
        """Shared by all batches, because Spark never frees an accumulator."""
        self._is_first = True

    def __call__(self, payloads: DataFrame, batch: int) -> None:
        """Write one micro-batch, possibly for the second time."""
        if self._is_first:
            self._output.clear(batch)
        self._is_first = False
        self._counts.value = {}
        task = ShardTask(self._layout, batch, self._delay_ms, self._output.folders, self._counts)
        shards = payloads.repartitionById(self._layout.shards, "shard")
        self._output.write(shards.mapInArrow(task, from_arrow_schema(OUTCOME_ROWS)), batch)
        counts = self._counts.value
        if not self._quiet:
            found = [
                f"{counts[name]:,} {name.replace('_', ' ')}" for name in TABLES if counts[name] or name == OUTCOMES
            ]
            print(f"batch {batch}: {', '.join(found)}; {counts['pending']:,} pending", file=sys.stderr, flush=True)


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
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    checkpoint = open_location(options.checkpoint)
    is_done = last_number(options.checkpoint, "offsets") == last_number(options.checkpoint, "commits")
    if checkpoint.spark_prefix == "file://" and is_done:
        session.conf.set(*LOCAL_FILES)
    layout = saved_layout(options.checkpoint) or write_layout(options.checkpoint, options.shards)
    # The order matters: Spark polls its sources one after another. Sources that advance time (heartbeats, events) come
    # first. Polled last, they could return an event without the registration written before it, which would be late.
    parts = [heartbeats(session, options.heartbeat_s, layout.shards)] if options.heartbeat_s else []
    parts += [one.payloads(session, layout.shards) for one in sorted(inputs, key=lambda one: one.side == OPERATION)]
    writer = (
        reduce(DataFrame.unionByName, parts)
        .writeStream.queryName("purgatory")
        .foreachBatch(BatchWriter(session, output, layout, options.delay_ms, quiet=quiet))
        .option("checkpointLocation", checkpoint.spark_uri)
    )
    triggered = writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime="0 seconds")
    return triggered.start()


def last_number(checkpoint: str, log: str) -> int | None:
    """The last micro-batch in one of Spark's logs (`offsets`: started, `commits`: committed); None if it is empty."""
    return max((int(name) for name in open_location(checkpoint).child(log).names() if name.isdigit()), default=None)


def heartbeats(session: SparkSession, every_s: int, shards: int) -> DataFrame:
    ticks = session.readStream.format("rate").name("heartbeat").option("rowsPerSecond", 1).load()
    rows = ticks.where(F.col("value") % every_s == 0).select(F.unix_millis("timestamp").alias("at_ms"))
    return rows.mapInArrow(clock_packer(shards), PAYLOAD_DDL)
