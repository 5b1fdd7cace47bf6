"""Payloads: the records sent from the inputs of a stream to its shards. Each contains all rows for one shard.

Spark moves and converts one row at a time, so a few large records with Arrow bytes are much cheaper than many rows.

Files are Parquet with the archive's columns, or lines of JSON. Spark lists the new files; each is read here with Arrow,
in the task that packs it. Passing the content through Spark's rows would take twenty times as long, because Spark
recomputes the size of an Arrow batch after each row.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine.codes import EVENT_NAMES, KIND_NAMES
from purgatory.extensions.archive.schema import ACCEPTED
from purgatory_pipeline.archive.footer import open_parquet
from purgatory_pipeline.location import first_line, open_location
from purgatory_pipeline.stream.shard import NEVER, quarantined
from purgatory_pipeline.stream.shard_state import table_bytes
from purgatory_pipeline.stream.stream_rows import ROWS, column_of, conformed, hashes_of, shards_of
from purgatory_pipeline.stream.wire_records import AT_MS_MAX, MALFORMED, OPERATION, RecordRows

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


UNKNOWN_CODE: Final = 99
"""Code for an unknown kind or type; the shard sets the row aside."""
_RENAMED: Final = {"at": "at_ms", "call_number": "place", "session_id": "caller"}
_WORDS: Final = {"kind": KIND_NAMES, "type": EVENT_NAMES}


def file_packer(shards: int, side: str, *, is_json: bool) -> Pack:
    """Pack the rows of files, given `path` (Spark's name), `uri` (of the input) and `latest_ms`.

    A file with broken content becomes a malformed record. An I/O error says nothing about the content, so it fails the
    task: Spark retries it, and no micro-batch is committed without the file.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables, malformed = [ROWS.empty_table().select(["at_ms"])], [MALFORMED.empty_table()]
        files = [file for batch in batches for file in batch.to_pylist()]
        if not files:
            return
        place = open_location(files[0]["uri"])
        for path in (file["path"] for file in files):
            octets = place.read(place.path_of(path))
            try:
                rows, wrong = json_rows(octets, side) if is_json else parquet_rows(octets, path, side)
            except (OSError, ValueError, pa.ArrowException) as error:
                wrong = pa.Table.from_pylist(
                    [{"side": side, "record": path.encode(), "reason": first_line(error)}], MALFORMED
                )
                rows = tables[0]
            tables.append(rows)
            malformed.append(wrong)
        rows = pa.concat_tables(tables, promote_options="default")
        yield payload(rows, pa.concat_tables(malformed), shards, files[0]["latest_ms"])

    return pack


def parquet_rows(octets: bytes, path: str, side: str) -> tuple[pa.Table, pa.Table]:
    """Returns the valid and the malformed rows of a Parquet file, without the rows that a daemon refused.

    Parsing raises OSError, too, but from memory that can only be due to the content.
    """
    file = open_parquet(octets)
    there = set(file.schema_arrow.names)
    known = {*ROWS.names, *_RENAMED, "refusal_code"} - {"at_ms", "place", "caller"}
    rows = file.read(columns=sorted(there & known), use_threads=False)
    if "refusal_code" in there:
        rows = rows.filter(pc.equal(pc.fill_null(rows.column("refusal_code"), ACCEPTED), ACCEPTED))
    if "at" not in there:
        raise ValueError("has no column `at`")
    timed = rows.filter(rows.column("at").is_valid())
    untimed = [{"side": side, "record": path.encode(), "reason": "at: is null"}] * (rows.num_rows - timed.num_rows)
    word = "kind" if side == OPERATION else "type"
    columns: dict[str, Any] = {"at_ms": timed.column("at").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())}
    columns[word] = codes_of(timed, word)
    columns |= {
        _RENAMED.get(name, name): timed.column(name)
        for name in timed.column_names
        if name not in ("at", *_WORDS, "refusal_code")
    }
    return pa.table(columns), pa.Table.from_pylist(untimed, MALFORMED)


def codes_of(rows: pa.Table, word: str) -> pa.Array:
    """Codes of a column of kind or type names. Null, or a missing column, gives 0: a heartbeat."""
    if word not in rows.column_names:
        return pa.repeat(pa.scalar(0, pa.int8()), rows.num_rows)
    words = rows.column(word).cast(pa.string()).combine_chunks()
    names = _WORDS[word]
    places = pc.index_in(words, pa.array(list(names.values()), pa.string()))
    found = pc.take(pa.array(list(names), pa.int8()), places)
    return pc.if_else(words.is_null(), 0, pc.fill_null(found, UNKNOWN_CODE)).cast(pa.int8())


def json_rows(octets: bytes, side: str) -> tuple[pa.Table, pa.Table]:
    """Returns the valid and the malformed rows of a file of JSON lines."""
    rows = RecordRows(side, is_json=True)
    for line in octets.splitlines():
        if line.strip():
            rows.add(line, None, None, None)
    return rows.tables()
