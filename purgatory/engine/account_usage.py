"""Usage and limits of one account in an engine. The counts are updated wherever things are created or released."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.memory_estimate import ITEM_BYTES, OPERATION_BYTES

__all__ = ["NO_SHARE", "AccountUsage"]

# Half of what an i64 holds: `Admission.open_for` adds a count to it, and compiled sums wrap without an error.
NO_SHARE: Final[i64] = 2**62


class AccountUsage:
    """Usage and limits of one account, shared by its owners and by the partitions and keys that it named first.

    The counts belong to the engine: read them, never set them. The limits may be set between two calls, and apply
    together with those of the engine.
    """

    def __init__(self) -> None:
        self.operations: i64 = 0
        """Pending operations."""
        self.items: i64 = 0
        """Items of pending operations."""
        self.partitions: i64 = 0
        """Known partitions that this account was the first to name."""
        self.keys: i64 = 0
        """Keys with pending operations, of which this account was the first to wait."""
        self.name_bytes: i64 = 0
        """Bytes of these partitions and keys, including replicas, epochs and positions."""
        self.operations_max: i64 = NO_SHARE
        self.items_max: i64 = NO_SHARE
        self.partitions_max: i64 = NO_SHARE
        self.keys_max: i64 = NO_SHARE

    def memory_bytes(self) -> int:
        """Estimated memory, in bytes."""
        return self.operations * OPERATION_BYTES + self.items * ITEM_BYTES + self.name_bytes
