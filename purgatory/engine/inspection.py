"""Inspects the engine without changing it: views of operations and partitions, and counters."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine import codes
from purgatory.engine.batches import AsGiven, PartitionName
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.ranking import PendingRanking, WheelRing
from purgatory.engine.views import ItemView, KindCounts, PartitionView, PendingView, RemainingTimes, ReplicaView
from purgatory.engine.waiting.pending import OUTCOMES_MAX, PendingOperations
from purgatory.engine.waiting.tables import FREE, UNRESOLVED, Owner
from purgatory.engine.waiting.wheel import level_tick_ms

SLOTS_PER_RESULT: Final = 50
"""A page visits at most this many slots for each result that it may return, plus a few thousand."""

ITEMS_PER_PAGE: Final = 1_000
"""A page ends after the operation that brings the visited items to this number: a listing must not delay the waits."""


class EngineInspection:
    """Reads the state of the engine."""

    def __init__(self, partitions: Partitions, keys: SignalKeys, pending: PendingOperations) -> None:
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.pending: Final = pending
        self._items_walked: i64 = 0

    def find(self, owner: Owner, operation_id: int) -> i64:
        """Slot of a pending operation; -1 if it is not pending (or the id is invalid)."""
        # Compared as Python integers: an id that does not fit into 64 bits would raise on its way to `Owner.find`.
        if not 1 <= operation_id <= int(owner.highest_operation_id):
            return -1
        return owner.find(operation_id, self.pending.operations)

    def describe(self, owner: Owner, operation_id: int) -> PendingView | None:
        """A view of a pending operation; None if it is not pending."""
        slot = self.find(owner, operation_id)
        return None if slot < 0 else self._view(slot)

    def list_pending(
        self,
        start: int,
        limit: int,
        owner_id: int = -1,
        kind: int = 0,
        partition: PartitionName | None = None,
        key: str = "",
    ) -> tuple[list[PendingView], int]:
        """Up to `limit` pending operations in slot order from slot `start` on, and where to continue (-1: at the end).

        Filters are combined. A call visits a bounded number of slots, so a page may be short or empty.
        """
        operations = self.pending.operations
        found: list[PendingView] = []
        slot: i64 = start
        last: i64 = start + limit * SLOTS_PER_RESULT + 4_000
        self._items_walked = 0
        while slot < operations.size and slot < last and len(found) < limit and self._items_walked < ITEMS_PER_PAGE:
            if (
                operations.kind[slot] != FREE
                and (owner_id < 0 or operations.owner_id[slot] == owner_id)
                and (kind == 0 or operations.kind[slot] == kind)
                and self._names(slot, partition, key)
            ):
                found.append(self._view(slot))
            slot += 1
        return found, slot if slot < operations.size else -1

    def count_remaining(self, start: int, limit: int, now_ms: int, times: RemainingTimes) -> int:
        """Add the time left of the pending operations in `limit` slots from `start` on to `times`.

        Returns where to continue (-1: at the end).
        """
        operations = self.pending.operations
        now: i64 = now_ms
        slot: i64 = start
        stop: i64 = min(start + limit, int(operations.size))
        while slot < stop:
            if operations.kind[slot] != FREE:
                left = self.pending.deadline_ms(slot) - now
                # Due, but the reaper has not reached it yet.
                if left < 0:
                    left = 0
                place = 0
                while place < len(times.bounds_ms) and times.bounds_ms[place] < left:
                    place += 1
                times.operations[place] += 1
                if times.soonest_ms < 0 or left < times.soonest_ms:
                    times.soonest_ms = left
                if left > times.latest_ms:
                    times.latest_ms = left
            slot += 1
        return slot if slot < operations.size else -1

    def hottest(self, start: int, limit: int, above: int) -> tuple[list[tuple[int, PartitionName]], int]:
        """The names with more than `above` watch entries of pending operations, each with its number of entries.

        Visits `limit` indexes from `start` on, first those of partitions, then those of keys. A key is (key, -1). The
        second value is where to continue (-1: at the end).
        """
        partitions, keys = self.partitions.by_index, self.keys.by_index
        found: list[tuple[int, PartitionName]] = []
        place: i64 = start
        last_partition: i64 = len(partitions)
        last: i64 = last_partition + len(keys)
        stop: i64 = min(start + limit, int(last))
        least: i64 = above
        while place < stop:
            if place < last_partition:
                partition = partitions[place]
                if partition is not None:
                    watched = partition.watched()
                    if watched > least:
                        found.append((watched, partition.name))
            else:
                signal_key = keys[place - last_partition]
                if signal_key is not None:
                    watched = signal_key.watched()
                    if watched > least:
                        found.append((watched, signal_key.name))
            place += 1
        return found, place if place < last else -1

    def rank(self, start: int, limit: int, ranking: PendingRanking) -> int:
        """Add the pending operations in up to `limit` slots from `start` on to `ranking`; stops after `limit` items.

        Returns where to continue (-1: at the end).
        """
        operations, items = self.pending.operations, self.pending.items
        owner_ids = ranking.owner_ids
        slot: i64 = start
        stop: i64 = min(start + limit, int(operations.size))
        walked: i64 = 0
        self._items_walked = 0
        while slot < stop and walked + self._items_walked < limit:
            kind = i64(operations.kind[slot])
            if (
                kind != FREE
                and (owner_ids is None or int(operations.owner_id[slot]) in owner_ids)
                and ranking.kind in (0, kind)
                and self._names(slot, ranking.partition, ranking.key)
                and (not ranking.search or self._matches(slot, ranking))
            ):
                deadline_ms = self.pending.deadline_ms(slot)
                ranking.add(slot, operations.operation_id[slot], operations.registered_ms[slot], deadline_ms)
                described = self.pending.kinds[kind]
                item = i64(operations.first_item[slot])
                while item >= 0:
                    if i64(items.error_code[item]) == UNRESOLVED:
                        ranking.add_wait(described.name_of(item))
                    walked += 1
                    item = i64(items.next[item])
            slot += 1
        return slot if slot < operations.size else -1

    def view_of(self, slot: i64, operation_id: i64) -> PendingView | None:
        """A view of the operation with this id in a slot; None if the slot is free or holds another operation."""
        operations = self.pending.operations
        if slot >= operations.size or operations.kind[slot] == FREE or operations.operation_id[slot] != operation_id:
            return None
        return self._view(slot)

    def wheel_rings(self, counted_max: i64) -> list[WheelRing]:
        """The levels of the timing wheel that are in use. Up to `counted_max` operations per bucket are counted."""
        wheel = self.pending.wheel
        rings: list[WheelRing] = []
        level: i64 = 1
        while level <= wheel.levels:
            tick_ms = level_tick_ms(level, wheel.tick_ms, wheel.wheel_size)
            counts = [int(wheel.bucket_count(level, index, counted_max)) for index in range(int(wheel.wheel_size))]
            rings.append(WheelRing(level, tick_ms, wheel.level_clock(level), counts, counted_max))
            level += 1
        return rings

    def wheel_bucket_count(self, level: int, index: int, counted_max: int) -> int:
        """The number of operations in one bucket, counted up to `counted_max`."""
        return self.pending.wheel.bucket_count(level, index, counted_max)

    @property
    def wheel_moves(self) -> int:
        """How many operations have been taken out of buckets in total, because they fired or cascaded."""
        return self.pending.wheel.moves_total

    def _names(self, slot: i64, partition: PartitionName | None, key: str) -> bool:
        """Whether an operation names the partition or key, if one was requested."""
        if partition is None and not key:
            return True
        kind = self.pending.kinds[i64(self.pending.operations.kind[slot])]
        if key and (partition is not None or not kind.names_keys):
            return False
        wanted: AsGiven = (key, -1) if key else partition
        items = self.pending.items
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            self._items_walked += 1
            if kind.name_of(item) == wanted:
                return True
            item = i64(items.next[item])
        return False

    def _matches(self, slot: i64, ranking: PendingRanking) -> bool:
        """Whether a name of the operation ("orders-3", or a key) contains the search, or its owner matches."""
        if ranking.search_owner_ids and int(self.pending.operations.owner_id[slot]) in ranking.search_owner_ids:
            return True
        text = ranking.search
        kind = self.pending.kinds[i64(self.pending.operations.kind[slot])]
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            self._items_walked += 1
            name: AsGiven = kind.name_of(item)
            spelled = f"{name[0]}-{name[1]}" if name[1] >= 0 else str(name[0])
            if text in spelled.lower():
                return True
            item = i64(self.pending.items.next[item])
        return False

    def _view(self, slot: i64) -> PendingView:
        operations = self.pending.operations
        kind = i64(operations.kind[slot])
        items: list[ItemView] = []
        item = i64(operations.first_item[slot])
        while item >= 0:
            self._items_walked += 1
            items.append(self._item_view(slot, kind, item))
            item = i64(self.pending.items.next[item])
        required_terms, unless_count = self.pending.kinds[kind].arms(slot)
        return PendingView(
            i64(operations.owner_id[slot]),
            operations.operation_id[slot],
            kind,
            operations.registered_ms[slot],
            self.pending.deadline_ms(slot),
            self.pending.kinds[kind].min_bytes(slot),
            items,
            required_terms,
            unless_count,
        )

    def _item_view(self, slot: i64, kind: i64, item: i64) -> ItemView:
        items = self.pending.items
        error = i64(items.error_code[item])
        described = self.pending.kinds[kind]
        reached = items.mark[item]
        before: i64 = -1
        # Kafka's provisional error, which its result would have if the operation ended now.
        if error == UNRESOLVED:
            error = codes.REQUEST_TIMED_OUT
            # As in results, which have no pace for fetches.
            before = reached if kind != codes.FETCH else -1
            reached = described.reached(slot, item)
        partition = described.partition_of(item)
        log_start = -1 if partition is None else partition.log_start_offset
        paced_from_ms = self.pending.operations.registered_ms[slot]
        if (
            error == codes.REQUEST_TIMED_OUT
            and before < 0
            and partition is not None
            and kind in (codes.PRODUCE, codes.COMPOSITE)
        ):
            before, paced_from_ms = partition.first_mark, partition.first_ms
        return ItemView(described.name_of(item), error, items.required[item], reached, log_start, before, paced_from_ms)

    def partition_view(self, name: PartitionName) -> PartitionView | None:
        """A view of a known partition; None if it is not known."""
        partition = self.partitions.get(name)
        if partition is None:
            return None
        return PartitionView(
            partition.name,
            leader_epoch=partition.leader_epoch,
            is_leader=partition.is_leader,
            leader_id=partition.leader_id,
            storage_failed=partition.storage_failed,
            log_start_offset=partition.log_start_offset,
            last_stable_offset=partition.last_stable_offset(),
            high_watermark=partition.high_watermark,
            log_end_offset=partition.log_end_offset,
            low_watermark=partition.low_watermark(),
            min_in_sync_replicas=partition.min_in_sync_replicas,
            in_sync_replica_ids=list(partition.in_sync),
            replicas=[
                ReplicaView(one.replica_id, one.log_end_offset, one.log_start_offset, one.in_sync, one.dead, one.fenced)
                for one in partition.replicas.values()
            ],
            watched=partition.watched(),
            unchanged_events=partition.unchanged_events,
            stale_events=partition.stale_events,
        )

    @property
    def partition_changes(self) -> int:
        """A counter that changes whenever a partition becomes known or is forgotten."""
        return self.partitions.changes

    def partition_names(self) -> list[PartitionName]:
        """All known partitions, in order of creation."""
        return list(self.partitions.by_name)

    def unreported(self, names: list[PartitionName]) -> list[PartitionName]:
        """The known partitions among `names` that no event has mentioned yet."""
        found: list[PartitionName] = []
        for name in names:
            partition = self.partitions.get(name)
            if partition is not None and not partition.announced:
                found.append(name)
        return found

    def has_waits(self, name: PartitionName) -> bool:
        """Whether any operation waits on a partition, or on a key, (key, -1)."""
        if name[1] < 0:
            signal_key = self.keys.get(name[0])
            return signal_key is not None and signal_key.watched() > 0
        partition = self.partitions.get(name)
        return partition is not None and partition.watched() > 0

    @property
    def signal_key_count(self) -> int:
        """Number of known signal keys, including idle ones."""
        return len(self.keys.by_key)

    def counts(self, kind: int) -> KindCounts:
        """Counters of one kind. `registered` is computed as the sum of ended and pending operations."""
        pending = self.pending
        first = kind * OUTCOMES_MAX
        ended = list(pending.ended[first : first + OUTCOMES_MAX])
        return KindCounts(
            registered=sum(ended) + pending.pending_by_kind[kind],
            pending=pending.pending_by_kind[kind],
            watched=pending.watched_by_kind[kind],
            satisfied=ended[codes.SATISFIED],
            failed=ended[codes.FAILED],
            expired=ended[codes.EXPIRED],
            cancelled=ended[codes.CANCELLED],
            shutting_down=ended[codes.SHUTTING_DOWN],
            evaluations=pending.evaluations_by_kind[kind],
        )
