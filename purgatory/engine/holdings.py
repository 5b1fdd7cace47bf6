"""What one account holds in an engine, and the most it may: counts that are kept in step where things come and go."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.memory_estimate import ITEM_BYTES, OPERATION_BYTES

__all__ = ["NO_SHARE", "Holdings"]

NO_SHARE: Final[i64] = 2**62


class Holdings:
    """Shared by all owners of one account, and by the partitions and keys that it made known.

    The counts are the engine's: read them, never set them. The limits may be set between two calls, and hold together
    with those of the engine.
    """

    def __init__(self) -> None:
        self.operations: i64 = 0
        """Pending ones."""
        self.items: i64 = 0
        """Of pending operations."""
        self.partitions: i64 = 0
        """Known ones that it was the first to name."""
        self.keys: i64 = 0
        """Those waited for, of which it was the first to wait."""
        self.name_bytes: i64 = 0
        """What these partitions and keys take, with replicas, epochs and positions."""
        self.operations_max: i64 = NO_SHARE
        self.items_max: i64 = NO_SHARE
        self.partitions_max: i64 = NO_SHARE
        self.keys_max: i64 = NO_SHARE

    def memory_bytes(self) -> int:
        """What it takes in memory, estimated."""
        return self.operations * OPERATION_BYTES + self.items * ITEM_BYTES + self.name_bytes
