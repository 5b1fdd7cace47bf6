"""How many shards a stream has, and what they begin from when that has changed.

`CHECKPOINT/shards/N` is the Nth division, one file a shard, and is there whole or not at all. The files of the first
one, 0, are empty. The checkpoint's own
state names the division that it came from, so each shard takes its file once: in the first micro-batch afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyarrow import fs

from purgatory_pipeline.archive.location import Location, open_location, open_output, write_file

FOLDER: Final = "shards"
_FILE: Final = "shard-{:05d}"


@dataclass(frozen=True)
class Division:
    """How a stream is divided. `number`: 0 for that of its first run."""

    checkpoint: str
    number: int
    shards: int

    def read(self, shard: int) -> bytes:
        """The bytes that a shard begins from."""
        place = open_location(self.checkpoint)
        path = f"{place.root}/{FOLDER}/{self.number:08d}/{_FILE.format(shard)}"
        with place.filesystem.open_input_stream(path) as stream:
            octets: bytes = stream.read()
            return octets


def newest_division(checkpoint: str) -> Division | None:
    """The division that a stream is in; None if it has none yet."""
    place = open_location(checkpoint)
    numbers = _folders(place)
    if not numbers:
        return None
    files = place.filesystem.get_file_info(fs.FileSelector(f"{place.root}/{FOLDER}/{max(numbers):08d}"))
    return Division(checkpoint, max(numbers), len(files))


def write_division(checkpoint: str, number: int, shards: Sequence[bytes]) -> Division:
    """Writes the bytes of each shard; those of divisions before are not needed any more."""
    place = open_location(checkpoint)
    folder = f"{place.root}/{FOLDER}"
    place.filesystem.delete_dir_contents(f"{folder}/_new", missing_dir_ok=True)
    new = open_output(f"{checkpoint}/{FOLDER}/_new")
    for shard, octets in enumerate(shards):
        write_file(new, _FILE.format(shard), octets)
    place.filesystem.move(f"{folder}/_new", f"{folder}/{number:08d}")
    for old in _folders(place):
        if old < number:
            place.filesystem.delete_dir(f"{folder}/{old:08d}")
    return Division(checkpoint, number, len(shards))


def _folders(place: Location) -> list[int]:
    selector = fs.FileSelector(f"{place.root}/{FOLDER}", allow_not_found=True)
    return [int(info.base_name) for info in place.filesystem.get_file_info(selector) if info.base_name.isdigit()]
