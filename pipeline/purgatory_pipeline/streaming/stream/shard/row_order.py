"""The order in which rows are played: by time, and within a millisecond always the same, however they arrived."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_pipeline.engine_rows.arrow_chunks import numbers
from purgatory_pipeline.engine_rows.integers import Flags, Integers

NONE: Final = -1


def column_of(rows: pa.Table, name: str, default: int = 0) -> Integers:
    """A column of numbers, null as the default."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, default, np.int64)
    found = numbers(rows.column(name), default)
    return np.full(rows.num_rows, default, np.int64) if found is None else found.astype(np.int64)


def ranks(texts: pa.ChunkedArray | None, rows: int) -> Integers:
    """The place of each text among the distinct ones, in alphabetical order; -1 for null."""
    if texts is None:
        return np.full(rows, NONE, np.int64)
    encoded = texts.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    words = encoded.dictionary.to_pylist()
    rank = np.empty(len(words) + 1, np.int64)
    rank[sorted(range(len(words)), key=words.__getitem__)] = np.arange(len(words))
    rank[-1] = NONE
    found: Integers = rank[encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)]
    return found


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
    first = records.start[chosen]
    is_registration = records.is_registration[chosen]
    callers = rows.column("caller").take(first) if "caller" in rows.column_names else None
    topics = rows.column("topic").take(first) if "topic" in rows.column_names else None

    def either(registration: Integers, event: Integers) -> Integers:
        return np.where(is_registration, registration, event)

    def of(name: str, default: int = NONE) -> Integers:
        return column_of(rows, name, default)[first]

    keys = [
        records.at_ms[chosen],
        of("place", 0),
        ~is_registration,
        either(ranks(callers, len(first)), ranks(topics, len(first))),
        either(of("operation_id"), of("partition")),
        either(of("kind"), of("type")),
        of("leader_epoch"),
        of("replica_id"),
        of("offset"),
        of("flags"),
    ]
    # The first three nearly always say it all; the others cost a sort each.
    order: Integers = np.lexsort(keys[2::-1])
    tied = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys[:3]])
    if tied.any():
        order = np.lexsort(keys[::-1])
    return chosen[order]
