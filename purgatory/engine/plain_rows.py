"""The rows of a batch about which nothing is unusual: produces of one known partition each.

Nearly all operations are such, and most columns say the same of all of them. So a batch is looked through once, column
by column, and each row costs a comparison or two. What is vouched for here would pass all checks of `operation_checks`.
Any other row goes there, as do all rows of a batch with a value that no row may have; there alone faults are told.
"""

from __future__ import annotations

from typing import Final

from purgatory.engine.codes import OFFSET_MAX, PRODUCE
from purgatory.engine.columns import all_within
from purgatory.engine.event_checks import INT32_MAX
from purgatory.engine.operation_checks import OPERATION_ID_MAX, OperationColumns
from purgatory.engine.partition import Partition
from purgatory.engine.registry import NamedPartitions

__all__ = ["PlainRows"]


class PlainRows:
    """Finds the partitions that plain rows of a batch wait on; `named` are those of its dictionary."""

    def __init__(self, columns: OperationColumns, named: NamedPartitions, timeout_ms_max: int) -> None:
        batch = columns.batch
        self.there_may_be: Final = (
            columns.kind == PRODUCE
            and columns.names > 0
            and not batch.local_error_codes
            and all_within(batch.timeouts_ms, 1, timeout_ms_max)
            and all_within(batch.offsets, 0, OFFSET_MAX - 1)
            and all_within(batch.leader_epochs, -1, INT32_MAX)
            and all_within(batch.item_indexes, 0, columns.names - 1)
        )
        self._columns: Final = columns
        self._named: Final = named

    def partition(self, row: int, item: int, highest_operation_id: int) -> Partition | None:
        """The partition that an operation names with its only item; None where anything about it is unusual."""
        columns = self._columns
        if not highest_operation_id < columns.operation_ids[row] <= OPERATION_ID_MAX:
            return None
        if columns.item_count(row) != 1:
            return None
        return self._named.at(columns.partitions, columns.place(item))
