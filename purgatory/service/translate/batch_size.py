"""Upper bounds for the size of a batch of registrations, from the message alone, before anything is copied."""

from typing import Final

from purgatory.v1 import purgatory_service_pb2 as wire

ITEM_ROW_BYTES_MIN: Final = 8
"""Minimum encoded size of a partition or key in a batch of rows."""


def size_of(batch: wire.RegisterBatch) -> tuple[int, int]:
    """Return the maximum number of operations in a batch, and of their items."""
    if batch.WhichOneof("shape") == "rows":
        operations = len(batch.rows.operations)
        return operations, max(operations, batch.rows.ByteSize() // ITEM_ROW_BYTES_MIN)
    operations = len(batch.columns.operation_id)
    # An operation cannot name a partition twice, so each item after the first needs an index of its own.
    return operations, max(operations, len(batch.columns.item_index))
