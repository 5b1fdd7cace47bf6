"""The number of shards of a stream, and the saved state of each shard before and after a micro-batch.

`CHECKPOINT/shards/LLLLLLLL` is a layout of the stream: `complete`, which is written last and contains the number of
shards, and the file `BBBBBBBB-SSSSS` for each shard S, its state before micro-batch B. `reshard` writes another layout
with a higher number. A folder without `complete` is ignored and overwritten by the next attempt; no folder is ever
moved, because object stores cannot do that.

Micro-batch B reads the states B and writes the states B + 1, so Spark can repeat it. States of earlier micro-batches
are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A layout of a stream. `number` is 0 for the first run and grows with each `reshard`."""

    checkpoint: str
    number: int
    shards: int

    def read(self, shard: int, batch: int) -> bytes:
        """The state of a shard before a micro-batch; empty before the first one. Raises `StateMissing`."""
        place = self._file(shard, batch)
        try:
            return place.read()
        except FileNotFoundError:
            raise StateMissing(f"no state of shard {shard} before micro-batch {batch}: {place.uri} not found") from None

    def read_all(self, batch: int) -> list[bytes]:
        """The states of all shards before a micro-batch, by shard number. Raises `StateMissing`."""
        return [self.read(shard, batch) for shard in range(self.shards)]

    def load(self, shard: int, batch: int, delay_ms: int) -> Shard:
        """Restore a shard as it was before a micro-batch. Raises `StateMissing` or `SavedShardUnusable`."""
        octets = self.read(shard, batch)
        return shard_bytes.from_bytes(octets, delay_ms, number=shard) if octets else Shard(delay_ms, number=shard)

    def save(self, shard: Shard, batch: int) -> None:
        """Save a shard before micro-batch `batch`, the next one, and delete its state before the last but one."""
        place, folder = self._file(shard.number, batch), _folder(self.checkpoint, self.number)
        unfinished = write_file(folder, attempt_name(_name(shard.number, batch)), shard_bytes.to_bytes(shard))
        place.filesystem.move(unfinished, place.root)
        old = self._file(shard.number, batch - 2)
        if batch > 1 and old.exists():
            old.filesystem.delete_file(old.root)

    def _file(self, shard: int, batch: int) -> Location:
        return _folder(self.checkpoint, self.number).child(_name(shard, batch))


def newest_layout(checkpoint: str) -> ShardLayout | None:
    """The current layout of a stream; None if the stream has none yet."""
    for number in sorted(_numbers(checkpoint), reverse=True):
        marker = _folder(checkpoint, number).child(COMPLETE)
        if marker.exists():
            return ShardLayout(checkpoint, number, int(marker.read()))
    return None


def write_layout(checkpoint: str, number: int, states: Sequence[bytes], batch: int = 0) -> ShardLayout:
    """Write the state of each shard before a micro-batch, and delete earlier layouts."""
    folder = _folder(checkpoint, number)
    folder.filesystem.create_dir(folder.root, recursive=True)
    folder.filesystem.delete_dir_contents(folder.root)  # files of an incomplete attempt
    for shard, octets in enumerate(states):
        write_file(folder, _name(shard, batch), octets)
    write_file(folder, COMPLETE, str(len(states)).encode())
    for old in _numbers(checkpoint):
        if old < number:
            folder.filesystem.delete_dir(_folder(checkpoint, old).root)
    return ShardLayout(checkpoint, number, len(states))


def _name(shard: int, batch: int) -> str:
    return f"{batch:08d}-{shard:05d}"


def _folder(checkpoint: str, number: int) -> Location:
    return open_location(checkpoint).child(f"{FOLDER}/{number:08d}")


def _numbers(checkpoint: str) -> list[int]:
    return [int(name) for name in open_location(checkpoint).child(FOLDER).names() if name.isdigit()]
