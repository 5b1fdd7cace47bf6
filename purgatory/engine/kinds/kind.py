"""What a kind of operation is to the rest of the engine: the one interface that all kinds have.

A kind decides when its operations end and what they answer. It enters them into the pending operations and resolves or
ends them there; slots, timers and counters are kept by these alone. An engine has one object of each kind.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import Partitions
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.watches import WatchList

__all__ = ["Kind"]


class Kind:
    """A kind of operation on partitions (or, where overridden, on signal keys).

    An item's *target* is the index of its partition or key.
    """

    def __init__(self, code: int, partitions: Partitions, on_partitions: bool = True) -> None:
        self.code: Final[i64] = code
        self.on_partitions: Final = on_partitions
        self.partitions: Final = partitions

    # Registration and end.

    def register(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> None:
        """Tries a valid operation once: it ends now, or is admitted and watched."""
        raise NotImplementedError

    def register_plain(
        self,
        owner: Owner,
        columns: BatchColumns,
        operation_id: i64,
        timeout_ms: i64,
        first_item: i64,
        item_count: i64,
        now_ms: i64,
    ) -> bool:
        """A faster way in for operations of a plain batch that have to wait. False: nothing was done, `register` it."""
        return False

    def build_result(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        """Records what each item of an ending operation answers and releases its watches, items and targets.
        Returns whether an item failed.
        """
        raise NotImplementedError

    # What happens to partitions.

    def wake(self, partition: Partition, now_ms: i64) -> None:
        """Marks of the partition may have moved up: ends what they have reached, at a cost that follows what ends."""

    def reevaluate(self, partition: Partition, now_ms: i64) -> None:
        """Anything about the partition may have changed: evaluates all that waits on it."""

    def on_mark_lowered(self, partition: Partition, now_ms: i64) -> None:
        """The high watermark or the log end has gone down. Who waits for a mark to rise just waits on."""

    def watch_lists(self, partition: Partition) -> list[WatchList]:
        """Where operations of this kind are watched on the partition."""
        waits = partition.waits[self.code]
        return [] if waits is None else [waits]

    # Views.

    def name_of(self, target: i64) -> AsGiven:
        """(topic, partition), or (key, -1)."""
        return self.partitions.at(target).name

    def reached(self, slot: i64, target: i64) -> i64:
        """Where the mark that a waiting item waits for stands now."""
        raise NotImplementedError

    def min_bytes(self, slot: i64) -> i64:
        """Fetches only; -1 for other kinds."""
        return -1

    # Snapshots.

    def save_extra(self, saved: SavedOperations, slot: i64) -> None:
        """Adds what operations of this kind have besides what all have."""

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        """Enters and watches the items of a saved operation. Returns whether it can end now."""
        raise NotImplementedError
