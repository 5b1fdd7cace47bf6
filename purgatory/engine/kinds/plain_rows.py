"""The rows of a batch about which nothing is unusual: produces of one known partition each.

Nearly all operations are such, and most columns say the same of all of them. So a batch is looked through once, column
by column, and each row costs a comparison or two. What is vouched for here would pass all checks of `operation_checks`.
Any other row goes there, as do all rows of a batch with a value that no row may have; there alone faults are told.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from purgatory.engine.codes import OFFSET_MAX, PRODUCE
from purgatory.engine.columns import Column
from purgatory.engine.kinds.operation_checks import OPERATION_ID_MAX, OperationColumns
from purgatory.engine.marks.event_checks import INT32_MAX
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import NamedPartitions

__all__ = ["PlainRows", "plain_rows"]


def plain_rows(columns: OperationColumns, named: NamedPartitions, timeout_ms_max: int) -> PlainRows | None:
    """The rows of a batch of which each may be plain; None where none is. `named` is to know its dictionary then."""
    if columns.kind != PRODUCE or columns.batch.local_error_codes:
        return None
    rows = PlainRows(columns, named, timeout_ms_max)
    if not rows.are_within:
        return None
    named.use(columns.partitions)
    return rows


class PlainRows:
    """The columns of produces, and the partitions they name. Whether a row is plain is for `Registration` to see."""

    def __init__(self, columns: OperationColumns, named: NamedPartitions, timeout_ms_max: int) -> None:
        batch = columns.batch
        self.operation_ids: Final = Column(columns.operation_ids, 0, 1, OPERATION_ID_MAX)
        self.timeouts_ms: Final = Column(batch.timeouts_ms, columns.timeout_ms_default, 1, timeout_ms_max)
        self.item_counts: Final = Column(columns.item_counts, 1, 1, INT32_MAX)
        self.offsets: Final = Column(columns.offsets, columns.offset_default, 0, OFFSET_MAX - 1)
        self.leader_epochs: Final = Column(batch.leader_epochs, -1, -1, INT32_MAX)
        self._places: Final = Column(columns.item_indexes, 0, 0, columns.names - 1)
        self._named: Final = named
        self.are_within: Final = (
            self.operation_ids.is_within
            and self.timeouts_ms.is_within
            and self.item_counts.is_within
            and self.offsets.is_within
            and self.leader_epochs.is_within
            and self._places.is_within
        )

    def partition(self, item: i64) -> Partition | None:
        """The partition that an item names, if it is known."""
        return self._named.at(self._places.at(item))
