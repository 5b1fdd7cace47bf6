"""Countdown kinds: an operation ends when all of its partitions have been resolved, one by one.

An item waits for one mark of its partition and is watched at a threshold of that mark. It is resolved once, with an
error code; the operation ends with its last item. A subclass defines the mark, the threshold and the state of an item.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine import codes
from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.kinds.kind import Kind
from purgatory.engine.kinds.pace import pace_per_second, remaining_ms
from purgatory.engine.marks.partition import Partition
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner
from purgatory.engine.waiting.watches import WatchList, ref_is_live, ref_item


def partition_fault(partition: Partition, leader_epoch: i64) -> i64:
    """The error code if waiting on the partition is impossible, else NONE. `leader_epoch` -1 matches any epoch.

    The epoch is checked before leadership: a wait with an old epoch is fenced even if the partition has moved.
    """
    if partition.removed_error_code != codes.NONE:
        return partition.removed_error_code
    if partition.storage_failed:
        return codes.KAFKA_STORAGE_ERROR
    if leader_epoch >= 0 and partition.leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
        return codes.FENCED_LEADER_EPOCH if partition.leader_epoch > leader_epoch else codes.UNKNOWN_LEADER_EPOCH
    if not partition.is_leader:
        return codes.NOT_LEADER_OR_FOLLOWER
    return codes.NONE


class TriedItems:
    """The items of an operation after the first evaluation, before it is known whether the operation has to wait."""

    def __init__(self) -> None:
        self.partitions: Final[list[Partition]] = []
        self.required: Final[list[i64]] = []
        self.marks: Final[list[i64]] = []
        self.epochs: Final[list[i64]] = []
        self.errors: Final[list[i64]] = []
        self.left: i64 = 0
        """Number of items that have to wait."""

    def add(self, partition: Partition, required: i64, mark: i64, epoch: i64, error: i64) -> None:
        """Add one item; its error is UNRESOLVED if it has to wait."""
        self.partitions.append(partition)
        self.required.append(required)
        self.marks.append(mark)
        self.epochs.append(epoch)
        self.errors.append(error)
        if error == UNRESOLVED:
            self.left += 1


class Countdown(Kind):
    """Base class of countdown kinds.

    `answers_mark_of_now`: items that time out report the mark at the end of the wait; otherwise the mark at
    registration.
    """

    def __init__(
        self, code: int, pending: PendingOperations, answers_mark_of_now: bool, *, names_keys: bool = False
    ) -> None:
        super().__init__(code, pending.partitions, pending.items, names_keys=names_keys)
        self.pending: Final = pending
        self.answers_mark_of_now: Final = answers_mark_of_now

    # Each kind defines these.

    def mark(self, partition: Partition) -> i64:
        """The mark that items of this kind wait for."""
        raise NotImplementedError

    def state(self, partition: Partition, required: i64, epoch: i64) -> i64:
        """The error code of an item; UNRESOLVED while it has to wait."""
        raise NotImplementedError

    def threshold(self, partition: Partition, required: i64) -> i64:
        """The lowest mark at which an unresolved item may be resolved; always above the current mark."""
        return required

    def mark_told(self, partition: Partition, error: i64) -> i64:
        """The mark that is recorded for an item in this state, and reported in its result."""
        return self.mark(partition)

    def try_item(self, tried: TriedItems, partition: Partition, required: i64, epoch: i64) -> None:
        """Evaluate an item that was registered without a local error."""
        error = self.state(partition, required, epoch)
        tried.add(partition, required, self.mark_told(partition, error), epoch, error)

    # Registration.

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> i64:
        tried = TriedItems()
        for item in range(first_item, first_item + columns.item_counts.at(row)):
            # Each item holds a reference from here on. `_end_at_once` and `build_result` release it.
            partition = self.partitions.get_or_create(columns.partitions[columns.places.at(item)], owner.usage)
            required, epoch = columns.offsets.at(item), columns.leader_epochs.at(item)
            error = columns.local_error_codes.at(item)
            if error == codes.NONE:
                self.try_item(tried, partition, required, epoch)
            else:
                tried.add(partition, required, self.mark_told(partition, error), epoch, error)
        timeout_ms = columns.timeouts_ms.at(row)
        if tried.left == 0 or timeout_ms == 0:
            return self._end_at_once(owner, tried)
        pending = self.pending
        operation_id = columns.operation_ids.at(row)
        slot = pending.admit(owner, self.code, len(tried.partitions), tried.left, operation_id, timeout_ms, now_ms)
        # Every item gets a row, also those that have ended: their results are reported with those of the others.
        last: i64 = -1
        for place, partition in enumerate(tried.partitions):
            error = tried.errors[place]
            required = tried.required[place]
            last = pending.add_item(
                slot, last, partition.index, required, tried.marks[place], tried.epochs[place], error
            )
            if error == UNRESOLVED:
                self.watch(partition, last, required)
        return codes.PENDING

    def watch(self, partition: Partition, item: i64, required: i64) -> None:
        """Watch for an unresolved item."""
        self.pending.watch(partition.waits_of(self.code), self.code, item, self.threshold(partition, required))

    def _end_at_once(self, owner: Owner, tried: TriedItems) -> i64:
        completions = self.pending.completions_of(owner)
        # With a timeout of 0 an operation that still has to wait expires, even if some of its items have failed: like
        # any other expired wait.
        outcome = codes.EXPIRED if tried.left > 0 else codes.SATISFIED
        for place, partition in enumerate(tried.partitions):
            error = tried.errors[place]
            if error == UNRESOLVED:
                error = codes.REQUEST_TIMED_OUT
            elif error != codes.NONE and outcome == codes.SATISFIED:
                outcome = codes.FAILED
            completions.add_item(
                partition.name, error, tried.required[place], tried.marks[place], partition.log_start_offset, -1, -1.0
            )
            self.partitions.release(partition)
        return outcome

    # Results.

    def build_result(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        items = self.items
        failed = False
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            # Read before `release`, which reuses `next` for the free list. The item is released before `unwatch`, which
            # may compact the list by generation.
            after = i64(items.next[item])
            partition = self.partitions.at(i64(items.target[item]))
            error = i64(items.error_code[item])
            mark = items.mark[item]
            required = items.required[item]
            remaining: i64 = -1
            pace = -1.0
            reached = mark
            items.release(item)
            if error == UNRESOLVED:
                error = codes.REQUEST_TIMED_OUT
                current = self.mark(partition)
                if self.answers_mark_of_now:
                    reached = current
                if outcome == codes.EXPIRED:
                    paced_ms = waited_ms
                    if mark < 0 and self.answers_mark_of_now and partition.first_mark >= 0:
                        # It was not known at the registration.
                        mark = partition.first_mark
                        paced_ms += self.pending.operations.registered_ms[slot] - partition.first_ms
                    if mark >= 0 and paced_ms > 0:
                        remaining = remaining_ms(mark, current, self.threshold(partition, required), paced_ms)
                        pace = pace_per_second(mark, current, paced_ms)
                self.pending.unwatch(partition.waits_of(self.code), self.code)
            elif error != codes.NONE:
                failed = True
            completions.add_item(partition.name, error, required, reached, partition.log_start_offset, remaining, pace)
            self.partitions.release(partition)
            item = after
        return failed

    # Changes of partitions.

    def wake(self, partition: Partition, now_ms: i64) -> None:
        waits = partition.waits[self.code]
        # A list without live entries may still hold stale ones; they are left to compaction.
        if waits is None or waits.live == 0:
            return
        mark = self.mark(partition)
        while True:
            ref = waits.pop_reached(mark)
            if ref < 0:
                return
            if ref_is_live(ref, self.items.generation):
                self._evaluate(partition, waits, ref_item(ref), now_ms)

    def reevaluate(self, partition: Partition, now_ms: i64) -> None:
        waits = partition.waits[self.code]
        if waits is not None:
            # All entries are taken first: an item that still has to wait is added to this same list, so a loop that
            # pops would never end.
            for ref in waits.drain():
                if ref_is_live(ref, self.items.generation):
                    # Checked entry by entry: ending one operation may have released items of entries further on.
                    self._evaluate(partition, waits, ref_item(ref), now_ms)

    def _evaluate(self, partition: Partition, waits: WatchList, item: i64, now_ms: i64) -> None:
        """The entry of `item` was taken from `waits`: resolve the item, or watch for it again."""
        items = self.items
        # First, because the entry is no longer in the list: an item that has to go on waiting adds and counts a new one
        # below.
        self.pending.popped(waits, self.code)
        self.pending.evaluations_by_kind[self.code] += 1
        self.pending.work_total += 1
        required = items.required[item]
        error = self.state(partition, required, i64(items.epoch[item]))
        if error == UNRESOLVED:
            self.watch(partition, item, required)
        else:
            self.settle(item, error, self.mark_told(partition, error), now_ms)

    def settle(self, item: i64, error: i64, mark: i64, now_ms: i64) -> None:
        """Resolve an item, whose entry was taken from its list."""
        self.pending.resolve(item, error, mark, now_ms)

    # Views and snapshots.

    def reached(self, slot: i64, item: i64) -> i64:
        return self.mark(self.partitions.at(i64(self.items.target[item])))

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        last: i64 = -1
        for item in range(place.item, place.item + saved.item_counts[place.row]):
            error = saved.error_codes[item]
            required = saved.required[item]
            partition = self.mention_again(saved, item)
            last = self.pending.add_item(
                slot, last, partition.index, required, saved.marks[item], saved.epochs[item], error
            )
            if error == UNRESOLVED:
                self.watch(partition, last, required)
        return False

    def mention_again(self, saved: SavedOperations, item: i64) -> Partition:
        """The partition of a saved item, with one reference added."""
        name: AsGiven = saved.names[saved.places[item]]
        removed = saved.removed[item]
        log_start = saved.log_starts[item]
        if saved.error_codes[item] != UNRESOLVED and removed == 0 and self.partitions.get(name) is None:
            # The partition was removed after this item was resolved; it is only named here and must not be created
            # again.
            removed = codes.UNKNOWN_TOPIC_OR_PARTITION
            log_start = 0
        return self.partitions.mention_again(name, removed, log_start)
