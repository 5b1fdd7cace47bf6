"""Who is woken when a partition has changed.

Two ways. `wake` follows the marks: each watch list is asked only for the entries whose threshold its mark has reached,
so its cost follows completions. `recheck` looks at all that wait on a partition; it is for the rare events that can end
a wait without moving a mark up: leadership, epochs, storage, removal, truncation, the in-sync set.

The conditions of produce and delete-records are here; those of fetch in `fetch`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from purgatory.engine.codes import (
    DELETE_RECORDS,
    FENCED_LEADER_EPOCH,
    FETCH,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    PRODUCE,
    SATISFIED,
    SIGNAL,
    UNKNOWN_LEADER_EPOCH,
)
from purgatory.engine.kinds.fetch import Fetch, examine, share_out
from purgatory.engine.marks.partition import FetchWatch, Partition
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED
from purgatory.engine.waiting.watches import WatchList, ref_is_live, ref_item

__all__ = ["Wakeups", "delete_records_state", "produce_state"]


def partition_fault(partition: Partition, leader_epoch: i64) -> i64:
    """Why nothing can be waited for on a partition; 0 if nothing speaks against it. The epoch comes before
    leadership.
    """
    if partition.removed_error_code != NONE:
        return partition.removed_error_code
    if partition.storage_failed:
        return KAFKA_STORAGE_ERROR
    if leader_epoch >= 0 and partition.leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
        return FENCED_LEADER_EPOCH if partition.leader_epoch > leader_epoch else UNKNOWN_LEADER_EPOCH
    if not partition.is_leader:
        return NOT_LEADER_OR_FOLLOWER
    return NONE


def produce_state(partition: Partition, required_offset: i64, leader_epoch: i64) -> i64:
    """Error code of one partition of a produce, UNRESOLVED while it has to wait (Kafka's DelayedProduce, cases A to
    C).
    """
    fault = partition_fault(partition, leader_epoch)
    if fault != NONE:
        return fault
    if partition.high_watermark < 0 or partition.high_watermark < required_offset:
        return UNRESOLVED
    return NOT_ENOUGH_REPLICAS_AFTER_APPEND if partition.is_under_min_in_sync() else NONE


def delete_records_state(partition: Partition, offset: i64) -> i64:
    """Error code of one partition of a delete-records, UNRESOLVED while it has to wait."""
    fault = partition_fault(partition, -1)
    if fault != NONE:
        return fault
    return NONE if partition.low_watermark() >= offset else UNRESOLVED


class Wakeups:
    """Wakes operations; all ends go through the pending operations."""

    def __init__(self, pending: PendingOperations) -> None:
        self.pending: Final = pending

    def wake(self, partition: Partition, now_ms: i64, fetches_first: bool) -> None:
        """The partition's marks may have moved up. Kafka's order: P F D after an append, F P D after a follower's
        fetch.
        """
        if fetches_first:
            self._wake_fetches(partition, now_ms)
        if partition.produces is not None:
            self._wake_produces(partition, partition.produces, now_ms)
        if not fetches_first:
            self._wake_fetches(partition, now_ms)
        if partition.deletes is not None and partition.deletes.live > 0:
            self._wake_deletes(partition, partition.deletes, now_ms)

    def wake_key(self, key: SignalKey, now_ms: i64) -> None:
        """The key was signalled."""
        items = self.pending.items
        while True:
            ref = key.waits.pop_reached(key.count)
            if ref < 0:
                return
            if ref_is_live(ref, items.generation):
                self.pending.popped(key.waits, SIGNAL)
                self.pending.evaluations_by_kind[SIGNAL] += 1
                self.pending.resolve(ref_item(ref), NONE, key.count, now_ms)

    def recheck(self, partition: Partition, now_ms: i64) -> None:
        """Anything about the partition may have changed: looks at all that waits on it."""
        produces = partition.produces
        if produces is not None:
            for ref in produces.drain():
                if ref_is_live(ref, self.pending.items.generation):
                    self._recheck_produce(partition, produces, ref_item(ref), now_ms)
        self.recheck_fetches(partition, now_ms)
        deletes = partition.deletes
        if deletes is not None:
            for ref in deletes.drain():
                if ref_is_live(ref, self.pending.items.generation):
                    self._recheck_delete(partition, deletes, ref_item(ref), now_ms)

    def recheck_fetches(self, partition: Partition, now_ms: i64) -> None:
        """Looks at all fetches that wait on the partition."""
        partition.lowest_fetch_offset = 2**62
        for watch in partition.fetch_watches():
            self._recheck_watch(watch, now_ms)

    def anchor_fetches(self, partition: Partition, now_ms: i64) -> None:
        """The partition has told its first byte position: the starts of waiting fetches are taken anew."""
        for watch in partition.fetch_watches():
            for ref in watch.entries.drain():
                if ref_is_live(ref, self.pending.items.generation):
                    self._anchor_item(ref_item(ref))
                    self._try_fetch(ref_item(ref), watch, now_ms)

    def _anchor_item(self, item: i64) -> None:
        for part in self.pending.fetches[i64(self.pending.items.slot[item])].items:
            if part.item == item:
                part.anchor()

    def _wake_produces(self, partition: Partition, produces: WatchList, now_ms: i64) -> None:
        mark = partition.high_watermark
        items = self.pending.items
        error: i64 = UNRESOLVED
        while True:
            ref = produces.pop_reached(mark)
            if ref < 0:
                return
            if not ref_is_live(ref, items.generation):
                continue
            if error == UNRESOLVED:
                error = NOT_ENOUGH_REPLICAS_AFTER_APPEND if partition.is_under_min_in_sync() else NONE
            self.pending.popped(produces, PRODUCE)
            self.pending.evaluations_by_kind[PRODUCE] += 1
            self.pending.resolve(ref_item(ref), error, mark, now_ms)

    def _wake_deletes(self, partition: Partition, deletes: WatchList, now_ms: i64) -> None:
        mark = partition.low_watermark()
        items = self.pending.items
        while True:
            ref = deletes.pop_reached(mark)
            if ref < 0:
                return
            if ref_is_live(ref, items.generation):
                self.pending.popped(deletes, DELETE_RECORDS)
                self.pending.evaluations_by_kind[DELETE_RECORDS] += 1
                self.pending.resolve(ref_item(ref), NONE, mark, now_ms)

    def _wake_fetches(self, partition: Partition, now_ms: i64) -> None:
        watch = partition.fetches_to_log_end
        if watch is not None and watch.entries.live > 0:
            self._wake_watch(partition, watch, partition.log_end_offset, now_ms)
        watch = partition.fetches_to_high_watermark
        if watch is not None and watch.entries.live > 0:
            self._wake_watch(partition, watch, partition.high_watermark, now_ms)
        watch = partition.fetches_to_last_stable
        if watch is not None and watch.entries.live > 0:
            self._wake_watch(partition, watch, partition.last_stable_offset(), now_ms)

    def _wake_watch(self, partition: Partition, watch: FetchWatch, mark: i64, now_ms: i64) -> None:
        """The fetches that a mark's reach has passed; all of them when the mark has come into a new segment."""
        segment = partition.positions.segment(mark)
        if segment != watch.segment:
            watch.segment = segment
            self._recheck_watch(watch, now_ms)
            return
        reach = partition.positions.reach(mark)
        if reach < 0:
            return
        while True:
            ref = watch.entries.pop_reached(reach)
            if ref < 0:
                return
            if ref_is_live(ref, self.pending.items.generation):
                self._try_fetch(ref_item(ref), watch, now_ms)

    def _recheck_watch(self, watch: FetchWatch, now_ms: i64) -> None:
        for ref in watch.entries.drain():
            if ref_is_live(ref, self.pending.items.generation):
                self._try_fetch(ref_item(ref), watch, now_ms)

    def _try_fetch(self, item: i64, watch: FetchWatch, now_ms: i64) -> None:
        """The entry of `item` was popped from `watch`: ends its fetch, or watches all its partitions for new shares."""
        slot = i64(self.pending.items.slot[item])
        fetch = self.pending.fetches[int(slot)]
        for part in fetch.items:
            if part.item == item:
                part.threshold = -1
                self.pending.popped(watch.entries, FETCH)
        self.pending.evaluations_by_kind[FETCH] += 1
        if examine(fetch):
            self.pending.end(slot, SATISFIED, now_ms)
        else:
            self.watch_fetch(fetch)

    def watch_fetch(self, fetch: Fetch) -> None:
        """Watches each partition of a fetch for its share; entries that stand at the same reach stay."""
        thresholds = share_out(fetch)
        for place, item in enumerate(fetch.items):
            partition = item.partition
            if item.fetch_offset < partition.lowest_fetch_offset:
                partition.lowest_fetch_offset = item.fetch_offset
            threshold = thresholds[place]
            if item.threshold == threshold:
                continue
            self.pending.unwatch_fetch_item(fetch, item)
            item.threshold = threshold
            watch = fetch.watch(partition)
            if watch.entries.live == 0:
                watch.segment = partition.positions.segment(fetch.end_offset(partition))
            self.pending.watch(watch.entries, FETCH, item.item, threshold)

    def _recheck_produce(self, partition: Partition, produces: WatchList, item: i64, now_ms: i64) -> None:
        items = self.pending.items
        self.pending.popped(produces, PRODUCE)
        self.pending.evaluations_by_kind[PRODUCE] += 1
        required = items.required[item]
        error = produce_state(partition, required, i64(items.epoch[item]))
        if error == UNRESOLVED:
            self.pending.watch(produces, PRODUCE, item, required)
        else:
            self.pending.resolve(item, error, partition.high_watermark, now_ms)

    def _recheck_delete(self, partition: Partition, deletes: WatchList, item: i64, now_ms: i64) -> None:
        items = self.pending.items
        self.pending.popped(deletes, DELETE_RECORDS)
        self.pending.evaluations_by_kind[DELETE_RECORDS] += 1
        offset = items.required[item]
        error = delete_records_state(partition, offset)
        if error == UNRESOLVED:
            self.pending.watch(deletes, DELETE_RECORDS, item, offset)
        else:
            self.pending.resolve(item, error, partition.low_watermark() if error == NONE else -1, now_ms)

    def cancel_waiting(self, partition: Partition, outcome: i64, now_ms: i64) -> None:
        """Ends all that wait on the partition."""
        lists: list[WatchList] = []
        if partition.produces is not None:
            lists.append(partition.produces)
        lists.extend(watch.entries for watch in partition.fetch_watches())
        if partition.deletes is not None:
            lists.append(partition.deletes)
        for entries in lists:
            self.cancel_entries(entries, outcome, now_ms)

    def cancel_entries(self, entries: WatchList, outcome: i64, now_ms: i64) -> None:
        """Ends all operations that have a live entry in a list."""
        items = self.pending.items
        for ref in entries.drain():
            if ref_is_live(ref, items.generation):
                self.pending.end(i64(items.slot[ref_item(ref)]), outcome, now_ms)
