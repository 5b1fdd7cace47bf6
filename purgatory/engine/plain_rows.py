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
from purgatory.engine.registry import Partitions

__all__ = ["PlainRows"]


class PlainRows:
    """Finds the partitions that plain rows of a batch wait on."""

    def __init__(self, columns: OperationColumns, partitions: Partitions, timeout_ms_max: int) -> None:
        batch = columns.batch
        self.there_may_be: Final = columns.kind == PRODUCE and not batch.item_counts and not batch.local_error_codes
        self._columns: Final = columns
        self._partitions: Final = partitions
        self._timeout_ms_max: Final = timeout_ms_max
        self._found: Final[list[Partition | None]] = [None] * len(columns.partitions)

    def partition(self, row: int, highest_operation_id: int) -> Partition | None:
        """The partition that an operation names; None where anything about it is unusual.

        What was found stays known while its batch is registered: to forget it takes an event, or the end of all that
        wait on it.
        """
        columns = self._columns
        if not highest_operation_id < columns.operation_ids[row] <= OPERATION_ID_MAX:
            return None
        if not 1 <= columns.timeout_ms(row) <= self._timeout_ms_max:
            return None
        if not 0 <= columns.offset(row) < OFFSET_MAX:
            return None
        if not -1 <= columns.leader_epoch(row) <= INT32_MAX:
            return None
        place = columns.place(row)
        if not 0 <= place < len(self._found):
            return None
        found = self._found[place]
        if found is None:
            found = self._partitions.get(columns.partitions[place])
            self._found[place] = found
        return found
