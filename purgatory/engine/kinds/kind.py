"""The interface that every kind of operation implements.

A kind decides when its operations end, and their results. It adds them to the pending operations and resolves or ends
them there; only the pending operations manage slots, timers and counters. An engine has one object per kind.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import Partitions
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.tables import UNRESOLVED, ItemTable, Owner
from purgatory.engine.waiting.watches import WatchList


class Kind:
    """A kind of operation on partitions (or, where overridden, on signal keys).

    An item's *target* is the index of its partition or key.
    """

    def __init__(self, code: int, partitions: Partitions, items: ItemTable, *, names_keys: bool = False) -> None:
        self.code: Final[i64] = code
        self.partitions: Final = partitions
        self.items: Final = items
        self.names_keys: Final = names_keys

    # Registration and end.

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> i64:
        """Evaluate a valid operation once. It is admitted and watched (PENDING), or ends now: the results of its items
        are added, and its outcome is returned.
        """
        raise NotImplementedError

    def begin_plain(
        self,
        owner: Owner,
        columns: BatchColumns,
        row: i64,
        operation_id: i64,
        timeout_ms: i64,
        first_item: i64,
        item_count: i64,
        now_ms: i64,
    ) -> i64:
        """The same for operations of a plain batch, faster. UNRESOLVED: nothing was done, call `begin`."""
        return UNRESOLVED

    def build_result(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        """Record the result of each item of an ending operation, and release its watches, items and targets. Returns
        whether an item failed.
        """
        raise NotImplementedError

    def on_timer(self, slot: i64, now_ms: i64) -> bool:
        """The timer of an operation fired, which is then no longer on the wheel. Returns whether it has ended."""
        raise NotImplementedError

    # Changes of partitions.

    def wake(self, partition: Partition, now_ms: i64) -> None:
        """Marks of the partition may have risen: end the operations that are reached, at a cost per ended operation."""

    def reevaluate(self, partition: Partition, now_ms: i64) -> None:
        """Anything about the partition may have changed: evaluate every operation that waits on it."""

    def on_mark_lowered(self, partition: Partition, now_ms: i64) -> None:
        """The high watermark or the log end was lowered. Waits for a rising mark are not affected."""

    def watch_lists(self, partition: Partition) -> list[WatchList]:
        """The lists in which operations of this kind are watched on the partition."""
        # All lists, or `Wakeups.cancel_waiting` leaves operations behind and its caller repeats it for ever.
        waits = partition.waits[self.code]
        return [] if waits is None else [waits]

    # Views.

    def partition_of(self, item: i64) -> Partition | None:
        """The partition of an item; None if the item names a key."""
        return self.partitions.at(i64(self.items.target[item]))

    def name_of(self, item: i64) -> AsGiven:
        """The name of an item: (topic, partition), or (key, -1)."""
        return self.partitions.at(i64(self.items.target[item])).name

    def reached(self, slot: i64, item: i64) -> i64:
        """The current value of the mark that a waiting item waits for."""
        raise NotImplementedError

    def min_bytes(self, slot: i64) -> i64:
        """The `min_bytes` of a fetch; -1 for other kinds."""
        return -1

    def arms(self, slot: i64) -> tuple[int, int]:
        """The `required_terms` (never 0) and the `unless_count` of a composite; (-1, -1) for other kinds."""
        return -1, -1

    # Stale marks.

    def must_come(self, item: i64) -> bool:
        """Whether an item is still waited for, and contributes to success."""
        return i64(self.items.error_code[item]) == UNRESOLVED

    def spare(self, slot: i64) -> i64:
        """How many of the items that must come may be lost without ending the operation."""
        return 0

    def check(self, slot: i64) -> None:
        """Assert the invariants that only this kind has."""

    # Snapshots.

    def save_extra(self, saved: SavedOperations, slot: i64) -> None:
        """Save the state that only this kind has."""

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        """Add and watch the items of a saved operation. Returns whether it can end now."""
        raise NotImplementedError
