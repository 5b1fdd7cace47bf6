"""The Spark query of a stream: inputs, shards, outputs, and the figures of each micro-batch."""

import sys
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from purgatory_pipeline.location import open_location
from purgatory_pipeline.spark.spark_session import OBSERVED_MARKS, own_session
from purgatory_pipeline.stream.endpoints import StreamInput, StreamOutput
from purgatory_pipeline.stream.payloads import PAYLOAD_DDL, clock_packer, instant
from purgatory_pipeline.stream.shard_state import saved_layout, write_layout
from purgatory_pipeline.stream.shard_task import FIGURES, OUTCOMES, TABLES, TASK_ROWS, ShardTask
from purgatory_pipeline.stream.wire_records import OPERATION

SETTINGS: Final = {
    # The checkpoint identifies inputs by name, so that a heartbeat can be added or removed between runs.
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    # TRAP: adaptive execution skips the tasks of a micro-batch without payloads, but each task must save its shard.
    "spark.sql.adaptive.enabled": "false",
    # By default, Spark refuses a checkpoint in which a killed query left a half-written record of its first offsets.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
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
    """Options of a stream. `heartbeat_s`: interval at which this machine's clock advances time; 0: never. `forget_ms`:
    see `Shard`.
    """

    checkpoint: str
    shards: int = 4
    delay_ms: int = 2_000
    once: bool = False
    heartbeat_s: int = 0
    forget_ms: int = 0


OBSERVED: Final = "purgatory"
"""Name of the figures of a micro-batch in the query's `lastProgress["observedMetrics"]`."""
POLL_S: Final = 1


class BatchWriter:
    """Writes the outcomes of each micro-batch, possibly for the second time."""

    def __init__(self, output: StreamOutput) -> None:
        self._output: Final = output
        self._is_first = True

    def __call__(self, outcomes: DataFrame, batch: int) -> None:
        """Run the tasks of a micro-batch and write what they yield."""
        if self._is_first:
            self._output.clear(batch)
        self._is_first = False
        self._output.write(outcomes, batch)


def observed_figures() -> list[Column]:
    """The figures of all shards: rows of this micro-batch by table, and the pending operations after it."""
    sums = [F.sum(f"{FIGURES}.{name}").alias(name) for name in (*TABLES, "pending")]
    horizon, oldest = F.min(f"{FIGURES}.horizon_ms"), F.max(f"{FIGURES}.oldest_wait_ms")
    return [*sums, horizon.alias("horizon_ms"), oldest.alias("oldest_wait_ms")]


def start_stream(
    session: SparkSession, inputs: list[StreamInput], output: StreamOutput, options: StreamOptions
) -> StreamingQuery:
    """Start the query. It continues from its checkpoint, if there is one, with the number of shards of the first run.

    The query runs in a session of its own, because its settings would break other queries of `session`.
    """
    session = own_session(session)
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    checkpoint = open_location(options.checkpoint)
    is_done = checkpoint.child("offsets").last_number() == checkpoint.child("commits").last_number()
    if checkpoint.spark_prefix == "file://" and is_done:
        session.conf.set(*LOCAL_FILES)
    layout = saved_layout(options.checkpoint) or write_layout(options.checkpoint, options.shards)
    # The order matters: Spark polls its sources one after another. Sources that advance time (heartbeats, events) come
    # first. Polled last, they could return an event without the registration written before it, which would be late.
    parts = [heartbeats(session, options.heartbeat_s, layout.shards)] if options.heartbeat_s else []
    parts += [one.payloads(session, layout.shards) for one in sorted(inputs, key=lambda one: one.side == OPERATION)]
    shards = reduce(DataFrame.unionByName, parts).repartitionById(layout.shards, "shard")
    task = ShardTask(layout, options.delay_ms, options.forget_ms, output.folders)
    played = shards.mapInArrow(task, from_arrow_schema(TASK_ROWS)).observe(OBSERVED, *observed_figures())
    marked = played.observe(OBSERVED_MARKS, F.min(f"{FIGURES}.horizon_ms").alias("horizon"))
    writer = (
        marked.where(F.col(FIGURES).isNull())
        .drop(FIGURES)
        .writeStream.queryName("purgatory")
        .foreachBatch(BatchWriter(output))
        .option("checkpointLocation", checkpoint.spark_uri)
    )
    triggered = writer.trigger(availableNow=True) if options.once else writer.trigger(processingTime="0 seconds")
    return triggered.start()


def print_progress(query: StreamingQuery) -> None:
    """Print a line about each micro-batch to stderr until the query ends. Raises the error that ended it."""
    shown, has_ended = -1, False
    while not has_ended:
        try:
            has_ended = bool(query.awaitTermination(POLL_S))
        finally:
            for progress in query.recentProgress:
                if progress.batchId > shown and OBSERVED in progress.observedMetrics:
                    shown = progress.batchId
                    line = figures_line(progress.observedMetrics[OBSERVED].asDict())
                    print(f"batch {shown}: {line}", file=sys.stderr, flush=True)


def figures_line(figures: dict[str, int]) -> str:
    found = [f"{figures[name]:,} {name.replace('_', ' ')}" for name in TABLES if figures[name] or name == OUTCOMES]
    oldest = f", the oldest for {figures['oldest_wait_ms'] / 1_000:,.1f} s" if figures["pending"] else ""
    played = f"; played up to {instant(figures['horizon_ms'])}" if figures["horizon_ms"] >= 0 else ""
    return f"{', '.join(found)}; {figures['pending']:,} pending{oldest}{played}"


def heartbeats(session: SparkSession, every_s: int, shards: int) -> DataFrame:
    ticks = session.readStream.format("rate").name("heartbeat").option("rowsPerSecond", 1).load()
    rows = ticks.where(F.col("value") % every_s == 0).select(F.unix_millis("timestamp").alias("at_ms"))
    return rows.mapInArrow(clock_packer(shards), PAYLOAD_DDL)
