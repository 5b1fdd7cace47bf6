"""Starts a stream from a daemon's journal, and writes a stream back as a journal."""

from __future__ import annotations

from pathlib import Path

from purgatory_pipeline.analytics.archive.location import open_location, open_output, write_file
from purgatory_pipeline.spark.spark_session import spark_session
from purgatory_pipeline.streaming.stream.divide_shards import last_batch, saved_shards
from purgatory_pipeline.streaming.stream.driver_shard import BEGIN, STATES, SavedStates
from purgatory_pipeline.streaming.stream.journal_moves import LoadCannotMove, journal_of_shards, shard_of_journal
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard_seeds import newest_division, write_division
from purgatory_pipeline.streaming.stream.stream_query import use_state_store


def begin_from_journal(folder: Path, checkpoint: str, shards: int) -> int:
    """Write the initial state of a stream from a journal. Returns the number of pending operations.

    Args:
        folder: Data folder of a stopped daemon.
        checkpoint: Checkpoint of the new stream.
        shards: Number of shards; 0 for one shard on the driver.

    Raises:
        LoadCannotMove: The stream has already started, or the journal cannot be moved.
    """
    states = open_location(checkpoint).child(STATES).uri
    if newest_division(checkpoint) is not None or SavedStates(states).snapshots:
        raise LoadCannotMove(f"{checkpoint} already contains a stream: name another checkpoint")
    saved = shard_of_journal(folder)
    if shards:
        write_division(checkpoint, 1, shard_bytes.divided([saved], shards))
    else:
        write_file(open_output(states), BEGIN, saved)
    return shard_bytes.from_bytes(saved, 0).pending


def end_in_journal(checkpoint: str, folder: Path) -> int:
    """Write the pending operations of a stopped stream as a journal. Returns their number.

    Raises:
        StreamUnusable: There is no stream, or its last micro-batch is not committed.
        LoadCannotMove: The pending operations cannot be moved.
    """
    batch = last_batch(checkpoint)
    division = newest_division(checkpoint)
    if division is None:
        shard, *_ = SavedStates(open_location(checkpoint).child(STATES).uri).load(batch)
        return journal_of_shards([shard_bytes.to_bytes(shard)], folder)
    session = spark_session("to journal")
    use_state_store(session)
    return journal_of_shards(saved_shards(session, division), folder)
