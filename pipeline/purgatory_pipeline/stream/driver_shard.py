"""One shard on the driver: three times as fast as shards in Spark's state store, where one machine is enough.

Outcomes are written first, then the state, each by the number of its batch. A batch that is done again begins with the
state of the one before and writes the same outcomes in the same place.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs
from pyspark.sql import DataFrame

from purgatory_pipeline.archive.location import open_location, open_output
from purgatory_pipeline.stream.file_rows import file_packer
from purgatory_pipeline.stream.payloads import PAYLOAD
from purgatory_pipeline.stream.shard import shard_bytes
from purgatory_pipeline.stream.shard.shard import Shard
from purgatory_pipeline.stream.shard_step import TABLES, PlayedBatch, play_payloads
from purgatory_pipeline.stream.stream_inputs import StreamUnusable
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION

KEPT: Final = 3
"""States; Spark may do the last batch again."""
BEGIN: Final = "begin"
"""The state before the first batch, where load came from elsewhere."""


class DriverShard:
    """`folder`: where the states are."""

    def __init__(self, folder: str, delay_ms: int) -> None:
        self._place: Final = open_output(folder)
        self._delay_ms: Final = delay_ms
        self._shard: Shard | None = None
        self._played = -1
        """The batch that the shard has played last."""

    def play(self, frame: DataFrame, batch: int) -> PlayedBatch:
        """Plays the payloads of a micro-batch. Raises `StreamUnusable`."""
        if self._shard is None or self._played != batch - 1:
            self._shard = self._load(batch - 1)
        payloads = frame.toArrow()
        self._played = batch
        if not payloads.num_rows:
            return PlayedBatch({name: schema.empty_table() for name, schema in TABLES.items()}, self._shard.pending)
        return play_payloads(self._shard, with_files(payloads))

    def commit(self, batch: int) -> None:
        """Keeps the state after a batch, whole or not at all. Its outcomes have been written."""
        assert self._shard is not None, f"batch {batch} was not played"
        filesystem, root = self._place.filesystem, self._place.root
        path = f"{root}/{batch:08d}"
        with filesystem.open_output_stream(f"{path}.new") as stream:
            stream.write(shard_bytes.to_bytes(self._shard))
        filesystem.move(f"{path}.new", path)
        for old in self.batches():
            if old <= batch - KEPT:
                filesystem.delete_file(f"{root}/{old:08d}")

    def batches(self) -> list[int]:
        """The batches of which there is a state."""
        return state_batches(self._place.uri)

    def _load(self, batch: int) -> Shard:
        if batch >= 0:
            return shard_bytes.from_bytes(read_state(self._place.uri, batch), self._delay_ms)
        filesystem, path = self._place.filesystem, f"{self._place.root}/{BEGIN}"
        if filesystem.get_file_info(path).type == fs.FileType.NotFound:
            return Shard(self._delay_ms)
        with filesystem.open_input_stream(path) as stream:
            return shard_bytes.from_bytes(stream.read(), self._delay_ms)


def with_files(found: pa.Table) -> pa.Table:
    """Payloads. Those that have come as `side` and `path` of Parquet files are read now."""
    if "path" not in found.column_names:
        return found
    is_path = found.column("path").is_valid()
    packed = [found.filter(pc.invert(is_path)).select(PAYLOAD.names)] if "rows" in found.column_names else []
    for side in (OPERATION, EVENT):
        files = found.filter(pc.equal(found.column("side"), side)).select(["path"])
        packed += [pa.Table.from_batches([one]) for one in file_packer(1, side, is_json=False)(files.to_batches())]
    return pa.concat_tables(packed)


def state_batches(folder: str) -> list[int]:
    """The batches of which a folder has a state, in order."""
    place = open_location(folder)
    infos = place.filesystem.get_file_info(fs.FileSelector(place.root, allow_not_found=True))
    return sorted(int(info.base_name) for info in infos if info.base_name.isdigit())


def read_state(folder: str, batch: int) -> bytes:
    """The bytes of a shard. Raises `StreamUnusable` where there is none of this batch."""
    place = open_location(folder)
    try:
        with place.filesystem.open_input_stream(f"{place.root}/{batch:08d}") as stream:
            octets: bytes = stream.read()
            return octets
    except (OSError, pa.ArrowException) as error:
        raise StreamUnusable(
            f"there is no state of batch {batch} in {folder}: was the stream started without --on-driver?"
        ) from error
