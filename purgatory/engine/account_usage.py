"""Usage and limits of one account in an engine. The counts are updated wherever things are created or released."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.memory_estimate import ITEM_BYTES, OPERATION_BYTES

# Half of what an i64 holds: `Admission.open_for` adds a count to it, and compiled sums wrap without an error.
NO_SHARE: Final[i64] = 2**62
LONG_AGO_MS: Final[i64] = -(2**62)


class AccountUsage:
    """Usage and limits of one account, shared by its owners and by the partitions and keys that it named first.

    The counts belong to the engine: read them, never set them. The limits may be set between two calls, and apply
    together with those of the engine. `name` identifies the account in snapshots of keys.
    """

    def __init__(self, name: str = "") -> None:
        self.name: Final = name
        self.operations: i64 = 0
        """Pending operations."""
        self.items: i64 = 0
        """Items of pending operations."""
        self.partitions: i64 = 0
        """Known partitions that this account was the first to name."""
        self.keys: i64 = 0
        """Keys with pending operations, of which this account was the first to wait."""
        self.owned_keys: i64 = 0
        """Known keys that belong to this account: it was the first to signal them."""
        self.value_bytes: i64 = 0
        """Bytes of their values."""
        self.held_value_bytes: i64 = 0
        """Those of keys with pending operations, of any account."""
        self.name_bytes: i64 = 0
        """Bytes of these partitions, with replicas, epochs and positions, and of these keys and its own idle ones."""
        self.refused_ms: i64 = LONG_AGO_MS
        """Listening time at which events of this account were last refused for reasons of the daemon."""
        self.operations_max: i64 = NO_SHARE
        self.items_max: i64 = NO_SHARE
        self.partitions_max: i64 = NO_SHARE
        self.keys_max: i64 = NO_SHARE
        self.value_bytes_max: i64 = NO_SHARE
        """Of `value_bytes`: above it, the oldest of its own keys are forgotten first."""

    def memory_bytes(self) -> int:
        """Estimated memory, in bytes."""
        return self.operations * OPERATION_BYTES + self.items * ITEM_BYTES + self.name_bytes
