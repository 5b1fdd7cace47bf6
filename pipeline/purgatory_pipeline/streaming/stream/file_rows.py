"""Files as rows of a stream: Parquet with the archive's columns, or lines of JSON.

Spark lists the new files; each is read here with Arrow, in the task that packs it. Passing the content through Spark's
rows would take twenty times as long, because Spark recomputes the size of an Arrow batch after each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine.codes import EVENT_NAMES, KIND_NAMES
from purgatory.extensions.archive.schema import ACCEPTED
from purgatory_pipeline.analytics.archive.footer import open_parquet
from purgatory_pipeline.analytics.archive.location import first_line, open_location
from purgatory_pipeline.streaming.stream.payloads import Pack, payload
from purgatory_pipeline.streaming.stream.shard.stream_rows import ROWS
from purgatory_pipeline.streaming.stream.wire_records import MALFORMED, OPERATION, RecordRows

FILE_COLUMNS: Final = ["path", "uri", "latest_ms"]
"""Spark's name of a file, the URI of the input with which to open it, and the latest time that a row may have."""
UNKNOWN_CODE: Final = 99
"""Code for an unknown kind or type; the shard sets the row aside."""
_RENAMED: Final = {"at": "at_ms", "call_number": "place", "session_id": "caller"}
_WORDS: Final = {"kind": KIND_NAMES, "type": EVENT_NAMES}


def file_packer(shards: int, side: str, *, is_json: bool) -> Pack:
    """Pack the rows of files, given FILE_COLUMNS. A file with broken content becomes a malformed record.

    An I/O error says nothing about the content, so it fails the task: Spark retries it, and no micro-batch is committed
    without the file.
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
