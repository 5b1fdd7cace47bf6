"""One shard on the driver: more than twice as fast as shards in Spark's state store, where one machine is enough.

Outcomes are written first, then the state, each by the number of its batch. A batch that is done again begins with the
state of the one before and writes the same outcomes in the same place.

The state after a batch is a snapshot of the shard, or just the rows of the batch, to be played again after the state
before it. A snapshot is written once the rows since the last one take more bytes than it did: so what a batch writes
follows from what it brings, not from what waits, and a start reads at most twice the size of a snapshot.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory_pipeline.archive.location import open_location, open_output, write_file
from purgatory_pipeline.stream.file_rows import FILE_COLUMNS, file_packer
from purgatory_pipeline.stream.payloads import PAYLOAD
from purgatory_pipeline.stream.shard import shard_bytes
from purgatory_pipeline.stream.shard.shard import Shard
from purgatory_pipeline.stream.shard_step import TABLES, PlayedBatch, play_payloads
from purgatory_pipeline.stream.stream_inputs import StreamUnusable
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION

STATES: Final = "shard"
"""The folder of the states, in the checkpoint."""
BEGIN: Final = "begin"
"""The state before the first batch, where load came from elsewhere."""
ROWS_OF: Final = ".rows"
"""Ends the name of a file that has the rows of a batch."""
_DELAY: Final = b"delay_ms"
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))


class DriverShard:
    """`folder`: where the states are kept."""

    def __init__(self, folder: str, delay_ms: int) -> None:
        self._place: Final = open_output(folder)
        self._delay_ms: Final = delay_ms
        self._shard: Shard | None = None
        self._played = -1
        """The batch that the shard has played last."""
        self._payloads = PAYLOAD.empty_table()
        """Those of that batch."""
        self._snapshot_bytes = self._rows_bytes = 0
        """Of the last snapshot that was written, and of the rows since."""

    def play(self, payloads: pa.Table, batch: int) -> PlayedBatch:
        """Plays the payloads of a micro-batch. Raises `StreamUnusable`."""
        if self._shard is None or self._played != batch - 1:
            self._shard = self._load(batch - 1)
        self._payloads, self._played = with_files(payloads), batch
        if not self._payloads.num_rows:
            return PlayedBatch({name: schema.empty_table() for name, schema in TABLES.items()}, self._shard.pending)
        return play_payloads(self._shard, self._payloads)

    def commit(self, batch: int) -> None:
        """Keeps the state after a batch, whole or not at all. Its outcomes have been written."""
        assert self._shard is not None and batch == self._played, f"batch {batch} was not played"  # noqa: PT018 - for mypy
        rows = bytes_of_rows(self._payloads, self._delay_ms)
        self._rows_bytes += len(rows)
        if self._rows_bytes <= self._snapshot_bytes:
            self._write(f"{batch:08d}{ROWS_OF}", rows)
            return
        octets = shard_bytes.to_bytes(self._shard)
        self._write(f"{batch:08d}", octets)
        self._snapshot_bytes, self._rows_bytes = len(octets), 0
        states = SavedStates(self._place.uri)
        # Spark may do this batch again, so the snapshot before it stays, with what was played since.
        needed = max((one for one in states.snapshots if one < batch), default=0)
        self._drop([name for number, name in states.files if number < needed])

    def _write(self, name: str, octets: bytes) -> None:
        path = write_file(self._place, f"{name}.new", octets)
        self._place.filesystem.move(path, path.removesuffix(".new"))

    def _load(self, batch: int) -> Shard:
        states = SavedStates(self._place.uri)
        if batch < 0:
            self._snapshot_bytes = self._rows_bytes = 0
            begin = states.begin()
            shard = Shard() if begin is None else shard_bytes.from_bytes(begin, 0)
        else:
            shard, self._snapshot_bytes, self._rows_bytes = states.load(batch)
        shard.delay_ms = self._delay_ms
        # Later batches are done again; what was kept of them goes once the state before them has been loaded.
        self._drop([name for number, name in states.files if number > batch])
        return shard

    def _drop(self, names: list[str]) -> None:
        for name in names:
            self._place.filesystem.delete_file(self._place.child(name).root)


class SavedStates:
    """What a `DriverShard` has kept in a folder. `snapshots` and `rows`: names of files, by their batch."""

    def __init__(self, folder: str) -> None:
        self._place: Final = open_location(folder)
        self._names: Final = self._place.names()
        self.snapshots: Final = {int(name): name for name in self._names if name.isdigit()}
        self.rows: Final = {
            int(stem): name for name in self._names if (stem := name.removesuffix(ROWS_OF)) != name and stem.isdigit()
        }

    @property
    def files(self) -> list[tuple[int, str]]:
        """Batch and name of each."""
        return [*self.snapshots.items(), *self.rows.items()]

    def load(self, batch: int) -> tuple[Shard, int, int]:
        """The shard after a batch; how many bytes its snapshot had, and the rows that were played since.

        Raises `StreamUnusable` where there is no state of this batch.
        """
        start = max((one for one in self.snapshots if one <= batch), default=-1)
        since = range(start + 1, batch + 1)
        if start < 0 or any(one not in self.rows for one in since):
            raise StreamUnusable(
                f"there is no state of batch {batch} in {self._place.uri}: was the stream started without --on-driver?"
            )
        snapshot = self._place.child(self.snapshots[start]).read()
        shard = shard_bytes.from_bytes(snapshot, 0)
        rows_bytes = 0
        for one in since:
            octets = self._place.child(self.rows[one]).read()
            rows_bytes += len(octets)
            payloads = pa.ipc.open_stream(octets).read_all()
            shard.delay_ms = int(payloads.schema.metadata[_DELAY])
            if payloads.num_rows:
                play_payloads(shard, payloads)
        return shard, len(snapshot), rows_bytes

    def begin(self) -> bytes | None:
        """The state before the first batch; None: an empty shard."""
        return self._place.child(BEGIN).read() if BEGIN in self._names else None


def bytes_of_rows(payloads: pa.Table, delay_ms: int) -> bytes:
    """Payloads and the delay that they were played with, as an Arrow stream."""
    table = payloads.replace_schema_metadata({_DELAY: str(delay_ms)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def with_files(found: pa.Table) -> pa.Table:
    """Payloads. Those that have come as `side` and `path` of Parquet files are read now."""
    if "path" not in found.column_names:
        return found
    is_path = found.column("path").is_valid()
    packed = [found.filter(pc.invert(is_path)).select(PAYLOAD.names)] if "rows" in found.column_names else []
    for side in (OPERATION, EVENT):
        files = found.filter(pc.equal(found.column("side"), side)).select(FILE_COLUMNS)
        packed += [pa.Table.from_batches([one]) for one in file_packer(1, side, is_json=False)(files.to_batches())]
    return pa.concat_tables([PAYLOAD.empty_table(), *packed])
