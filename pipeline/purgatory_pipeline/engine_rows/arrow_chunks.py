"""Arrow rows of the archive's tables as chunks, without a Python object for any row."""

from collections import Counter
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine import codes
from purgatory.engine.kinds.operation_columns import default_of
from purgatory.extensions.archive import schema
from purgatory_pipeline.engine_rows.row_chunk import DEFAULTS, Column, Name, RowChunk, in_order

COMMON: Final = {"call_number": "call", "time_ms": "time"}
OPERATION: Final = {"session_number": "session", "operation_id": "operation"}
NUMBERS: Final[dict[str, dict[str, str]]] = {
    schema.REGISTRATIONS: {
        **COMMON,
        **OPERATION,
        **{name: name for name in ("timeout_ms", "offset", *DEFAULTS[schema.REGISTRATIONS])},
    },
    schema.OUTCOMES: {**COMMON, **OPERATION, **{name: name for name in ("waited_ms", *DEFAULTS[schema.OUTCOMES])}},
    schema.EVENTS: {**COMMON, **{name: name for name in DEFAULTS[schema.EVENTS] if name != "copy"}},
    schema.CALLS: {**COMMON, "session_number": "session", "timeout_ms": "timeout_ms"},
}
"""Columns of numbers, and their names in a chunk."""

WORDS: Final[dict[str, tuple[str, dict[str, int]]]] = {
    schema.REGISTRATIONS: ("kind", {name: code for code, name in codes.KIND_NAMES.items()}),
    schema.OUTCOMES: ("outcome", {name: code for code, name in codes.OUTCOME_NAMES.items()}),
    schema.EVENTS: ("type", {name: code for code, name in codes.EVENT_NAMES.items()}),
    schema.CALLS: ("call", {name: place for place, name in enumerate(schema.CALL_NAMES.values())}),
}
"""The column of each table that holds one of a few words, with their codes. A chunk of calls names it `what`."""

SETS: Final = ("replicas", "in_sync", "proposed", "leader_id", "min_in_sync_replicas")
NAMED: Final = ("topic", "partition")

OFFSET_DEFAULTS: Final = np.array([0, *(default_of("offset", kind) for kind in codes.KINDS)])
"""Indexed by kind."""

REFUSED_REGISTRATIONS: Final = "refused registrations"
REFUSED_EVENTS: Final = "refused events"
UNREADABLE: Final = "rows of an unknown word"


def chunk_of(table: str, part: pa.Table, counts: Counter[str]) -> RowChunk:
    """The rows of an Arrow table that take part in a replay; others are counted in `counts`."""
    columns: dict[str, Column] = {}
    word, known = WORDS[table]
    own_word = "what" if table == schema.CALLS else word
    columns[own_word] = word_codes(part.column(word), known)
    for name, own in NUMBERS[table].items():
        if name not in part.column_names:
            continue
        values = numbers(part.column(name), null_value(table, own, columns[own_word]))
        default = DEFAULTS[table].get(own)
        if values is not None and (default is None or not bool(np.all(values == default))):
            columns[own] = values
    kept = columns[own_word] >= 0
    counts[UNREADABLE] += int(np.count_nonzero(~kept))
    if "refusal_code" in part.column_names:
        kept &= _accepted(part, table, columns, counts)
    chunk = RowChunk(table, columns)
    if "topic" in part.column_names:
        topics, partitions = part.column("topic"), part.column("partition")
        chunk.names, columns["name"] = name_places(topics, partitions)
    if table == schema.EVENTS:
        chunk.detail_rows, chunk.details = _sets(part, columns["type"])
    elif table == schema.CALLS:
        chunk.detail_rows = np.arange(part.num_rows)
        chunk.details = part.column("operation_ids").to_pylist()
    if not bool(np.all(kept)):
        chunk = chunk.take(kept)
    return in_order(chunk)


def null_value(table: str, name: str, words: Column) -> Any:  # noqa: ANN401 -- one number, or one for each row
    """The replacement of null in a column of numbers."""
    if table == schema.REGISTRATIONS and name == "offset":
        return OFFSET_DEFAULTS[words]
    return DEFAULTS[table].get(name, 0)


def numbers(column: pa.ChunkedArray, default: Any) -> Column | None:  # noqa: ANN401 -- see null_value
    """A column as numbers, null as the default; None if all are null and the default is one number."""
    if column.null_count == len(column) and not isinstance(default, np.ndarray):
        return None if len(column) else np.empty(0, np.int64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if not column.null_count:
        return np.asarray(column.to_numpy())
    if not isinstance(default, np.ndarray):
        return np.asarray(pc.fill_null(column, default).to_numpy())
    filled: Column = np.asarray(pc.fill_null(column, 0).to_numpy())
    return np.where(np.asarray(column.is_null().to_numpy()), default, filled)


def word_codes(column: pa.ChunkedArray, known: dict[str, int]) -> Column:
    """The codes of a dictionary-encoded column of words; -1 for unknown words."""
    parts = [np.empty(0, np.int8)]
    for chunk in column.chunks:
        lut = np.array([*(known.get(word, -1) for word in chunk.dictionary.to_pylist()), -1], np.int8)
        places = chunk.indices.fill_null(len(lut) - 1) if chunk.indices.null_count else chunk.indices
        parts.append(lut[places.to_numpy()])
    return np.concatenate(parts)


def name_places(topics: pa.ChunkedArray, partitions: pa.ChunkedArray) -> tuple[list[Name], Column]:
    """The distinct names of rows, and the place of each row's. A row without a topic gets place 0."""
    encoded = topics.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # of no chunks
        return [], np.empty(0, np.int32)
    words = encoded.dictionary.to_pylist()
    nameless = encoded.indices.null_count
    indices = np.asarray((encoded.indices.fill_null(0) if nameless else encoded.indices).to_numpy())
    numbered = numbers(partitions, schema.NO_PARTITION)
    partition = np.full(len(indices), schema.NO_PARTITION) if numbered is None else numbered.astype(np.int64)
    if not words:
        return [("", schema.NO_PARTITION)], np.zeros(len(indices), np.int32)
    lowest = int(partition.min(initial=0))
    span = int(partition.max(initial=0)) - lowest + 1
    keys = indices.astype(np.int64) * span + (partition - lowest)
    places, distinct = pd.factorize(keys, sort=True)
    return [(words[key // span], key % span + lowest) for key in distinct.tolist()], places


def _accepted(part: pa.Table, table: str, columns: dict[str, Column], counts: Counter[str]) -> Column:
    refusal_codes = numbers(part.column("refusal_code"), schema.ACCEPTED)
    if refusal_codes is None:
        return np.ones(part.num_rows, np.bool_)
    accepted: Column = refusal_codes == schema.ACCEPTED
    refused = ~accepted
    if table == schema.REGISTRATIONS and "item" in columns:
        refused &= columns["item"] == 0
    counts[REFUSED_REGISTRATIONS if table == schema.REGISTRATIONS else REFUSED_EVENTS] += int(np.count_nonzero(refused))
    return accepted


def _sets(part: pa.Table, types: Column) -> tuple[Column, list[Any]]:
    """The replica sets of events that have them, in the order of SETS; events of these types are few."""
    rows = np.flatnonzero((types == codes.IN_SYNC_REPLICAS) | (types == codes.LEADERSHIP))
    if not len(rows) or SETS[0] not in part.column_names:
        return np.empty(0, np.int64), []
    found = part.select(SETS).take(pa.array(rows)).to_pydict()
    return rows, list(zip(*(found[name] for name in SETS), strict=True))
