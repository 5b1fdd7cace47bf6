"""Fetch: a long poll that waits until enough bytes are readable, or until one partition gives a reason to answer.

The conditions and results are defined in `fetch_rules`; this module registers, watches and ends fetches.
"""

from typing import Final, final

from mypy_extensions import i64

from purgatory.engine.codes import EXPIRED, FAILED, FETCH, NONE, PENDING, READ_COMMITTED, SATISFIED
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.kinds.fetch_rules import Fetch, FetchItem, answer, examine, split_missing_bytes
from purgatory.engine.kinds.kind import Kind
from purgatory.engine.marks.partition import NO_FETCH_OFFSET, FetchWatch, Partition
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner
from purgatory.engine.waiting.watches import WatchList, ref_is_live, ref_item


@final
class FetchKind(Kind):
    """The only kind whose condition is a sum over its partitions.

    Each partition is watched for its share of the missing bytes. When one of them reaches its share, the whole fetch is
    examined again.
    """

    def __init__(self, pending: PendingOperations) -> None:
        super().__init__(FETCH, pending.partitions, pending.items)
        self.pending: Final = pending
        self._fetches: Final[dict[int, Fetch]] = {}
        """By slot."""
        self.item_count: i64 = 0
        """Total items of all pending fetches."""

    # Registration and end.

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> i64:
        fetch = Fetch(
            columns.column("min_bytes").at(row),
            columns.column("replica_id").at(row),
            columns.column("isolation_level").at(row),
            columns.column("follower_reads").at(row) != 0,
        )
        max_bytes = columns.column("partition_max_bytes")
        last_epochs = columns.column("last_fetched_epoch")
        throttled = columns.column("throttled")
        for item in range(first_item, first_item + columns.item_counts.at(row)):
            fetch.items.append(
                FetchItem(
                    self.partitions.get_or_create(columns.partitions[columns.places.at(item)], owner.usage),
                    columns.offsets.at(item),
                    max_bytes.at(item),
                    columns.leader_epochs.at(item),
                    last_epochs.at(item),
                    throttled.at(item) != 0,
                )
            )
        pending = self.pending
        pending.evaluations_by_kind[FETCH] += 1
        may_answer = examine(fetch)
        if may_answer or columns.timeouts_ms.at(row) == 0:
            failed = self._answer_items(fetch, pending.completions_of(owner))
            for part in fetch.items:
                self.partitions.release(part.partition)
            return EXPIRED if not may_answer else FAILED if failed else SATISFIED
        operation_id = columns.operation_ids.at(row)
        slot = pending.admit(owner, FETCH, len(fetch.items), 0, operation_id, columns.timeouts_ms.at(row), now_ms)
        self._enter_items(fetch, slot)
        self._watch(fetch)
        return PENDING

    def _enter_items(self, fetch: Fetch, slot: i64) -> None:
        last: i64 = -1
        for part in fetch.items:
            last = self.pending.add_item(slot, last, part.partition.index, part.fetch_offset, -1, -1, UNRESOLVED)
            # The entry's ref names this row; see `_evaluate`.
            part.item = last
            if part.throttled:
                part.partition.throttled_fetches += 1
        self._fetches[int(slot)] = fetch
        self.item_count += len(fetch.items)

    def build_result(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        # Removed together with the slot, which is released right after this and may belong to another fetch next.
        fetch = self._fetches.pop(int(slot))
        failed = self._answer_items(fetch, completions)
        self.item_count -= len(fetch.items)
        for item in fetch.items:
            self._unwatch(fetch, item)
            self.pending.items.release(item.item)
            if item.throttled:
                item.partition.throttled_fetches -= 1
            self.partitions.release(item.partition)
        return failed

    def _answer_items(self, fetch: Fetch, completions: Completions) -> bool:
        """Record the result of reading each partition now. Returns whether one of them is an error."""
        failed = False
        for item in fetch.items:
            said = answer(fetch, item)
            failed = failed or said.error_code != NONE
            completions.add_item(
                item.partition.name, said.error_code, item.fetch_offset, said.reached_offset, said.log_start_offset,
                -1, -1.0,
            )  # fmt: skip
            completions.fetched.append(said.fetched)
        return failed

    # Watches.

    def _watch(self, fetch: Fetch) -> None:
        """Watch each partition of a fetch for its share. Entries whose threshold is unchanged are kept."""
        thresholds = split_missing_bytes(fetch)
        for place, item in enumerate(fetch.items):
            partition = item.partition
            if item.fetch_offset < partition.lowest_fetch_offset:
                partition.lowest_fetch_offset = item.fetch_offset
            threshold = thresholds[place]
            if item.threshold == threshold:
                continue
            self._unwatch(fetch, item)
            item.threshold = threshold
            watch = fetch.watch(partition)
            # With live entries the segment must stay: it is the one in which they were examined, and a roll since then
            # must still be noticed.
            if watch.entries.live == 0:
                watch.segment = partition.positions.segment(fetch.end_offset(partition))
            self.pending.watch(watch.entries, FETCH, item.item, threshold)

    def _unwatch(self, fetch: Fetch, item: FetchItem) -> None:
        """End the watch of one partition of a fetch, if there is one."""
        # Invariant: while its threshold is not -1, an item has exactly one live entry, in the list of `fetch.watch`.
        if item.threshold >= 0:
            item.threshold = -1
            # The entry stays in its list; a new generation of the item makes it stale.
            self.pending.items.renew(item.item)
            self.pending.unwatch(fetch.watch(item.partition).entries, FETCH)

    def _evaluate(self, item: i64, watch: FetchWatch, now_ms: i64) -> None:
        """The entry of `item` was taken from `watch`: end its fetch, or watch all its partitions with new shares."""
        slot = i64(self.pending.items.slot[item])
        fetch = self._fetches[int(slot)]
        for part in fetch.items:
            if part.item == item:
                # Its entry has been popped: `_unwatch` must not count it as dead a second time.
                part.threshold = -1
                self.pending.popped(watch.entries, FETCH)
        self.pending.evaluations_by_kind[FETCH] += 1
        self.pending.work_total += len(fetch.items)
        if examine(fetch):
            self.pending.end(slot, SATISFIED, now_ms)
        else:
            self._watch(fetch)

    # Changes of partitions.

    def wake(self, partition: Partition, now_ms: i64) -> None:
        # The order of the three lists is the order of completions, which a replay of the history has to repeat.
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
        segment = partition.positions.segment(mark)
        if segment != watch.segment:
            # A fetch that starts in an older segment is answered regardless of its bytes, so thresholds no longer
            # apply.
            watch.segment = segment
            self._evaluate_all(watch, now_ms)
            return
        # The loop below ends, because a fetch that is watched again waits for a threshold above this reach.
        reach = partition.positions.reach(mark)
        if reach < 0:
            return
        while True:
            ref = watch.entries.pop_reached(reach)
            if ref < 0:
                return
            if ref_is_live(ref, self.pending.items.generation):
                self._evaluate(ref_item(ref), watch, now_ms)

    def reevaluate(self, partition: Partition, now_ms: i64) -> None:
        # Rebuilt by `_watch`: every fetch that waits here has an entry in one of the lists, and those that go on
        # waiting pass through it. Otherwise this bound would never rise.
        partition.lowest_fetch_offset = NO_FETCH_OFFSET
        for watch in partition.fetch_watches():
            self._evaluate_all(watch, now_ms)

    def on_mark_lowered(self, partition: Partition, now_ms: i64) -> None:
        # A fetch offset may now be above the end, and shares were computed from a reach that no longer exists.
        self.reevaluate(partition, now_ms)

    def anchor(self, partition: Partition, now_ms: i64) -> None:
        """The first byte position of the partition is known; until now a record counted as one byte. The starts of
        waiting fetches are recomputed in bytes.
        """
        for watch in partition.fetch_watches():
            for ref in watch.entries.drain():
                if ref_is_live(ref, self.pending.items.generation):
                    item = ref_item(ref)
                    for part in self._fetches[int(i64(self.pending.items.slot[item]))].items:
                        if part.item == item:
                            part.anchor()
                    self._evaluate(item, watch, now_ms)

    def _evaluate_all(self, watch: FetchWatch, now_ms: i64) -> None:
        for ref in watch.entries.drain():
            if ref_is_live(ref, self.pending.items.generation):
                self._evaluate(ref_item(ref), watch, now_ms)

    def watch_lists(self, partition: Partition) -> list[WatchList]:
        return [watch.entries for watch in partition.fetch_watches()]

    # Views and snapshots.

    def reached(self, slot: i64, item: i64) -> i64:
        return self._fetches[int(slot)].end_offset(self.partitions.at(i64(self.items.target[item])))

    def min_bytes(self, slot: i64) -> i64:
        return self._fetches[int(slot)].min_bytes

    def save_extra(self, saved: SavedOperations, slot: i64) -> None:
        fetch = self._fetches[int(slot)]
        saved.add_fetch(fetch.min_bytes, fetch.replica_id, fetch.read_committed, fetch.leader_only)
        for item in fetch.items:
            saved.add_fetch_item(
                item.max_bytes, item.leader_epoch, item.last_fetched_epoch, item.throttled, item.start_segment,
                item.start_reach,
            )  # fmt: skip

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        row = place.fetch
        fetch = Fetch(
            saved.min_bytes[row],
            saved.replica_ids[row],
            READ_COMMITTED if saved.read_committed[row] != 0 else 0,
            saved.leader_only[row] == 0,
        )
        for within in range(saved.item_counts[place.row]):
            item = place.item + within
            extra = place.fetch_item + within
            name = saved.names[saved.places[item]]
            part = FetchItem(
                self.partitions.mention_again(name, saved.removed[item], saved.log_starts[item]),
                saved.required[item],
                saved.max_bytes[extra],
                saved.leader_epochs[extra],
                saved.last_fetched_epochs[extra],
                saved.throttled[extra] != 0,
            )
            # The saved start, not the current log: the fetch continues from where it was anchored at registration.
            part.start_segment = saved.start_segments[extra]
            part.start_reach = saved.start_reaches[extra]
            fetch.items.append(part)
        self._enter_items(fetch, slot)
        if examine(fetch):
            return True
        self._watch(fetch)
        return False
