"""The saved state of each shard before and after a micro-batch: its serialization, and its files.

Format: a version byte, the length of the body, and the compressed body. The body is a list of sections, each preceded
by its length: a JSON head, the pending operations in the engine's snapshot format, and Arrow streams of callers,
partitions, signalled keys, rows that are not due yet, and the times at which events named partitions and keys.

`CHECKPOINT/shards` has the file `complete`, which is written last and contains the number of shards, and the file
`BBBBBBBB-SSSSS` for each shard S, its state before micro-batch B. Without `complete`, the folder is overwritten by the
next attempt; no folder is ever moved, because object stores cannot do that.

Micro-batch B reads the states B and writes the states B + 1, so Spark can repeat it. States of earlier micro-batches
are deleted.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.location import Location, attempt_name, open_location, write_file
from purgatory_pipeline.stream.caller_ids import CallerIds
from purgatory_pipeline.stream.shard import Shard

VERSION: Final = 1
_CODEC: Final = pa.Codec("zstd", 1)
"""Reduces the size to an eighth, for 0.04 s per million operations. Spark copies the state between processes twice
per batch."""
HEAD_NAMES: Final = ("seen_ms", "horizon_ms", "clock_ms", "late", "next_id")
_LENGTH: Final = struct.Struct("<Q")
PARTITIONS: Final = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("content", pa.binary())])
KEYS: Final = pa.schema(
    [("key", pa.string()), ("count", pa.int64()), ("value", pa.binary()), ("failed", pa.int64())]
)  # the arguments of `restore_key`; shards of older versions do not have the last two
NAMED: Final = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("at_ms", pa.int64())])


def to_bytes(shard: Shard) -> bytes:
    """Serialize a shard, without its options and number, and without the partitions and keys that it forgets."""
    engine = shard.engine
    head = {name: getattr(shard, name) for name in HEAD_NAMES}
    if engine is None:
        return _packed([json.dumps(head).encode(), b"", b"", b"", b"", table_bytes(shard.kept)])
    snapshots = engine.snapshots
    names = [name for name, known in snapshots.partitions.by_name.items() if shard.is_kept(name, known.references)]
    contents = [snapshots.save_partition(name) for name in names]
    partitions = {
        "topic": [topic for topic, _ in names],
        "partition": [partition for _, partition in names],
        "content": contents,
    }
    held = snapshots.keys.by_key
    keys = [row for row in snapshots.save_keys() if shard.is_kept((row[0], -1), held[row[0]].references)]
    named_ms = {name: shard.named_at_ms(name) for name in [*names, *((row[0], -1) for row in keys)] if shard.forget_ms}
    named = [dict(zip(NAMED.names, (*name, at_ms), strict=True)) for name, at_ms in named_ms.items()]
    return _packed(
        [
            json.dumps(head).encode(),
            snapshots.save_above(shard.owner, 0).to_bytes(),
            table_bytes(shard.callers.table),
            table_bytes(pa.table(partitions, schema=PARTITIONS)),
            table_bytes(
                pa.Table.from_pylist([dict(zip(KEYS.names, row[:-1], strict=True)) for row in keys], schema=KEYS)
            ),
            table_bytes(shard.kept),
            table_bytes(pa.Table.from_pylist(named, schema=NAMED)),
        ]
    )


def from_bytes(octets: bytes, delay_ms: int, *, number: int = 0, forget_ms: int = 0) -> Shard:
    """Restore a shard. Raises `PipelineError`."""
    shard = Shard(delay_ms, number=number, forget_ms=forget_ms)
    parts = _unpacked(octets)
    head = json.loads(parts[0])
    for name in HEAD_NAMES:
        setattr(shard, name, head[name])
    shard.kept = _table(parts[5])
    if parts[1]:
        _restore_marks(shard, parts)
        _restore_operations(shard, parts)
    if forget_ms and len(parts) > 6:  # shards of older versions end before it
        shard.named_ms = {(row["topic"], row["partition"]): row["at_ms"] for row in _table(parts[6]).to_pylist()}
    return shard


def _restore_marks(shard: Shard, parts: Sequence[bytes]) -> None:
    snapshots = shard.start_engine(shard.clock_ms).snapshots
    partitions = _table(parts[3]).to_pydict()
    for topic, partition, content in zip(*(partitions[name] for name in PARTITIONS.names), strict=True):
        if content:
            snapshots.restore_partition((topic, partition), content)
    for row in _table(parts[4]).to_pylist():
        snapshots.restore_key(**row)


def _restore_operations(shard: Shard, parts: Sequence[bytes]) -> None:
    assert shard.engine is not None, "the shard has no engine yet"
    # TRAP: restoring an item that is already satisfied does not create its partition, and the engine treats an unknown
    # partition as removed. So partitions without saved content are referenced while operations are restored; those
    # that no operation refers to disappear again on release.
    only_named = _table(parts[3]).filter(pc.equal(pc.binary_length(pc.field("content")), 0)).to_pydict()
    names = zip(only_named["topic"], only_named["partition"], strict=True)
    partitions = shard.engine.snapshots.partitions
    held = [partitions.get_or_create(name, partitions.unowned) for name in sorted(names)]
    shard.engine.restore(shard.owner, SavedOperations.from_bytes(parts[1]), b"", shard.clock_ms)
    for partition in held:
        partitions.release(partition)
    shard.callers = CallerIds(_table(parts[2]))


def table_bytes(table: pa.Table) -> bytes:
    """Encode a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def _table(octets: bytes) -> pa.Table:
    return pa.ipc.open_stream(octets).read_all().combine_chunks()


def _packed(sections: Sequence[bytes]) -> bytes:
    body = b"".join(part for section in sections for part in (_LENGTH.pack(len(section)), section))
    octets: bytes = _CODEC.compress(body, asbytes=True)
    return b"".join([bytes([VERSION]), _LENGTH.pack(len(body)), octets])


def _unpacked(octets: bytes) -> list[bytes]:
    body = _body(octets)
    sections: list[bytes] = []
    start = 0
    while start < len(body):
        (length,) = _LENGTH.unpack_from(body, start)
        start += _LENGTH.size
        sections.append(body[start : start + length])
        start += length
    return sections


def _body(octets: bytes) -> bytes:
    version = octets[0] if octets else "nothing"
    if version != VERSION:
        raise PipelineError(
            f"the shard was saved in format {version}; this program reads format {VERSION}: use the one that saved it"
        )
    try:
        (length,) = _LENGTH.unpack_from(octets, 1)
        body: bytes = _CODEC.decompress(memoryview(octets)[1 + _LENGTH.size :], length, asbytes=True)
    except (struct.error, OSError, MemoryError) as error:
        raise PipelineError("corrupt or truncated shard state") from error
    return body


FOLDER: Final = "shards"
COMPLETE: Final = "complete"


@dataclass(frozen=True)
class ShardLayout:
    """The number of shards of a stream, which its first run fixes."""

    checkpoint: str
    shards: int

    def load(self, shard: int, batch: int, delay_ms: int, forget_ms: int = 0) -> Shard:
        """Restore a shard as it was before a micro-batch. Raises `PipelineError`."""
        place = self._file(shard, batch)
        try:
            octets = place.read()
        except FileNotFoundError:
            raise PipelineError(
                f"no state of shard {shard} before micro-batch {batch}: {place.uri} not found"
            ) from None
        options = {"number": shard, "forget_ms": forget_ms}
        return from_bytes(octets, delay_ms, **options) if octets else Shard(delay_ms, **options)

    def save(self, shard: Shard, batch: int) -> None:
        """Save a shard before micro-batch `batch`, the next one, and delete its state before the last but one."""
        place, folder = self._file(shard.number, batch), _folder(self.checkpoint)
        unfinished = write_file(folder, attempt_name(_name(shard.number, batch)), to_bytes(shard))
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
