"""How much a batch of registrations holds, told from the message alone, before anything of it is copied."""

from typing import Final

from purgatory.v1 import purgatory_service_pb2 as wire

ITEM_ROW_BYTES_MIN: Final = 8
"""A partition or key in a batch of rows takes at least so many bytes on the wire."""


def size_of(batch: wire.RegisterBatch) -> tuple[int, int]:
    """The most operations, and items of them, that a batch can have."""
    if batch.WhichOneof("shape") == "rows":
        operations = len(batch.rows.operations)
        return operations, max(operations, batch.rows.ByteSize() // ITEM_ROW_BYTES_MIN)
    operations = len(batch.columns.operation_id)
    # An operation cannot name a partition twice, so all items but the first of each have a place of their own.
    return operations, max(operations, len(batch.columns.item_index))
