"""The rows of a batch about which nothing is unusual: produces of one known partition each.

Nearly all operations are such. So the columns of a batch of them are packed, and its dictionary is looked up, once;
then a row costs some comparisons. What is vouched for here would pass all checks of `operation_checks`. Any other row
goes there, and there alone faults are told.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import OFFSET_MAX, PRODUCE
from purgatory.engine.event_checks import INT32_MAX
from purgatory.engine.limits import EngineLimits
from purgatory.engine.operation_checks import OPERATION_ID_MAX
from purgatory.engine.partition import Partition
from purgatory.engine.registry import Partitions

__all__ = ["PlainRows", "plain_rows"]


class PlainRows:
    """Columns of produces with one item each. Raises OverflowError for values of more than 64 bits."""

    def __init__(self, batch: OperationBatch, partitions: Partitions, limits: EngineLimits) -> None:
        self.operation_ids: Final = vec[i64](batch.operation_ids)
        self._timeouts_ms: Final = packed(batch.timeouts_ms, limits.timeout_ms_default)
        self._places: Final = packed(batch.item_indexes, 0)
        self._offsets: Final = packed(batch.offsets, 0)
        self._leader_epochs: Final = packed(batch.leader_epochs, -1)
        self._timeout_ms_max: Final[i64] = min(limits.timeout_ms_max, OFFSET_MAX)
        self._partitions: Final = [partitions.get(name) for name in batch.partitions]

    def timeout_ms(self, row: i64) -> i64:
        """How long an operation waits."""
        return at(self._timeouts_ms, row)

    def offset(self, row: i64) -> i64:
        """What an operation waits for."""
        return at(self._offsets, row)

    def leader_epoch(self, row: i64) -> i64:
        """The leader epoch an operation was given; -1: none."""
        return at(self._leader_epochs, row)

    def partition(self, row: i64, highest_operation_id: i64) -> Partition | None:
        """The partition that an operation names; None where anything about it is unusual.

        None of these is forgotten while its batch is registered: that takes an event, or the end of who waits on it.
        """
        operation_id = self.operation_ids[row]
        if operation_id <= highest_operation_id or operation_id > OPERATION_ID_MAX:
            return None
        timeout_ms = self.timeout_ms(row)
        if timeout_ms < 1 or timeout_ms > self._timeout_ms_max:
            return None
        offset = self.offset(row)
        if offset < 0 or offset >= OFFSET_MAX:
            return None
        leader_epoch = self.leader_epoch(row)
        if leader_epoch < -1 or leader_epoch > INT32_MAX:
            return None
        place = at(self._places, row)
        if place < 0 or place >= i64(len(self._partitions)):
            return None
        return self._partitions[place]


def plain_rows(kind: int, batch: OperationBatch, partitions: Partitions, limits: EngineLimits) -> PlainRows | None:
    """The columns of a batch, whose lengths were checked, of operations that may be plain; None where none can be."""
    if kind != PRODUCE or batch.item_counts or batch.local_error_codes:
        return None
    try:
        return PlainRows(batch, partitions, limits)
    except OverflowError:
        return None


def packed(values: list[int], default: int) -> vec[i64]:
    """A column of one value for each row, or of one for all."""
    return vec[i64](values) if values else vec[i64]([default])


def at(values: vec[i64], row: i64) -> i64:
    """The value of a row."""
    return values[row] if len(values) > 1 else values[0]
