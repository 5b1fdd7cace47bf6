"""Changes to a stopped stream: another number of shards, and moves of its pending operations from and to a journal."""

from __future__ import annotations

from pathlib import Path

from purgatory_pipeline.analytics.archive.location import open_location
from purgatory_pipeline.streaming.stream.journal_moves import MoveRefused, journal_of_shards, shard_of_journal
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard_layout import ShardLayout, newest_layout, write_layout
from purgatory_pipeline.streaming.stream.stream_inputs import StreamUnusable


def reshard_stream(checkpoint: str, shards: int) -> tuple[ShardLayout, ShardLayout]:
    """Distribute a stopped stream over `shards` shards, used from its next run on. Returns the old and the new layout.

    Raises:
        StreamUnusable: No stream has run here, or its last micro-batch is not committed.
    """
    before, batch = stopped_stream(checkpoint)
    states = shard_bytes.divided(before.read_all(batch), shards)
    return before, write_layout(checkpoint, before.number + 1, states, batch)


def begin_from_journal(folder: Path, checkpoint: str, shards: int) -> int:
    """Write the initial state of a stream from a journal. Returns the number of pending operations.

    Args:
        folder: Data folder of a stopped daemon.
        checkpoint: Checkpoint of the new stream.
        shards: Number of shards.

    Raises:
        MoveRefused: The stream has already started, or the journal cannot be moved.
    """
    if newest_layout(checkpoint) is not None:
        raise MoveRefused(f"{checkpoint} already contains a stream: name another checkpoint")
    saved = shard_of_journal(folder)
    write_layout(checkpoint, 0, shard_bytes.divided([saved], shards))
    return shard_bytes.from_bytes(saved, 0).pending


def end_in_journal(checkpoint: str, folder: Path) -> int:
    """Write the pending operations of a stopped stream as a journal. Returns their number.

    Raises:
        StreamUnusable: There is no stream, or its last micro-batch is not committed.
        MoveRefused: The pending operations cannot be moved.
    """
    layout, batch = stopped_stream(checkpoint)
    return journal_of_shards(layout.read_all(batch), folder)


def stopped_stream(checkpoint: str) -> tuple[ShardLayout, int]:
    """The layout of a stopped stream, and its next micro-batch.

    Raises:
        StreamUnusable: No stream has run here, or its last micro-batch is not committed.
    """
    done, layout = last_number(checkpoint, "commits"), newest_layout(checkpoint)
    if done is None or layout is None:
        raise StreamUnusable(f"no stream has run with the checkpoint {checkpoint}")
    if last_number(checkpoint, "offsets") != done:
        raise StreamUnusable(f"{checkpoint}: the last micro-batch is not committed: run `stream --once` first")
    return layout, done + 1


def last_number(checkpoint: str, log: str) -> int | None:
    """The last micro-batch in one of Spark's logs (`offsets`: started, `commits`: committed); None if it is empty."""
    return max((int(name) for name in open_location(checkpoint).child(log).names() if name.isdigit()), default=None)
