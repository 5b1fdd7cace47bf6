"""Changes the number of shards of a stopped stream: reads the states from its checkpoint, divides them, writes them."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import SparkSession

from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard_seeds import Division, newest_division, write_division
from purgatory_pipeline.streaming.stream.stream_inputs import StreamUnusable

STATES: Final = "statestore"


def divide_stream(session: SparkSession, checkpoint: str, shards: int) -> tuple[Division, Division]:
    """Divide a stopped stream into `shards` shards, used from its next run on. Returns the old and the new division.

    Raises:
        StreamUnusable: There is no stream with shards here, or its last micro-batch is not committed.
    """
    before = newest_division(checkpoint)
    last_batch(checkpoint)
    if before is None:
        raise StreamUnusable(f"{checkpoint}: no stream with shards has run there")
    saved = saved_shards(session, before)
    return before, write_division(checkpoint, before.number + 1, shard_bytes.divided(saved, shards))


def last_batch(checkpoint: str) -> int:
    """The last micro-batch of a stopped stream. Raises `StreamUnusable` as `divide_stream` does."""
    done = last_number(checkpoint, "commits")
    if done is None:
        raise StreamUnusable(f"{checkpoint}: no stream with shards has run there")
    if last_number(checkpoint, "offsets") != done:
        raise StreamUnusable(f"{checkpoint}: the last micro-batch is not committed: run `stream --once` first")
    return done


def saved_shards(session: SparkSession, division: Division) -> list[bytes]:
    """The saved states of all shards after the last micro-batch, by shard number."""
    checkpoint = open_location(division.checkpoint).spark_uri

    def states(name: str) -> list[tuple[int, Any]]:
        frame = session.read.format(STATES).option("stateVarName", name).load(checkpoint)
        return [(row["key"]["shard"], row["value"]) for row in frame.collect()]

    played = {shard for shard, numbers in states("numbers") if numbers[-1] == division.number}
    found = {shard: bytes(value[0]) for shard, value in states("shard") if shard in played}
    if (
        not played and division.number
    ):  # divided again before any micro-batch has run: the checkpoint has no states of this division
        found = {shard: division.read(shard) for shard in range(division.shards)}
    assert sorted(found) == list(range(division.shards)), f"states of {sorted(found)}, of {division.shards} shards"
    return [found[shard] for shard in range(division.shards)]


def last_number(checkpoint: str, log: str) -> int | None:
    """The last micro-batch in one of Spark's logs (`offsets`: started, `commits`: committed); None if it is empty."""
    return max((int(name) for name in open_location(checkpoint).child(log).names() if name.isdigit()), default=None)
