"""The number of shards of a stream, and the states that they start from after this number has changed.

`CHECKPOINT/shards/NNNNNNNN` is a division of the stream: one file per shard, and `complete`, which is written last.
A folder without it is ignored, and overwritten by the next attempt; so nothing has to be moved, which object stores
cannot do with folders. The files of the first division, 0, are empty. The checkpoint's own state names the division
that it belongs to, so each shard reads its file once, in its first micro-batch after the division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from purgatory_pipeline.analytics.archive.location import Location, open_location, write_file

FOLDER: Final = "shards"
COMPLETE: Final = "complete"
_FILE: Final = "shard-{:05d}"


@dataclass(frozen=True)
class Division:
    """A division of a stream into shards. `number` is 0 for the first run and grows with each `reshard`."""

    checkpoint: str
    number: int
    shards: int

    def read(self, shard: int) -> bytes:
        """The saved state that a shard starts from."""
        return _folder(open_location(self.checkpoint), self.number).child(_FILE.format(shard)).read()


def newest_division(checkpoint: str) -> Division | None:
    """The current division of a stream; None if the stream has none yet."""
    place = open_location(checkpoint)
    for number in sorted(_numbers(place), reverse=True):
        names = _folder(place, number).names()
        if COMPLETE in names:
            return Division(checkpoint, number, len(names) - 1)
    return None


def write_division(checkpoint: str, number: int, shards: Sequence[bytes]) -> Division:
    """Writes the bytes of each shard and removes earlier divisions."""
    place = open_location(checkpoint)
    folder = _folder(place, number)
    place.filesystem.create_dir(folder.root, recursive=True)
    place.filesystem.delete_dir_contents(folder.root)  # files of an incomplete attempt
    for shard, octets in enumerate(shards):
        write_file(folder, _FILE.format(shard), octets)
    write_file(folder, COMPLETE, b"")
    for old in _numbers(place):
        if old < number:
            place.filesystem.delete_dir(_folder(place, old).root)
    return Division(checkpoint, number, len(shards))


def _folder(place: Location, number: int) -> Location:
    return place.child(f"{FOLDER}/{number:08d}")


def _numbers(place: Location) -> list[int]:
    return [int(name) for name in place.child(FOLDER).names() if name.isdigit()]
