"""Input of a stream as Arrow rows: registrations, events and heartbeats in one table, which shard each belongs to, and
the order in which they are played.

Rows are flat, with the archive's columns (`purgatory.extensions.archive.table_columns`): a registration has one row for
each partition (or key) of its operation, one after the other, an event one. A column that is absent is null in every
row, and null is the default of the wire. Rows are played by time, and within a millisecond always in the same order,
however they arrived.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.extensions.archive.schema import EVENTS, REGISTRATIONS, SCHEMAS
from purgatory_pipeline.engine_rows.arrow_chunks import numbers
from purgatory_pipeline.engine_rows.integers import Flags, Hashes, Integers, hash_operations

HEAD: Final = pa.schema(
    [
        pa.field("at_ms", pa.int64(), nullable=False),  # event time: milliseconds since 1970, UTC
        pa.field("place", pa.int64()),  # order among the rows of a millisecond: a call's number, an offset in a topic
        pa.field("kind", pa.int8()),  # of an operation, as its code; 0: not a registration
        pa.field("type", pa.int8()),  # of an event, as its code; 0: not an event. Both 0: a heartbeat, only time passes
        pa.field("caller", pa.string()),  # whose operation it is: ids are unique for each caller
        pa.field("operation_id", pa.int64()),
        pa.field("timeout_ms", pa.int64()),
        pa.field("item", pa.int32()),  # place in the operation, from 0
        pa.field("item_count", pa.int32()),
        pa.field("topic", pa.string()),  # or the key of a signal
        pa.field("partition", pa.int32()),  # null: a signal
    ]
)

_OF_ANSWERS: Final = ("refusal_code", "ended")
"""Columns of events that say what became of them."""


def _after_name(table: str) -> list[pa.Field]:
    fields = list(SCHEMAS[table])
    after = SCHEMAS[table].get_field_index("partition") + 1
    return [field for field in fields[after:] if field.name not in _OF_ANSWERS]


ROWS: Final = pa.schema(
    [*HEAD, *{field.name: field for table in (REGISTRATIONS, EVENTS) for field in _after_name(table)}.values()]
)
"""All columns of a stream's rows."""


def conformed(rows: pa.Table) -> pa.Table:
    """The rows with only columns of `ROWS`, each of its type; those in which all is null are left out.

    Raises `pa.ArrowInvalid` where a column cannot be cast.
    """
    kept = {
        field.name: rows.column(field.name).cast(field.type)
        for field in ROWS
        if field.name in rows.column_names and rows.column(field.name).null_count < rows.num_rows
    }
    return pa.table(kept) if kept else ROWS.empty_table().select(["at_ms"])


def hashes_of(callers: pa.ChunkedArray, operation_ids: Integers) -> Hashes:
    """64 well-mixed bits for each operation, the same in every process and every version."""
    encoded = callers.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    words = np.array([*encoded.dictionary.to_pylist(), ""], object)
    places = encoded.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)
    own: Integers = pd.util.hash_array(words, categorize=False).view(np.int64)
    return hash_operations(own[places], operation_ids)


def shards_of(hashes: Hashes, shards: int) -> npt.NDArray[np.int64]:
    return (hashes % np.uint64(shards)).astype(np.int64)


def column_of(rows: pa.Table, name: str, default: int = 0) -> Integers:
    """A column of numbers, null as the default."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, default, np.int64)
    found = numbers(rows.column(name), default)
    return np.full(rows.num_rows, default, np.int64) if found is None else found.astype(np.int64)


@dataclass(frozen=True)
class Records:
    """Operations and events, each with its first row and how many it has."""

    start: Integers
    count: Integers
    at_ms: Integers
    is_registration: Flags
    is_complete: Flags
    """False if rows of the operation are missing, or a row has no operation."""

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, chosen: npt.NDArray[np.int64] | Flags) -> Integers:
        """The rows of some records (places in order, or a mask)."""
        start, count = self.start[chosen], self.count[chosen]
        total = int(count.sum())
        if total == len(start):
            return start
        return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(total)


def records_of(rows: pa.Table) -> Records:
    """Finds the operations and events of rows as they arrived."""
    is_registration = column_of(rows, "kind") > 0
    item = column_of(rows, "item")
    is_head = ~is_registration | (item == 0)
    if len(is_head) and not is_head[0]:
        is_head[0] = True
    # A row that begins no operation goes with the one before it, if both are of the same; otherwise it stands alone.
    is_head[1:] |= is_registration[1:] & ~is_registration[:-1]
    later = np.flatnonzero(~is_head)
    is_head[later] = ~_same_operation(rows, later)
    start = np.flatnonzero(is_head)
    count = np.diff(start, append=rows.num_rows)
    of_registration = is_registration[start]
    whole = (item[start] == 0) & (column_of(rows, "item_count", 1)[start] == count)
    if len(start) < rows.num_rows:
        whole &= _items_rise(item, start, count)
    return Records(start, count, column_of(rows, "at_ms")[start], of_registration, whole | ~of_registration)


def _same_operation(rows: pa.Table, places: Integers) -> Flags:
    """Whether each of these rows says the same of its operation as the row before it."""
    same = np.ones(len(places), np.bool_)
    before = places - 1
    for name in ("operation_id", "at_ms", "place", "kind", "item_count"):
        values = column_of(rows, name)
        same &= values[places] == values[before]
    if len(places) and "caller" in rows.column_names:
        callers = rows.column("caller").fill_null("")
        same &= pc.equal(callers.take(pa.array(places)), callers.take(pa.array(before))).to_numpy()
    return same


def _items_rise(item: Integers, start: Integers, count: Integers) -> Flags:
    place = np.arange(len(item)) - np.repeat(start, count)
    wrong = np.concatenate([[0], np.cumsum(item != place)])
    return np.asarray(wrong[start + count] == wrong[start])


def play_order(rows: pa.Table, records: Records, chosen: Integers) -> Integers:
    """The chosen records in the order in which they are played: by time, by place, registrations first.

    Ties are broken by content, so that the order never depends on how rows arrived.
    """
    first, is_registration = records.start[chosen], records.is_registration[chosen]
    leading = [records.at_ms[chosen], column_of(rows, "place")[first], ~is_registration]
    order: Integers = np.lexsort(leading[::-1])
    tied = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in leading])
    if not tied.any():  # nearly always
        return chosen[order]

    def of(name: str) -> pa.Array | pa.ChunkedArray:
        missing = name not in rows.column_names
        return pa.nulls(len(first), ROWS.field(name).type) if missing else rows.column(name).take(pa.array(first))

    pairs = (("caller", "topic"), ("operation_id", "partition"), ("kind", "type"))
    content = [pc.if_else(pa.array(is_registration), of(own), of(other)) for own, other in pairs]
    keys = [*leading, *content, *map(of, ("leader_epoch", "replica_id", "offset", "flags"))]
    table = pa.table(keys, names=[str(place) for place in range(len(keys))])
    sorting = [(name, "ascending") for name in table.column_names]
    order = pc.sort_indices(table, sorting).to_numpy()
    return chosen[order]
