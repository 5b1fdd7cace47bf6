"""Delete-records: waits until the low watermark of every partition has reached its offset.

Rules: Kafka's DelayedDeleteRecords (docs/semantics.md).
"""

from typing import final

from mypy_extensions import i64

from purgatory.engine.codes import DELETE_RECORDS, NONE, OFFSET_NOT_AVAILABLE, OFFSET_OUT_OF_RANGE
from purgatory.engine.kinds.countdown import Countdown, TriedItems, partition_fault
from purgatory.engine.marks.partition import Partition
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED


@final
class DeleteRecordsKind(Countdown):
    """Expired operations report the low watermark at their registration, as Kafka does."""

    def __init__(self, pending: PendingOperations) -> None:
        super().__init__(DELETE_RECORDS, pending, answers_mark_of_now=False)

    def mark(self, partition: Partition) -> i64:
        return partition.low_watermark()

    def state(self, partition: Partition, required: i64, epoch: i64) -> i64:
        # Without an epoch: the request has none in Kafka, so it is never fenced.
        fault = partition_fault(partition, -1)
        if fault != NONE:
            return fault
        return NONE if partition.low_watermark() >= required else UNRESOLVED

    def mark_told(self, partition: Partition, error: i64) -> i64:
        # Kafka's INVALID_LOW_WATERMARK with every error.
        return partition.low_watermark() if error in (NONE, UNRESOLVED) else -1

    def try_item(self, tried: TriedItems, partition: Partition, required: i64, epoch: i64) -> None:
        error = partition_fault(partition, -1)
        # -1 asks for the high watermark of this moment. It is resolved once, so the wait does not follow the mark as it
        # rises.
        if error == NONE and required < 0:
            required = partition.high_watermark
            error = OFFSET_NOT_AVAILABLE if required < 0 else NONE
        # An offset above an unknown high watermark may be valid, so it is not refused.
        if error == NONE and 0 <= partition.high_watermark < required:
            error = OFFSET_OUT_OF_RANGE
        if error == NONE:
            error = self.state(partition, required, epoch)
        tried.add(partition, required, self.mark_told(partition, error), epoch, error)
