"""Payloads: the records sent from the inputs of a stream to its shards. Each contains all rows for one shard.

Spark moves and converts one row at a time, so a few large records with Arrow bytes are much cheaper than many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory_pipeline.streaming.stream.shard.row_order import column_of
from purgatory_pipeline.streaming.stream.shard.shard import NEVER, quarantined
from purgatory_pipeline.streaming.stream.shard.shard_bytes import table_bytes
from purgatory_pipeline.streaming.stream.shard.stream_rows import ROWS, conformed, hashes_of, shards_of
from purgatory_pipeline.streaming.stream.wire_records import AT_MS_MAX, MALFORMED, RecordRows

PAYLOAD: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("seen_ms", pa.int64()),  # the latest instant of what was read together: all shards have the same time
        ("rows", pa.binary()),  # an Arrow stream; null: none for this shard
        ("malformed", pa.binary()),  # an Arrow stream of MALFORMED; null: none
        ("quarantined", pa.binary()),  # an Arrow stream of QUARANTINED; null: none
    ]
)
PAYLOAD_DDL: Final = "shard int, seen_ms long, rows binary, malformed binary, quarantined binary"
Pack = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def clock_packer(shards: int) -> Pack:
    """Pack heartbeats: rows with the single column `at_ms`, which only advance time."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield payload(pa.Table.from_batches(found), MALFORMED.empty_table(), shards)

    return pack


def record_packer(shards: int, side: str, *, is_json: bool) -> Pack:
    """For sources of records of the wire: columns `record`, `at_ms`, `place`, `caller`, `latest_ms`."""

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = RecordRows(side, is_json=is_json)
        latest_ms = None
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("record", "at_ms", "place", "caller"))
            for record in zip(*columns, strict=True):
                rows.add(*record)
            latest_ms = batch.column("latest_ms")[0].as_py() if batch.num_rows else latest_ms
        if latest_ms is not None:
            yield payload(*rows.tables(), shards, latest_ms)

    return pack


def payload(rows: pa.Table, malformed: pa.Table, shards: int, latest_ms: int = AT_MS_MAX) -> pa.RecordBatch:
    """Build one record per shard, with its registrations and all events. An operation is never split.

    Rows dated after `latest_ms` are set aside: one such row would advance the horizon and make all later rows late.
    """
    rows = conformed(rows).combine_chunks()
    is_ahead = column_of(rows, "at_ms") > latest_ms
    reason = f"at: is after {instant(latest_ms)}, so more than --max-ahead later than the clock of this machine"
    ahead = quarantined(rows, np.flatnonzero(is_ahead), reason)
    rows = rows.filter(pa.array(~is_ahead))
    seen_ms = int(column_of(rows, "at_ms").max(initial=NEVER))
    own = owners(rows, shards)
    parts = [rows.filter(pa.array((own == number) | (own < 0))) if shards > 1 else rows for number in range(shards)]
    first = [[table_bytes(table) if table.num_rows else None] for table in (malformed, ahead)]
    columns: list[Any] = [
        np.arange(shards, dtype=np.int32),
        np.full(shards, seen_ms),
        [table_bytes(part) if part.num_rows else None for part in parts],
        *(own + [None] * (shards - 1) for own in first),
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, PAYLOAD, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD)


def instant(at_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601, to the second."""
    return f"{np.datetime64(at_ms, 'ms').astype('datetime64[s]')}Z"


def owners(rows: pa.Table, shards: int) -> np.ndarray[Any, Any]:
    """The shard of each row; -1 for events, which go to all shards."""
    is_registration = column_of(rows, "kind") > 0
    ids = column_of(rows, "operation_id")
    nobody = pa.chunked_array([pa.nulls(rows.num_rows, pa.string())])
    callers = rows.column("caller") if "caller" in rows.column_names else nobody
    return np.where(is_registration, shards_of(hashes_of(callers.fill_null(""), ids), shards), -1)


def unpacked(parts: Iterable[bytes | None], schema: pa.Schema = ROWS) -> pa.Table:
    """Decode the tables of several records and concatenate them."""
    tables = [pa.ipc.open_stream(octets).read_all() for octets in parts if octets is not None]
    found = pa.concat_tables(tables, promote_options="default") if tables else schema.empty_table()
    return found.combine_chunks()
