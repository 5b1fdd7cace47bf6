"""Engine calls on their way from the daemon to the archive's writer process. Needs no Arrow.

A `Record` is what one call adds to one table. Its columns of numbers are copied as blocks of bytes, which costs the
event loop about 10 ns a value and the writer process nothing: numpy reads them where they are. Records are sent many at
a time, as a frame, together with the names they refer to, each once.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from purgatory.archive.vocabulary import (
    ACCEPTED,
    EVENTS,
    INT32_MAX,
    INT64_MAX,
    NO_PARTITION,
    OUTCOMES,
    REGISTRATIONS,
    CallStamp,
    Registrant,
    Row,
)
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.codes import EVENT_NAMES, KEY_SIGNALLED, SIGNAL
from purgatory.engine.columns import value_at
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.operation_columns import ITEM, OPERATION, columns_of
from purgatory.engine.names import places_of

Packed = bytes | int | None
"""A column: 64-bit numbers one after the other, or one number for all, or None where it was not given."""

Names = dict[PartitionName, int]
"""All names of a frame, each with its place; of a key it is (key, NO_PARTITION)."""

NAMELESS: Final = -1
"""Place of a row without a name: it pointed outside its dictionary, and was refused."""


OUTCOME_OPERATION_COLUMNS: Final = (
    ("operation_id", "operation_ids"),
    ("kind", "kinds"),
    ("outcome", "outcomes"),
    ("waited_ms", "waited_ms"),
    ("lateness_ms", "lateness_ms"),
    ("item_count", "item_counts"),
)
OUTCOME_ITEM_COLUMNS: Final = (
    ("error_code", "error_codes"),
    ("required_offset", "required_offsets"),
    ("reached_offset", "reached_offsets"),
    ("log_start_offset", "log_start_offsets"),
    ("estimated_remaining_ms", "estimated_remaining_ms"),
    ("pace_per_second", "paces_per_second"),
)
FETCH_COLUMNS: Final = (
    "available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset",
)  # fmt: skip
"""Fields of `FetchedPartition`."""
EVENT_COLUMNS: Final = (
    ("offset", "offsets"),
    ("leader_epoch", "leader_epochs"),
    ("replica_id", "replica_ids"),
    ("byte_position", "byte_positions"),
    ("segment_base_offset", "segment_base_offsets"),
    ("log_start_offset", "log_start_offsets"),
    ("flags", "flags"),
)
REPLICA_COLUMNS: Final = ("replicas", "in_sync", "proposed", "leader_id", "min_in_sync_replicas")
"""Fields of `ReplicaSets`."""


class Record(NamedTuple):
    """What one call adds to one table: `operations` have a number for each operation, `columns` one for each row."""

    table: str
    stamp: CallStamp
    rows: int
    registrant: Registrant | None = None
    operation_count: int = 0
    operations: dict[str, Packed] = {}  # noqa: RUF012 - never changed
    columns: dict[str, Packed] = {}  # noqa: RUF012
    names: Packed = None
    """A dictionary: of each entry the place of its name among the frame's."""
    places: Packed = None
    """Of each row its name's place in this dictionary, or NAMELESS; None: the entries are those of the rows."""
    extra: Any = None
    """Of a row of calls or markers its values; of fetched partitions FETCH_COLUMNS, a tuple for each row of a fetch; of
    events REPLICA_COLUMNS, a tuple or None for each row."""


def packed(values: Sequence[int]) -> Packed:
    """A column of a batch. Raises OverflowError for what is no 64-bit number."""
    if len(values) > 1:
        return array("q", values).tobytes()
    if not values:
        return None
    value = int(values[0])
    if not -INT64_MAX <= value <= INT64_MAX:
        raise OverflowError(f"{value} is no 64-bit number")
    return value


def packed_buffer(column: Any) -> bytes | int:  # noqa: ANN401 - a buffer of 64-bit numbers
    """A column of completions; those that say the same of all, as most do, as one number."""
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
    receipt: RegisterReceipt,
    timeout_ms_default: int,
) -> list[Record]:
    """What was registered and what was refused, a row for each item; nothing of what was known already."""
    if not receipt.refusals and not receipt.already_known:
        return [_registrations(names, stamp, registrant, kind, batch, [], timeout_ms_default, bare=False)]
    return [
        _registrations(names, stamp, registrant, kind, part, codes, timeout_ms_default, bare=bare)
        for part, codes, bare in ArchivableOperations(kind, batch, receipt).parts()
    ]


def _registrations(
    names: Names,
    stamp: CallStamp,
    registrant: Registrant,
    kind: int,
    batch: OperationBatch,
    codes: list[int],
    timeout_ms_default: int,
    *,
    bare: bool,
) -> Record:
    """A batch of operations; `codes` are those of refusals; `bare`: one row each, without its items."""
    count = len(batch.operation_ids)
    item_counts = packed(batch.item_counts or (1,))
    operations = {
        "operation_id": packed(batch.operation_ids),
        "timeout_ms": packed(batch.timeouts_ms or (timeout_ms_default,)),
        "refusal_code": packed(codes or (ACCEPTED,)),
        "item_count": item_counts,
        "row_count": 1 if bare else item_counts,
    }
    columns: dict[str, Packed] = {"kind": kind}
    for column in columns_of(kind):
        if column.level == OPERATION:
            operations[column.name] = packed(getattr(batch, column.batch_name))
        elif not bare:
            columns[column.name] = packed(getattr(batch, column.batch_name))
    if bare:
        return Record(REGISTRATIONS, stamp, count, registrant, count, operations, columns, places=NAMELESS)
    given = _key_names(batch.keys) if kind == SIGNAL else batch.partitions
    places = packed(batch.item_indexes or (0,)) if given else NAMELESS
    rows = max(count, len(batch.item_indexes))  # operations of several items have an index for each of them
    dictionary = packed_buffer(places_of(given, names))
    return Record(REGISTRATIONS, stamp, rows, registrant, count, operations, columns, dictionary, places)


def _key_names(keys: list[str]) -> list[PartitionName]:
    return [(key, NO_PARTITION) for key in keys]


def completion_record(names: Names, stamp: CallStamp, registrant: Registrant, completions: Completions) -> Record:
    """What a call ended of one registrant's, a row for each item."""
    operations: dict[str, Packed] = {
        name: packed_buffer(getattr(completions, field)) for name, field in OUTCOME_OPERATION_COLUMNS
    }
    columns: dict[str, Packed] = {
        name: packed_buffer(getattr(completions, field)) for name, field in OUTCOME_ITEM_COLUMNS
    }
    extra = None
    if completions.fetched:
        extra = [tuple(getattr(part, name) for name in FETCH_COLUMNS) for part in completions.fetched]
    given = packed_buffer(places_of(completions.item_partitions, names))
    rows = len(completions.item_partitions)
    return Record(OUTCOMES, stamp, rows, registrant, len(completions), operations, columns, given, None, extra)


def event_record(names: Names, stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> Record:
    """The events from `start` to `receipt.next_index`, a row each, and what they did."""
    stop = receipt.next_index
    types, codes = batch.types[start:stop], [ACCEPTED]
    if receipt.refusals:
        code_of = {refusal.index: refusal.code for refusal in receipt.refusals}
        codes = [code_of.get(row, ACCEPTED) for row in range(start, stop)]
        types = [event_type if event_type in EVENT_NAMES else 0 for event_type in types]
    columns = {"type": packed(types), "refusal_code": packed(codes), "ended": packed(receipt.ended)}
    for name, field in EVENT_COLUMNS:
        columns[name] = packed(_slice(getattr(batch, field), start, stop))
    given: list[PartitionName] = batch.partitions
    indexes = _slice(batch.item_indexes, start, stop) or [0]
    if batch.keys or receipt.refusals:
        given = [*batch.partitions, *_key_names(batch.keys)]
        indexes = _places_of_events(batch, types, indexes)
    extra = None
    if batch.replica_sets:
        sets = batch.replica_sets[start:stop]
        extra = [one and tuple(getattr(one, name) for name in REPLICA_COLUMNS) for one in sets]
    dictionary = packed_buffer(places_of(given, names))
    return Record(EVENTS, stamp, stop - start, None, 0, {}, columns, dictionary, packed(indexes), extra)


def _slice(values: list[int], start: int, stop: int) -> list[int]:
    """The part of a column that has a value for each row; of one that says the same of all, all."""
    return values[start:stop] if len(values) > 1 else values


def _places_of_events(batch: EventBatch, types: list[int], indexes: list[int]) -> list[int]:
    """For each event its name's place in partitions and keys together, or NAMELESS where it points at none."""
    partitions, keys = len(batch.partitions), len(batch.keys)
    if len(indexes) == 1:
        indexes = indexes * len(types)
    places: list[int] = []
    for event_type, index in zip(types, indexes, strict=True):
        first, count = (partitions, keys) if event_type == KEY_SIGNALLED else (0, partitions)
        places.append(first + index if 0 <= index < count else NAMELESS)
    return places


def row_record(table: str, stamp: CallStamp, values: Row) -> Record:
    """A row of calls or markers."""
    return Record(table, stamp, 1, extra=values)


class ArchivableOperations:
    """The operations of a batch that make rows where not all was accepted. Known ones make none; of those refused,
    the ones whose items are none, or point outside the dictionary, or did not arrive, are kept bare: one row each.
    """

    def __init__(self, kind: int, batch: OperationBatch, receipt: RegisterReceipt) -> None:
        self._kind: Final = kind
        self._batch: Final = batch
        self._codes: Final = {refusal.index: refusal.code for refusal in receipt.refusals}
        self._whole: Final[list[int]] = []
        self._bare: Final[list[int]] = []
        ids = batch.operation_ids
        known_up_to = 0
        if receipt.already_known:
            # Ids only rise within a session, so the known ones are the lowest of the batch.
            known_up_to = sorted(value for value in ids if value > 0)[receipt.already_known - 1]
        self._readable: Final = _is_readable(kind, batch)
        counts = [value_at(batch.item_counts, row, 1) if self._readable else 0 for row in range(len(ids))]
        self._first_items: Final = [0, *accumulate(counts)]
        names = len(batch.keys) if kind == SIGNAL else len(batch.partitions)
        for row, operation_id in enumerate(ids):
            if 0 < operation_id <= known_up_to:
                continue
            is_whole = row not in self._codes or self._has_names(row, counts[row], names)
            (self._whole if is_whole else self._bare).append(row)

    def parts(self) -> Iterator[tuple[OperationBatch, list[int], bool]]:
        """Batches of their own, the refusal codes of their operations, and whether these are bare."""
        for rows, bare in ((self._whole, False), (self._bare, True)):
            if rows:
                ids = [min(self._batch.operation_ids[row], INT64_MAX) for row in rows]
                codes = [self._codes.get(row, ACCEPTED) for row in rows]
                yield self._bare_batch(ids, rows) if bare else self._whole_batch(ids, rows), codes, bare

    def _has_names(self, row: int, count: int, names: int) -> bool:
        indexes = self._batch.item_indexes
        if count > 1 and len(indexes) <= 1:
            return False
        first = self._first_items[row]
        return count > 0 and all(value_at(indexes, first + item, 0) < names for item in range(count))

    def _whole_batch(self, ids: list[int], rows: list[int]) -> OperationBatch:
        batch = self._batch
        counts = [value_at(batch.item_counts, row, 1) for row in rows]
        items = [
            self._first_items[row] + item for row, count in zip(rows, counts, strict=True) for item in range(count)
        ]
        columns = self._chosen_columns(OPERATION, rows) | self._chosen_columns(ITEM, items)
        indexes = _chosen(batch.item_indexes, items)
        return OperationBatch(
            ids,
            partitions=batch.partitions,
            keys=batch.keys,
            item_counts=counts,
            item_indexes=indexes,
            timeouts_ms=_chosen(batch.timeouts_ms, rows),
            **columns,
        )

    def _bare_batch(self, ids: list[int], rows: list[int]) -> OperationBatch:
        if not self._readable:
            return OperationBatch(ids, item_counts=[0])
        counts = [min(value_at(self._batch.item_counts, row, 1), INT32_MAX) for row in rows]
        timeouts_ms = _chosen(self._batch.timeouts_ms, rows)
        columns = self._chosen_columns(OPERATION, rows)
        return OperationBatch(ids, item_counts=counts, timeouts_ms=timeouts_ms, **columns)

    def _chosen_columns(self, level: str, rows: list[int]) -> dict[str, list[Any]]:
        names = [column.batch_name for column in columns_of(self._kind) if column.level == level]
        return {name: _chosen(getattr(self._batch, name), rows) for name in names}


def _chosen(values: list[Any], places: list[int]) -> list[Any]:
    """The values at these places of a column, which may also have one for all, or none."""
    return [values[place] for place in places] if len(values) > 1 else values


def _is_readable(kind: int, batch: OperationBatch) -> bool:
    """Whether the columns fit together. The engine looked before it took the batch, but some never got there."""
    operations = len(batch.operation_ids)
    counts = batch.item_counts
    items = operations if not counts else counts[0] * operations if len(counts) == 1 else sum(counts)
    rows = {OPERATION: operations, ITEM: items}
    lengths = [(batch.item_counts, operations), (batch.timeouts_ms, operations), (batch.item_indexes, items)]
    lengths += [(getattr(batch, column.batch_name), rows[column.level]) for column in columns_of(kind)]
    return all(len(values) in (0, 1, expected) for values, expected in lengths)
