"""Batches of registrations of which not all was accepted: the operations that make rows of the archive."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from purgatory.archive.calls import INT32_MAX, INT64_MAX
from purgatory.archive.words import ACCEPTED
from purgatory.engine.batches import OperationBatch, RegisterReceipt
from purgatory.engine.codes import SIGNAL
from purgatory.engine.columns import check_length, value_at
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, ITEM, OPERATION

__all__ = ["Sifted"]

OPERATION_FIELDS: Final = [column.batch_name for column in COLUMNS_BY_NAME.values() if column.level == OPERATION]
ITEM_FIELDS: Final = [column.batch_name for column in COLUMNS_BY_NAME.values() if column.level == ITEM]
"""Columns of `OperationBatch`."""


class Sifted:
    """The operations of a batch that make rows, by their places: `whole` with their items, `bare` ones without.

    Bare are those refused whose items are none, or point outside the dictionary, or did not arrive.
    """

    def __init__(self, kind: int, batch: OperationBatch, receipt: RegisterReceipt) -> None:
        self._batch: Final = batch
        self._codes: Final = {refusal.index: refusal.code for refusal in receipt.refusals}
        self._whole: Final[list[int]] = []
        self._bare: Final[list[int]] = []
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
            (self._whole if is_whole else self._bare).append(row)

    def parts(self) -> Iterator[tuple[OperationBatch, list[int], bool]]:
        """Batches of their own, the refusal codes of their operations, and whether these are bare."""
        if self._whole:
            yield *self._batch_of(self._whole), False
        if self._bare:
            yield *self._heads_of(self._bare), True

    def _has_names(self, row: int, count: int, names: int) -> bool:
        indexes = self._batch.item_indexes
        if count > 1 and len(indexes) <= 1:
            return False
        first = self._first_items[row]
        return count > 0 and all(value_at(indexes, first + item, 0) < names for item in range(count))

    def _batch_of(self, rows: list[int]) -> tuple[OperationBatch, list[int]]:
        """These operations as a batch of their own, and the refusal code of each."""
        batch = self._batch
        counts = [value_at(batch.item_counts, row, 1) for row in rows]
        items = [
            self._first_items[row] + item for row, count in zip(rows, counts, strict=True) for item in range(count)
        ]
        ids, codes = self._ids_and_codes(rows)
        columns = self._of_operations(rows)
        columns |= {field: _chosen(getattr(batch, field), items) for field in ITEM_FIELDS}
        indexes = _chosen(batch.item_indexes, items)
        part = OperationBatch(
            ids, partitions=batch.partitions, keys=batch.keys, item_counts=counts, item_indexes=indexes, **columns
        )
        return part, codes

    def _heads_of(self, rows: list[int]) -> tuple[OperationBatch, list[int]]:
        """These operations without their items, and the refusal code of each."""
        batch = self._batch
        ids, codes = self._ids_and_codes(rows)
        if not self._readable:
            return OperationBatch(ids, item_counts=[0]), codes
        counts = [min(value_at(batch.item_counts, row, 1), INT32_MAX) for row in rows]
        return OperationBatch(ids, item_counts=counts, **self._of_operations(rows)), codes

    def _of_operations(self, rows: list[int]) -> dict[str, list[Any]]:
        fields = ("timeouts_ms", *OPERATION_FIELDS)
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
        for field in OPERATION_FIELDS:
            check_length(field, len(getattr(batch, field)), operations)
        for field in ITEM_FIELDS:
            check_length(field, len(getattr(batch, field)), items)
    except InvalidBatch:
        return False
    return True
