"""The rows of a batch about which nothing is unusual: produces of one known partition each.

Nearly all operations are such. They cost some comparisons, and each place of the dictionary is looked up once a batch.
What is vouched for here would pass all checks of `operation_checks`. Any other row goes there, and there alone faults
are told.
"""

from __future__ import annotations

from typing import Final

from purgatory.engine.codes import OFFSET_MAX, PRODUCE
from purgatory.engine.event_checks import INT32_MAX
from purgatory.engine.operation_checks import OPERATION_ID_MAX, OperationColumns
from purgatory.engine.partition import Partition
from purgatory.engine.registry import NamedPartitions, Partitions

__all__ = ["PlainRows"]


class PlainRows:
    """Finds the partitions that plain rows of a batch wait on."""

    def __init__(self, columns: OperationColumns, partitions: Partitions, timeout_ms_max: int) -> None:
        batch = columns.batch
        self.there_may_be: Final = columns.kind == PRODUCE and not batch.local_error_codes
        self._columns: Final = columns
        self._partitions: Final = NamedPartitions(columns.partitions, partitions)
        self._timeout_ms_max: Final = timeout_ms_max

    def partition(self, row: int, item: int, highest_operation_id: int) -> Partition | None:
        """The partition that an operation names with its only item; None where anything about it is unusual."""
        columns = self._columns
        if not highest_operation_id < columns.operation_ids[row] <= OPERATION_ID_MAX:
            return None
        if not 1 <= columns.timeout_ms(row) <= self._timeout_ms_max:
            return None
        if columns.item_count(row) != 1:
            return None
        if not 0 <= columns.offset(item) < OFFSET_MAX:
            return None
        if not -1 <= columns.leader_epoch(item) <= INT32_MAX:
            return None
        place = columns.place(item)
        return self._partitions.at(place) if 0 <= place < columns.names else None
