"""Serialization of a shard, for Spark's state store and for changing the number of shards.

Format: a version byte, the length of the body, and the compressed body. The body is a list of sections, each preceded
by its length: a JSON head, the pending operations in the engine's snapshot format, and Arrow streams of callers,
partitions, signalled keys, and rows that are not due yet.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import PartitionName
from purgatory.engine.engine import Engine
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.streaming.stream.shard.caller_ids import CallerIds
from purgatory_pipeline.streaming.stream.shard.row_order import column_of, records_of
from purgatory_pipeline.streaming.stream.shard.shard import NEVER, Shard, used_columns
from purgatory_pipeline.streaming.stream.shard.stream_rows import hashes_of, shards_of

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


class SavedShardUnusable(PipelineError):
    """The state of a shard is in another format, corrupt or truncated."""


def to_bytes(shard: Shard) -> bytes:
    """Serialize a shard, without its delay and number."""
    engine = shard.engine
    head = {name: getattr(shard, name) for name in HEAD_NAMES}
    if engine is None:
        return _packed([json.dumps(head).encode(), b"", b"", b"", b"", table_bytes(shard.kept)])
    snapshots = engine.snapshots
    names = engine.partition_names()
    contents = [snapshots.save_partition(name) for name in names]
    partitions = {
        "topic": [topic for topic, _ in names],
        "partition": [partition for _, partition in names],
        "content": contents,
    }
    keys = snapshots.save_keys()
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
        ]
    )


def from_bytes(octets: bytes, delay_ms: int, *, number: int = 0) -> Shard:
    """Restore a shard. Raises `SavedShardUnusable`."""
    shard = Shard(delay_ms, number=number)
    parts = _unpacked(octets)
    _read_head(shard, parts)
    shard.kept = _table(parts[5])
    if parts[1]:
        _restore_marks(shard, parts)
        _restore_operations(shard, parts, None)
    return shard


def divided(saved: Sequence[bytes], shards: int) -> list[bytes]:
    """Redistribute the operations and marks of saved shards over another number of shards.

    All must have the same horizon, as the shards of a stream do after each batch. Raises `SavedShardUnusable`.
    """
    unpacked = [_unpacked(octets) for octets in saved]
    heads = [json.loads(parts[0]) for parts in unpacked]
    horizons = {head["horizon_ms"] for head in heads}
    if len(horizons) > 1:
        raise SavedShardUnusable(f"the shards have different horizons (ms): {sorted(horizons)}")
    clocks = [head["clock_ms"] for head, parts in zip(heads, unpacked, strict=True) if parts[1]]
    made: list[bytes] = []
    for number in range(shards):
        shard = Shard(number=number)
        _read_head(shard, unpacked[0])
        shard.clock_ms = max(clocks, default=NEVER)
        shard.next_id, shard.late = 1, 0 if number else sum(head["late"] for head in heads)
        started = [parts for parts in unpacked if parts[1]]
        if started:
            _restore_marks(shard, started[0])
        for parts in started:
            callers = _table(parts[2])
            hashes = hashes_of(callers.column("caller"), callers.column("operation_id").to_numpy())
            _restore_operations(shard, parts, shards_of(hashes, shards) == number)
        kept = [
            _kept_by(_table(parts[5]), number, shards, with_events=not place) for place, parts in enumerate(unpacked)
        ]
        shard.kept = used_columns(pa.concat_tables(kept, promote_options="default").combine_chunks())
        made.append(to_bytes(shard))
    return made


def _read_head(shard: Shard, parts: Sequence[bytes]) -> None:
    head = json.loads(parts[0])
    for name in HEAD_NAMES:
        setattr(shard, name, head[name])


def _restore_marks(shard: Shard, parts: Sequence[bytes]) -> None:
    snapshots = shard.start_engine(shard.clock_ms).snapshots
    partitions = _table(parts[3]).to_pydict()
    for topic, partition, content in zip(*(partitions[name] for name in PARTITIONS.names), strict=True):
        if content:
            snapshots.restore_partition((topic, partition), content)
    for row in _table(parts[4]).to_pylist():
        snapshots.restore_key(**row)


def _restore_operations(shard: Shard, parts: Sequence[bytes], chosen: Flags | None) -> None:
    """Restore all operations with their old ids, or only the chosen ones, with new ids."""
    assert shard.engine is not None, "the shard has no engine yet"
    saved, callers = SavedOperations.from_bytes(parts[1]), _table(parts[2])
    tombstones = b""
    if chosen is not None:
        ids = np.arange(shard.next_id, shard.next_id + len(callers))
        shard.next_id += len(callers)
        saved.operation_ids = vec[i64](ids.tolist())
        tombstones = np.packbits(~chosen, bitorder="little").tobytes()
        callers = callers.set_column(0, "engine_id", pa.array(ids)).filter(pa.array(chosen))
    only_named = _table(parts[3]).filter(pc.equal(pc.binary_length(pc.field("content")), 0)).to_pydict()
    with referenced(shard.engine, zip(only_named["topic"], only_named["partition"], strict=True)):
        shard.engine.restore(shard.owner, saved, tombstones, shard.clock_ms)
    shard.callers = CallerIds(pa.concat_tables([shard.callers.table, callers]).combine_chunks())


@contextmanager
def referenced(engine: Engine, names: Iterable[PartitionName]) -> Iterator[None]:
    """Reference partitions without saved content while operations are restored.

    TRAP: restoring an item that is already satisfied does not create its partition, and the engine treats an unknown
    partition as removed. Partitions that no operation refers to disappear again on release.
    """
    partitions = engine.snapshots.partitions
    held = [partitions.get_or_create(name, partitions.unowned) for name in sorted(names)]
    yield
    for partition in held:
        partitions.release(partition)


def _kept_by(rows: pa.Table, number: int, shards: int, *, with_events: bool) -> pa.Table:
    """Rows that are not due yet and belong to shard `number`. Every shard has all events; they are taken from one."""
    records = records_of(rows)
    first = pa.array(records.start)
    ids = column_of(rows, "operation_id")[records.start]
    callers = (
        rows.column("caller").take(first)
        if "caller" in rows.column_names
        else pa.chunked_array([pa.nulls(len(records), pa.string())])
    )
    own = shards_of(hashes_of(callers.fill_null(""), ids), shards) == number
    return rows.take(pa.array(records.rows(np.where(records.is_registration, own, with_events))))


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
        raise SavedShardUnusable(
            f"the shard was saved in format {version}; this program reads format {VERSION}: use the one that saved it"
        )
    try:
        (length,) = _LENGTH.unpack_from(octets, 1)
        body: bytes = _CODEC.decompress(memoryview(octets)[1 + _LENGTH.size :], length, asbytes=True)
    except (struct.error, OSError, MemoryError) as error:
        raise SavedShardUnusable("corrupt or truncated shard state") from error
    return body
