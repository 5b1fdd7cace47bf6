"""Engine calls as records, which the daemon sends to the archive writer. Needs no Arrow.

A `Record` has the rows that one call adds to one table. Columns of numbers are copied as blocks of bytes, which costs
the event loop about 10 ns per value and the writer nothing: numpy reads them in place. Records are sent in frames of
many, together with the names they refer to, each once.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName, Receipt
from purgatory.engine.codes import EVENT_NAMES, KEY_SIGNALLED
from purgatory.engine.columns import value_at
from purgatory.engine.completions import FETCHED, Completions
from purgatory.engine.kinds.operation_columns import INT32, ITEM, OPERATION, columns_of
from purgatory.engine.names import dictionary_of, places_of
from purgatory.extensions.archive.table_columns import EVENT, REPLICAS, copied_columns
from purgatory.extensions.archive.vocabulary import (
    ACCEPTED,
    DROPPED,
    EVENTS,
    INT32_MAX,
    INT64_MAX,
    MARKERS,
    NO_PARTITION,
    OUTCOMES,
    REGISTRATIONS,
    TABLES,
    CallStamp,
    Registrant,
)

Packed = bytes | int | None
"""A column: packed 64-bit numbers, or one number for all rows, or None if it was not given."""

Names = dict[PartitionName, int]
"""All names of a frame with their indexes. The name of a key is (key, NO_PARTITION)."""

NAMELESS: Final = -1
"""Index of a row without a name: its index was outside its dictionary, so it was refused."""

# Columns of the archive, each with the attribute that it is copied from.
_COMPLETED_OPERATIONS: Final = copied_columns(OUTCOMES, OPERATION)
_COMPLETED_ITEMS: Final = copied_columns(OUTCOMES, ITEM)
_EVENTS: Final = copied_columns(EVENTS, EVENT)
FETCH_COLUMNS: Final = [name for name, _ in copied_columns(OUTCOMES, FETCHED)]
REPLICA_COLUMNS: Final = [name for name, _ in copied_columns(EVENTS, REPLICAS)]


class Record(NamedTuple):
    """The rows that one call adds to one table. `operations` has a number per operation, `columns` one per row."""

    table: str
    stamp: CallStamp
    rows: int
    registrant: Registrant | None = None
    operation_count: int = 0
    operations: dict[str, Packed] = {}  # noqa: RUF012 - never changed
    columns: dict[str, Packed] = {}  # noqa: RUF012
    names: bytes = b""
    """The call's dictionary: for each entry, the index of its name in the frame."""
    places: Packed = None
    """For each row the index of its name in `names`, or NAMELESS; None: entry i is that of row i."""
    extra: Any = None
    """Calls and markers: the values of the row. Outcomes of fetches: FETCH_COLUMNS, a tuple per row. Events:
    REPLICA_COLUMNS, a tuple or None per row."""


def row_record(table: str, stamp: CallStamp, /, **values: object) -> Record:
    """A row of calls or markers from the values of its own columns; missing ones are null."""
    return Record(table, stamp, 1, extra=values)


class Span:
    """Counts of rows by table over successive calls that are lost, or may still be lost."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.first: Final = records[0].stamp
        self.last_call_number = self.first.call_number
        self.rows: Final[Counter[str]] = Counter()
        self.missing: Final[Counter[str]] = Counter()
        """Rows missing in the archive if these calls are lost. For a lost DROPPED marker, the rows of its gap."""
        self.missing_to = 0
        for record in records:
            self.rows[record.table] += record.rows
            # A DROPPED marker has the number of the gap's first call, which may be lower than the last one.
            self.last_call_number = max(self.last_call_number, record.stamp.call_number)
            if record.table == MARKERS and record.extra["marker"] == DROPPED:
                self.missing[record.extra["table"]] += record.extra["rows"]
                self.missing_to = max(self.missing_to, record.extra["last_call_number"])
            else:
                self.missing[record.table] += record.rows

    def extend(self, following: "Span") -> None:
        self.last_call_number = max(self.last_call_number, following.last_call_number)
        self.rows.update(following.rows)
        self.missing.update(following.missing)
        self.missing_to = max(self.missing_to, following.missing_to)

    def dropped_markers(self) -> list[Record]:
        """A DROPPED marker for each table with missing rows, including those of lost markers."""
        last = max(self.last_call_number, self.missing_to)
        return [
            row_record(MARKERS, self.first, marker=DROPPED, table=table, rows=rows, last_call_number=last)
            for table in TABLES
            if (rows := self.missing[table])
        ]


def packed(values: Sequence[int]) -> Packed:
    """Packs a column of a batch. Raises OverflowError for a value that is not a 64-bit integer."""
    if len(values) > 1:
        return array("q", values).tobytes()
    if not values:
        return None
    value = int(values[0])
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise OverflowError(f"not a 64-bit integer: {value}")
    return value


def packed_buffer(column: Any) -> Packed:  # noqa: ANN401 - a buffer of 64-bit numbers
    """Packs a column of completions; one number if all are equal, as in most columns."""
    octets = bytes(column)
    if octets[8:] != octets[:-8]:
        return octets
    return int.from_bytes(octets[:8], sys.byteorder, signed=True)


def registration_records(
    names: Names,
    stamp: CallStamp,
    registrant: Registrant,
    kind: int,
    batch: OperationBatch,
    receipt: Receipt,
    timeout_ms_default: int,
) -> list[Record]:
    """Records of a registration: a row for each item of the operations that were accepted or refused.

    Operations that were already known have no row. A refused operation that has no items, or items that are missing or
    outside the dictionary, gets a single row without a name.
    """
    given = dictionary_of(kind, batch)
    common = (stamp, registrant, kind, timeout_ms_default)
    if not receipt.refusals and not receipt.already_known:
        return [_registrations(*common, batch, [ACCEPTED], bytes(places_of(given, names)))]
    if not _is_readable(kind, batch):
        batch = OperationBatch(batch.operation_ids, item_counts=[0])
    # Ids only increase within a session, so the known operations are those with the lowest ids of the batch.
    codes = {refusal.index: refusal.code for refusal in receipt.refusals}
    unrefused = sorted(value for row, value in enumerate(batch.operation_ids) if value > 0 and row not in codes)
    known = unrefused[: receipt.already_known]
    whole: list[int] = []
    bare: list[int] = []
    items: list[int] = []
    next_item = 0
    for row, operation_id in enumerate(batch.operation_ids):
        own_items = range(next_item, next_item + value_at(batch.item_counts, row, 1))
        next_item = own_items.stop
        if known and 0 < operation_id <= known[-1] and row not in codes:
            continue
        if row not in codes or _have_names(batch, own_items, len(given)):
            whole.append(row)
            items += own_items
        else:
            bare.append(row)
    records: list[Record] = []
    for rows, own, dictionary in ((whole, items, given), (bare, None, [])):
        if rows:
            part, refusal_codes = _part(kind, batch, rows, own), [codes.get(row, ACCEPTED) for row in rows]
            records.append(_registrations(*common, part, refusal_codes, bytes(places_of(dictionary, names))))
    return records


def _registrations(
    stamp: CallStamp,
    registrant: Registrant,
    kind: int,
    timeout_ms_default: int,
    batch: OperationBatch,
    refusal_codes: list[int],
    dictionary: bytes,
) -> Record:
    """A row for each item of a batch; one for each operation if `item_indexes` has at most one value."""
    operations = {
        "operation_id": packed(batch.operation_ids),
        "timeout_ms": packed(batch.timeouts_ms or [timeout_ms_default]),
        "refusal_code": packed(refusal_codes),
        "item_count": packed(batch.item_counts or [1]),
    }
    columns: dict[str, Packed] = {"kind": kind}
    for column in columns_of(kind):
        of_level = operations if column.level == OPERATION else columns
        of_level[column.name] = packed(getattr(batch, column.batch_name))
    count, places = len(batch.operation_ids), packed(batch.item_indexes or [0])
    # If an operation has several items, `item_indexes` has a value for each item. The translation sees to that for
    # composites, the only kind that could name one entry several times.
    rows = max(count, len(batch.item_indexes))
    return Record(REGISTRATIONS, stamp, rows, registrant, count, operations, columns, dictionary, places)


def _part(kind: int, batch: OperationBatch, rows: list[int], items: list[int] | None) -> OperationBatch:
    """Selects operations of a batch with their items, or (None) without. Values too large for a column are clipped."""
    values: dict[str, Any] = {
        "timeouts_ms": _chosen(batch.timeouts_ms, rows),
        "item_counts": [min(value_at(batch.item_counts, row, 1), INT32_MAX) for row in rows],
        "item_indexes": [NAMELESS] if items is None else _chosen(batch.item_indexes, items),
    }
    for column in columns_of(kind):
        places = rows if column.level == OPERATION else items
        if places is not None:
            largest = INT32_MAX if column.type_name == INT32 else INT64_MAX
            chosen = _chosen(getattr(batch, column.batch_name), places)
            values[column.batch_name] = [min(value, largest) for value in chosen]
    return OperationBatch([min(batch.operation_ids[row], INT64_MAX) for row in rows], **values)


def _chosen(values: list[Any], places: list[int]) -> list[Any]:
    """The values at these indexes; a column with one value for all, or none, is returned unchanged."""
    return values if len(values) <= 1 else [values[place] for place in places]


def _have_names(batch: OperationBatch, items: range, names: int) -> bool:
    """Whether there are items, all of them present, with indexes below `names`, the size of the dictionary."""
    if len(items) > 1 and len(batch.item_indexes) <= 1:
        return False
    return len(items) > 0 and all(value_at(batch.item_indexes, item, 0) < names for item in items)


def _is_readable(kind: int, batch: OperationBatch) -> bool:
    """Whether the columns have matching lengths. Batches refused before they reached the engine were not checked."""
    operations = len(batch.operation_ids)
    counts = batch.item_counts
    items = operations if not counts else counts[0] * operations if len(counts) == 1 else sum(counts)
    rows = {OPERATION: operations, ITEM: items}
    lengths = [(batch.item_counts, operations), (batch.timeouts_ms, operations), (batch.item_indexes, items)]
    lengths += [(getattr(batch, column.batch_name), rows[column.level]) for column in columns_of(kind)]
    return all(len(values) in (0, 1, expected) for values, expected in lengths)


def completion_records(
    names: Names, stamp: CallStamp, registrant: Registrant, completions: Completions
) -> list[Record]:
    """Records of the operations of one registrant that a call ended, a row for each item."""
    operations, columns = (
        {name: packed_buffer(getattr(completions, source)) for name, source in copied}
        for copied in (_COMPLETED_OPERATIONS, _COMPLETED_ITEMS)
    )
    extra = None
    if completions.fetched:
        extra = [tuple(getattr(part, name) for name in FETCH_COLUMNS) for part in completions.fetched]
    given = bytes(places_of(completions.item_partitions, names))
    rows = len(completions.item_partitions)
    count = len(completions)
    return [Record(OUTCOMES, stamp, rows, registrant, count, operations, columns, given, None, extra)]


def event_records(
    names: Names, stamp: CallStamp, registrant: Registrant, batch: EventBatch, start: int, receipt: Receipt
) -> list[Record]:
    """Records of a registrant's events from `start` to `receipt.next_index`, a row each, with their effect."""
    stop = receipt.next_index
    types, codes = batch.types[start:stop], [ACCEPTED]
    if receipt.refusals:
        code_of = {refusal.index: refusal.code for refusal in receipt.refusals}
        codes = [code_of.get(row, ACCEPTED) for row in range(start, stop)]
        types = [event_type if event_type in EVENT_NAMES else 0 for event_type in types]
    columns = {"type": packed(types), "refusal_code": packed(codes), "ended": packed(receipt.ended_by_event)}
    for name, source in _EVENTS:
        columns[name] = packed(_slice(getattr(batch, source), start, stop))
    given: list[PartitionName] = batch.partitions
    indexes = _slice(batch.item_indexes, start, stop) or [0]
    if batch.keys or receipt.refusals:
        given = [*batch.partitions, *((key, NO_PARTITION) for key in batch.keys)]
        indexes = _places_of_events(batch, types, indexes)
    extra = None
    if batch.replica_sets:
        sets = batch.replica_sets[start:stop]
        extra = [one and tuple(getattr(one, name) for name in REPLICA_COLUMNS) for one in sets]
    dictionary = bytes(places_of(given, names))
    return [Record(EVENTS, stamp, stop - start, registrant, 0, {}, columns, dictionary, packed(indexes), extra)]


def _slice(values: list[int], start: int, stop: int) -> list[int]:
    """A slice of a column; one with a single value for all is returned unchanged."""
    return values[start:stop] if len(values) > 1 else values


def _places_of_events(batch: EventBatch, types: list[int], indexes: list[int]) -> list[int]:
    """For each event the index of its name in partitions followed by keys, or NAMELESS if its index is invalid."""
    partitions, keys = len(batch.partitions), len(batch.keys)
    if len(indexes) == 1:
        indexes = indexes * len(types)
    places: list[int] = []
    for event_type, index in zip(types, indexes, strict=True):
        first, count = (partitions, keys) if event_type == KEY_SIGNALLED else (0, partitions)
        places.append(first + index if 0 <= index < count else NAMELESS)
    return places
