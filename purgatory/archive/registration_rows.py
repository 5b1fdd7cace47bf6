"""Rows of `registrations` from the batches that were given to the engine and the receipts that it gave for them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from purgatory.archive.gathering import (
    INT32_MAX,
    INT64_MAX,
    NAMELESS,
    Calls,
    CallStamp,
    Columns,
    Names,
    Registrant,
    finish,
    keys_as_names,
    spread,
    worded,
)
from purgatory.archive.schema import ACCEPTED, KIND_WORDS, REGISTRATIONS, SCHEMAS
from purgatory.engine.batches import OperationBatch, RegisterReceipt
from purgatory.engine.codes import DELETE_RECORDS, FETCH, PRODUCE, SIGNAL
from purgatory.engine.columns import check_length, value_at
from purgatory.engine.errors import InvalidBatch

__all__ = ["RegistrationRows", "registration_rows_count"]

OPERATION_COLUMNS: Final = (
    ("min_bytes", "min_bytes"),
    ("replica_id", "replica_ids"),
    ("isolation_level", "isolation_levels"),
    ("follower_reads", "follower_reads"),
    ("any_key", "any_key"),
    ("from_now", "from_now"),
)
ITEM_COLUMNS: Final = (
    ("offset", "offsets"),
    ("local_error_code", "local_error_codes"),
    ("leader_epoch", "leader_epochs"),
    ("partition_max_bytes", "partition_max_bytes"),
    ("last_fetched_epoch", "last_fetched_epochs"),
    ("throttled", "throttled"),
)
"""(column, field of `OperationBatch`)."""

ROWS_EACH: Final = "rows_each"
"""Of each operation: its items, but one where they cannot be read. No column of the archive."""

OPERATION_NAMES: Final = (
    "operation_id", "timeout_ms", "refusal_code", "item_count", *(name for name, _ in OPERATION_COLUMNS)
)  # fmt: skip

KIND_COLUMNS: Final[dict[int, frozenset[str]]] = {
    PRODUCE: frozenset({"offset", "local_error_code", "leader_epoch"}),
    FETCH: frozenset(
        {
            "min_bytes", "replica_id", "isolation_level", "follower_reads", "offset", "leader_epoch",
            "partition_max_bytes", "last_fetched_epoch", "throttled",
        }
    ),
    DELETE_RECORDS: frozenset({"offset", "local_error_code"}),
    SIGNAL: frozenset({"offset", "any_key", "from_now"}),
}  # fmt: skip
"""What a kind has besides the columns of all kinds. What else is in its batch the engine does not look at."""

OF_OPERATIONS: Final = {
    kind: [(name, field) for name, field in OPERATION_COLUMNS if name in had] for kind, had in KIND_COLUMNS.items()
}
OF_ITEMS: Final = {
    kind: [(name, field) for name, field in ITEM_COLUMNS if name in had] for kind, had in KIND_COLUMNS.items()
}


class RegistrationRows:
    """Gathers batches of registrations; `take` makes rows of them."""

    def __init__(self) -> None:
        self.rows = 0
        """Gathered so far."""
        self._calls: Final = Calls()
        self._operations: Final = Columns()
        self._items: Final = Columns()
        self._names: Final = Names()

    def add(
        self,
        stamp: CallStamp,
        registrant: Registrant,
        kind: int,
        batch: OperationBatch,
        receipt: RegisterReceipt,
        timeout_ms_default: int,
    ) -> None:
        """A batch and what became of it. Operations that were known already make no rows."""
        if not receipt.refusals and not receipt.already_known:
            self._add(stamp, registrant, kind, batch, [], timeout_ms_default)
            return
        sifted = _Sifted(kind, batch, receipt)
        if sifted.whole:
            part, codes = sifted.batch_of(sifted.whole)
            self._add(stamp, registrant, kind, part, codes, timeout_ms_default)
        if sifted.bare:
            part, codes = sifted.heads_of(sifted.bare)
            self._add(stamp, registrant, kind, part, codes, timeout_ms_default, bare=True)

    def _add(
        self,
        stamp: CallStamp,
        registrant: Registrant,
        kind: int,
        batch: OperationBatch,
        codes: list[int],
        timeout_ms_default: int,
        *,
        bare: bool = False,
    ) -> None:
        """Operations of one batch, all of which make rows; `bare` ones a single row without a name each."""
        operations = len(batch.operation_ids)
        rows = operations if bare else _items_in(batch)
        counts = batch.item_counts or [1]
        self.rows += rows
        self._calls.add(stamp, rows, registrant)
        self._operations.add(
            operations,
            {
                "operation_id": batch.operation_ids,
                "timeout_ms": batch.timeouts_ms or [timeout_ms_default],
                "refusal_code": codes or [ACCEPTED],
                "item_count": counts,
                ROWS_EACH: [1] if bare else counts,
                **{name: getattr(batch, field) for name, field in OF_OPERATIONS[kind]},
            },
        )
        of_items = () if bare else OF_ITEMS[kind]
        self._items.add(rows, {"kind": [kind], **{name: getattr(batch, field) for name, field in of_items}})
        if bare:
            self._names.add_indexes([], [NAMELESS], rows)
        else:
            names = keys_as_names(batch.keys) if kind == SIGNAL else batch.partitions
            self._names.add_indexes(names, batch.item_indexes, rows)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        types = {field.name: field.type for field in SCHEMAS[REGISTRATIONS]}
        columns = self._calls.take()
        columns["item"], operation_of = spread(self._operations.column(ROWS_EACH, pa.int64()), self.rows)
        for name in OPERATION_NAMES:
            array = self._operations.column(name, types[name])
            columns[name] = array if operation_of is None else array.take(operation_of)
        columns["kind"] = worded(self._items.column("kind", pa.int32()), KIND_WORDS)
        for name, _ in ITEM_COLUMNS:
            columns[name] = self._items.column(name, types[name])
        columns["topic"], columns["partition"] = self._names.take()
        self._operations.clear()
        self._items.clear()
        self.rows = 0
        return finish(REGISTRATIONS, columns)


def registration_rows_count(kind: int, batch: OperationBatch, receipt: RegisterReceipt) -> int:
    """How many rows a batch makes; at once, unless some of it was refused or known already."""
    if not receipt.refusals and not receipt.already_known:
        return _items_in(batch)
    sifted = _Sifted(kind, batch, receipt)
    counts = batch.item_counts
    return len(sifted.bare) + sum(value_at(counts, row, 1) for row in sifted.whole)


def _items_in(batch: OperationBatch) -> int:
    """Items of a batch of which all was accepted: several items of an operation differ, so each has its index."""
    return max(len(batch.operation_ids), len(batch.item_indexes))


class _Sifted:
    """The operations of a batch that make rows, by their places: `whole` with their items, `bare` ones without.

    Bare are those refused whose items are none, or point outside the dictionary, or did not arrive.
    """

    def __init__(self, kind: int, batch: OperationBatch, receipt: RegisterReceipt) -> None:
        self._batch: Final = batch
        self._codes: Final = {refusal.index: refusal.code for refusal in receipt.refusals}
        self.whole: Final[list[int]] = []
        self.bare: Final[list[int]] = []
        ids = batch.operation_ids
        known_up_to = 0
        if receipt.already_known:
            # Known are the ids from 1 up to some id, so they are the lowest ones.
            known_up_to = sorted(value for value in ids if value > 0)[receipt.already_known - 1]
        self._readable: Final = _is_readable(batch)
        counts = [value_at(batch.item_counts, row, 1) if self._readable else 0 for row in range(len(ids))]
        self._first_items: Final = [0, *accumulate(counts)]
        names = len(batch.keys) if kind == SIGNAL else len(batch.partitions)
        for row, operation_id in enumerate(ids):
            if 0 < operation_id <= known_up_to:
                continue
            is_whole = row not in self._codes or self._has_names(row, counts[row], names)
            (self.whole if is_whole else self.bare).append(row)

    def _has_names(self, row: int, count: int, names: int) -> bool:
        indexes = self._batch.item_indexes
        if count > 1 and len(indexes) <= 1:
            return False
        first = self._first_items[row]
        return count > 0 and all(value_at(indexes, first + item, 0) < names for item in range(count))

    def batch_of(self, rows: list[int]) -> tuple[OperationBatch, list[int]]:
        """These operations as a batch of their own, and the refusal code of each."""
        batch = self._batch
        counts = [value_at(batch.item_counts, row, 1) for row in rows]
        items = [
            self._first_items[row] + item for row, count in zip(rows, counts, strict=True) for item in range(count)
        ]
        ids, codes = self._ids_and_codes(rows)
        columns = self._of_operations(rows)
        columns |= {field: _chosen(getattr(batch, field), items) for _, field in ITEM_COLUMNS}
        indexes = _chosen(batch.item_indexes, items)
        part = OperationBatch(
            ids, partitions=batch.partitions, keys=batch.keys, item_counts=counts, item_indexes=indexes, **columns
        )
        return part, codes

    def heads_of(self, rows: list[int]) -> tuple[OperationBatch, list[int]]:
        """These operations without their items, and the refusal code of each."""
        batch = self._batch
        ids, codes = self._ids_and_codes(rows)
        if not self._readable:
            return OperationBatch(ids, item_counts=[0]), codes
        counts = [min(value_at(batch.item_counts, row, 1), INT32_MAX) for row in rows]
        return OperationBatch(ids, item_counts=counts, **self._of_operations(rows)), codes

    def _of_operations(self, rows: list[int]) -> dict[str, list[Any]]:
        fields = ("timeouts_ms", *(field for _, field in OPERATION_COLUMNS))
        return {field: _chosen(getattr(self._batch, field), rows) for field in fields}

    def _ids_and_codes(self, rows: list[int]) -> tuple[list[int], list[int]]:
        ids = self._batch.operation_ids
        return [min(ids[row], INT64_MAX) for row in rows], [self._codes.get(row, ACCEPTED) for row in rows]


def _chosen(values: list[Any], places: list[int]) -> list[Any]:
    """The values at these places of a column, which may also have one for all, or none."""
    return [values[place] for place in places] if len(values) > 1 else values


def _is_readable(batch: OperationBatch) -> bool:
    """Whether the columns fit together. The engine looked before it took the batch, but some never got there."""
    operations = len(batch.operation_ids)
    counts = batch.item_counts
    items = operations if not counts else counts[0] * operations if len(counts) == 1 else sum(counts)
    try:
        check_length("item_count", len(counts), operations)
        check_length("item_index", len(batch.item_indexes), items)
        check_length("timeout_ms", len(batch.timeouts_ms), operations)
        for _, field in OPERATION_COLUMNS:
            check_length(field, len(getattr(batch, field)), operations)
        for _, field in ITEM_COLUMNS:
            check_length(field, len(getattr(batch, field)), items)
    except InvalidBatch:
        return False
    return True
