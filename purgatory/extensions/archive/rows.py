"""Converts the records of a frame to Arrow record batches, one per table, with that table's schema."""

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import FETCH
from purgatory.engine.completions import OPTIONAL_COLUMNS
from purgatory.extensions.archive.records import FETCH_COLUMNS, NAMELESS, REPLICA_COLUMNS, Packed, Record
from purgatory.extensions.archive.schema import (
    EVENT_LABELS,
    EVENTS,
    KIND_LABELS,
    OUTCOME_LABELS,
    OUTCOMES,
    REGISTRATIONS,
    SCHEMAS,
)
from purgatory.extensions.archive.vocabulary import CALLS, INT32_MAX, MARKERS, TABLES

INT64: Final = np.dtype(np.int64)
INT32: Final = np.dtype(np.int32)
CONSTANT_ROWS: Final = 16_384

Numbers = npt.NDArray[np.int64]
Columns = dict[str, pa.Array]

STAMP_COLUMNS: Final = ("run_id", "call_number", "time_ms", "at")
"""The columns of a call's stamp, in the order of its fields."""
LABELS: Final[dict[str, Sequence[str]]] = {"kind": KIND_LABELS, "outcome": OUTCOME_LABELS, "type": EVENT_LABELS}
"""Columns that contain codes, with the label of each code."""


def make_rows(table: str, records: Sequence[Record], names: Sequence[PartitionName] = ()) -> pa.RecordBatch:
    """Rows of one table from its records (at least one) and the names of their frame."""
    columns = MAKERS[table](table, records, names)
    schema = SCHEMAS[table]
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema.names)


def records_by_table(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each table that occurs, in their original order."""
    found: dict[str, list[Record]] = {table: [] for table in TABLES}
    for record in records:
        found[record.table].append(record)
    return {table: some for table, some in found.items() if some}


# Conversion between Arrow columns and arrays of numbers.


def arrow(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, arrow_type: pa.DataType) -> pa.Array:
    """An array as a column, without a copy; null where the mask is set."""
    rows = len(values)
    if values.dtype == np.bool_:
        values = np.packbits(values, bitorder="little")
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, rows, [valid, pa.py_buffer(values)])


def plain(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of a column as an array; undefined where the column is null. The inverse of `arrow`."""
    _, buffer = column.buffers()
    return np.frombuffer(buffer, dtype)[column.offset : column.offset + len(column)]


def constant(value: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:  # noqa: ANN401
    """A column with the same value in each row; None: null. Cached, because few distinct values occur."""
    length = CONSTANT_ROWS
    while length < rows:
        length *= 2
    return _constant(value, arrow_type, length).slice(0, rows)


@functools.lru_cache(maxsize=256)
def _constant(value: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:  # noqa: ANN401
    return (
        pa.nulls(rows, arrow_type) if value is None else pa.repeat(pa.scalar(value, pa.int64()).cast(arrow_type), rows)
    )


def repeated(values: Numbers, counts: Numbers, arrow_type: pa.DataType) -> pa.Array:
    if (values == values[0]).all():
        return constant(int(values[0]), arrow_type, int(counts.sum()))
    return arrow(np.repeat(values, counts), None, pa.int64()).cast(arrow_type)


def dictionary_encoded(places: pa.Array, labels: Sequence[str]) -> pa.Array:
    """A dictionary-encoded column. The indices are not checked: each must be a valid index into `labels`."""
    return pa.DictionaryArray.from_arrays(places, pa.array(labels, pa.string()), safe=False)


def null_below_zero(column: pa.Array) -> pa.Array:
    """The column with its negative values replaced by null; completions use -1 for an absent value."""
    values = plain(column, np.dtype(column.type.to_pandas_dtype()))
    absent = values < 0
    return constant(None, column.type, len(column)) if absent.all() else arrow(values, absent, column.type)


def joined(parts: Sequence[Packed], counts: Sequence[int]) -> Numbers:
    """One number for each row from parts with these row counts; undefined where a part was not given."""
    octets = [
        part if isinstance(part, bytes) else (part or 0).to_bytes(8, sys.byteorder, signed=True) * count
        for part, count in zip(parts, counts, strict=True)
    ]
    return np.frombuffer(b"".join(octets), INT64)


def column_of(parts: Sequence[Packed], counts: Sequence[int], arrow_type: pa.DataType) -> pa.Array:
    """One column from parts with these row counts; null where a part was not given."""
    forms = set(map(type, parts))
    if forms == {type(None)}:
        return constant(None, arrow_type, sum(counts))
    if arrow_type == pa.float64():
        return arrow(joined(parts, counts).view(np.float64), None, arrow_type)
    if forms == {int}:
        return repeated(np.array(parts, INT64), np.array(counts, INT64), arrow_type)
    mask = np.repeat([part is None for part in parts], counts) if type(None) in forms else None
    return arrow(joined(parts, counts), mask, pa.int64()).cast(arrow_type)


# Columns of each table.


def call_columns(table: str, records: Sequence[Record], names: Sequence[PartitionName]) -> Columns:
    """The columns of registrations, outcomes or events that come from the numbers, names and stamps of the records."""
    counts = [record.rows for record in records]
    columns = _shared_columns(table, records, counts)
    columns["topic"], columns["partition"] = _name_columns(records, names)
    operation_counts = [record.operation_count for record in records]
    of_operations = {name for record in records for name in record.operations}
    if of_operations:
        columns["item"], operation_of = _items(records)
    for field in SCHEMAS[table]:
        name = field.name
        if name in columns:
            continue
        arrow_type = pa.int32() if name in LABELS else field.type
        if name in of_operations:
            column = column_of([record.operations.get(name) for record in records], operation_counts, arrow_type)
            column = column if operation_of is None else column.take(operation_of)
        else:
            column = column_of([record.columns.get(name) for record in records], counts, arrow_type)
        columns[name] = dictionary_encoded(column, LABELS[name]) if name in LABELS else column
    return columns


def outcome_columns(table: str, records: Sequence[Record], names: Sequence[PartitionName]) -> Columns:
    columns = call_columns(table, records, names)
    for name in OPTIONAL_COLUMNS:
        columns[name] = null_below_zero(columns[name])
    fetched = [part for record in records for part in record.extra or ()]
    if fetched:
        is_fetch = plain(columns["kind"].indices, INT32) == FETCH
        for name, found in zip(FETCH_COLUMNS, zip(*fetched, strict=True), strict=True):
            arrow_type = columns[name].type
            values = np.zeros(len(is_fetch), dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = found
            columns[name] = arrow(values, None if is_fetch.all() else ~is_fetch, arrow_type)
    return columns


def event_columns(table: str, records: Sequence[Record], names: Sequence[PartitionName]) -> Columns:
    columns = call_columns(table, records, names)
    places = np.concatenate([np.arange(record.rows, dtype=np.int32) for record in records])
    columns["row"] = arrow(places, None, pa.int32())
    if any(record.extra for record in records):
        sets = [one for record in records for one in record.extra or [None] * record.rows]
        for place, name in enumerate(REPLICA_COLUMNS):
            columns[name] = pa.array([one and one[place] for one in sets], columns[name].type)
    return columns


def single_columns(table: str, records: Sequence[Record], names: Sequence[PartitionName]) -> Columns:
    """The columns of calls or markers; each record is one row."""
    del names
    rows = [dict(zip(STAMP_COLUMNS, record.stamp, strict=True)) | record.extra for record in records]
    return {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMAS[table]}


MAKERS: Final[dict[str, Callable[[str, Sequence[Record], Sequence[PartitionName]], Columns]]] = {
    REGISTRATIONS: call_columns,
    OUTCOMES: outcome_columns,
    EVENTS: event_columns,
    CALLS: single_columns,
    MARKERS: single_columns,
}


def _shared_columns(table: str, records: Sequence[Record], counts: Sequence[int]) -> Columns:
    """Columns whose value is the same for all rows of a call: the common columns, and its session and principal."""
    stamps = zip(*(record.stamp for record in records), strict=True)
    values: dict[str, Sequence[Any]] = dict(zip(STAMP_COLUMNS, stamps, strict=True))
    registrants = [record.registrant for record in records if record.registrant is not None]
    if table == EVENTS:
        values["principal"] = [registrant.principal for registrant in registrants]
    else:
        values["session_number"], values["session_id"], values["principal"] = zip(*registrants, strict=True)
    row_counts = np.array(counts, INT64)
    columns: Columns = {}
    for name, given in values.items():
        arrow_type = SCHEMAS[table].field(name).type
        if not pa.types.is_dictionary(arrow_type):
            columns[name] = repeated(np.array(given, INT64), row_counts, arrow_type)
            continue
        places = {word: place for place, word in enumerate(dict.fromkeys(given))}
        own = np.array([places[word] for word in given], INT64)
        columns[name] = dictionary_encoded(repeated(own, row_counts, pa.int32()), list(places))
    return columns


def _items(records: Sequence[Record]) -> tuple[pa.Array, pa.Array | None]:
    """The column `item` (position within the operation) and the operation index of each row; None: one row each."""
    rows = sum(record.rows for record in records)
    counts = [record.operation_count for record in records]
    if sum(counts) == rows:
        return constant(0, pa.int32(), rows), None
    # Operations without item data have one row, whatever their item count.
    parts = [1 if record.rows == record.operation_count else record.operations["item_count"] for record in records]
    row_counts = joined(parts, counts)
    own = np.repeat(np.arange(len(row_counts)), row_counts)
    first_row = np.cumsum(row_counts) - row_counts
    items = (np.arange(rows) - first_row[own]).astype(np.int32)
    return arrow(items, None, pa.int32()), arrow(own, None, pa.int64())


def _name_columns(records: Sequence[Record], names: Sequence[PartitionName]) -> tuple[pa.Array, pa.Array]:
    """The columns `topic` and `partition`; null where rows have no name."""
    places = np.concatenate([_name_places(record) for record in records])
    nameless = places == NAMELESS
    mask = nameless if nameless.any() else None
    is_used = np.zeros(len(names) + 1, np.bool_)
    is_used[places] = True
    topics: dict[str, int] = {}
    # Rows without a name read the last entry, which the mask then hides.
    topic_of, partition_of = np.zeros((2, len(names) + 1), np.int32)
    for place in np.flatnonzero(is_used[:NAMELESS]).tolist():
        topic, partition = names[place]
        topic_of[place] = topics.setdefault(topic, len(topics))
        partition_of[place] = max(-INT32_MAX, min(partition, INT32_MAX))
    topic_places = arrow(topic_of.take(places), mask, pa.int32())
    return dictionary_encoded(topic_places, list(topics)), arrow(partition_of.take(places), mask, pa.int32())


def _name_places(record: Record) -> Numbers:
    """For each row, the position of its name in the frame, or NAMELESS."""
    entries = np.frombuffer(record.names, INT64)
    if record.places is None:
        return entries
    entries = np.append(entries, NAMELESS)  # last entry, so that index NAMELESS (-1) selects it
    if isinstance(record.places, int):
        return np.full(record.rows, entries[record.places])
    return entries[np.frombuffer(record.places, INT64)]
