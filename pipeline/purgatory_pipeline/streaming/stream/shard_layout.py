"""The number of shards of a stream, and the saved state of each shard before and after a micro-batch.

`CHECKPOINT/shards` has the file `complete`, which is written last and contains the number of shards, and the file
`BBBBBBBB-SSSSS` for each shard S, its state before micro-batch B. Without `complete`, the folder is overwritten by the
next attempt; no folder is ever moved, because object stores cannot do that.

Micro-batch B reads the states B and writes the states B + 1, so Spark can repeat it. States of earlier micro-batches
are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from purgatory_pipeline.analytics.archive.location import Location, attempt_name, open_location, write_file
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.streaming.stream.shard import shard_bytes
from purgatory_pipeline.streaming.stream.shard.shard import Shard

FOLDER: Final = "shards"
COMPLETE: Final = "complete"


class StateMissing(PipelineError):
    """The saved state of a shard does not exist."""


@dataclass(frozen=True)
class ShardLayout:
    """The number of shards of a stream, which its first run fixes."""

    checkpoint: str
    shards: int

    def read(self, shard: int, batch: int) -> bytes:
        """The state of a shard before a micro-batch; empty before the first one. Raises `StateMissing`."""
        place = self._file(shard, batch)
        try:
            return place.read()
        except FileNotFoundError:
            raise StateMissing(f"no state of shard {shard} before micro-batch {batch}: {place.uri} not found") from None

    def load(self, shard: int, batch: int, delay_ms: int) -> Shard:
        """Restore a shard as it was before a micro-batch. Raises `StateMissing` or `SavedShardUnusable`."""
        octets = self.read(shard, batch)
        return shard_bytes.from_bytes(octets, delay_ms, number=shard) if octets else Shard(delay_ms, number=shard)

    def save(self, shard: Shard, batch: int) -> None:
        """Save a shard before micro-batch `batch`, the next one, and delete its state before the last but one."""
        place, folder = self._file(shard.number, batch), _folder(self.checkpoint)
        unfinished = write_file(folder, attempt_name(_name(shard.number, batch)), shard_bytes.to_bytes(shard))
        place.filesystem.move(unfinished, place.root)
        old = self._file(shard.number, batch - 2)
        if batch > 1 and old.exists():
            old.filesystem.delete_file(old.root)

    def _file(self, shard: int, batch: int) -> Location:
        return _folder(self.checkpoint).child(_name(shard, batch))


def saved_layout(checkpoint: str) -> ShardLayout | None:
    """The layout of a stream; None if the stream has none yet."""
    marker = _folder(checkpoint).child(COMPLETE)
    return ShardLayout(checkpoint, int(marker.read())) if marker.exists() else None


def write_layout(checkpoint: str, shards: int) -> ShardLayout:
    """Write the empty state of each shard before the first micro-batch."""
    folder = _folder(checkpoint)
    folder.filesystem.create_dir(folder.root, recursive=True)
    folder.filesystem.delete_dir_contents(folder.root)  # files of an incomplete attempt
    for shard in range(shards):
        write_file(folder, _name(shard, 0), b"")
    write_file(folder, COMPLETE, str(shards).encode())
    return ShardLayout(checkpoint, shards)


def _name(shard: int, batch: int) -> str:
    return f"{batch:08d}-{shard:05d}"


def _folder(checkpoint: str) -> Location:
    return open_location(checkpoint).child(FOLDER)
