"""The engine: one owner of all partitions, keys, pending operations and the timer that expires them.

Calls in, results out; time is an argument. Every call is bounded by the batch it is given or by its `limit`. After each
call that may end operations, `take_completions` says what has ended. The same calls always give the same answers.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.codes import CANCELLED, EXPIRED, FETCH, SHUTTING_DOWN
from purgatory.engine.completions import Completions
from purgatory.engine.holdings import Holdings
from purgatory.engine.inspection import EngineInspection
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.events import Events
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.memory_estimate import (
    FETCH_BYTES,
    FETCH_ITEM_BYTES,
    ITEM_BYTES,
    OPERATION_BYTES,
    OWNER_BYTES,
    STALE_TIMEOUT_BYTES,
)
from purgatory.engine.ranking import PendingRanking, RankedOperation, WheelRing
from purgatory.engine.snapshot.saved_operations import SavedOperations
from purgatory.engine.snapshot.snapshots import Snapshots
from purgatory.engine.tape import Played, Tape, TapePlayer
from purgatory.engine.views import KindCounts, PartitionView, PendingView, RemainingTimes
from purgatory.engine.waiting.admission import Registration
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.stale_waits import StaleWaits
from purgatory.engine.waiting.tables import FREE, Owner
from purgatory.engine.waiting.wakeups import UNLIMITED, Wakeups
from purgatory.engine.waiting.wheel import MOVES_MAX

__all__ = ["Engine"]

EXPIRED_AT_A_TIME: Final = 16
"""Operations taken out of the wheel together. They all end then, whatever work that is: each may have 2,000 items."""


class Engine:
    """Purgatory of all kinds of delayed operation. Times are monotonic milliseconds and must not go back.

    `work_max` bounds a call: it stops at the operation with which it has done so many units of work. A unit is an
    operation ended, each of its items, an item resolved, an evaluation, or a replica looked at for an event. So a plain
    wait of one partition that an event ends is three.
    """

    def __init__(
        self,
        limits: EngineLimits,
        now_ms: int,
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        strict_partitions: bool = False,
        replica_lag_time_max_ms: int = 30_000,
    ) -> None:
        self.limits: Final = limits
        self._now_ms: i64 = now_ms
        self._partitions: Final = Partitions(strict_partitions)
        self._keys: Final = SignalKeys(limits.signal_keys_max)
        self._pending: Final = PendingOperations(self._partitions, self._keys, tick_ms, wheel_size, now_ms)
        self._wakeups: Final = Wakeups(self._pending)
        self._registration: Final = Registration(self._pending, limits)
        self._events: Final = Events(
            self._partitions, self._keys, self._wakeups, limits, strict_partitions, replica_lag_time_max_ms
        )
        self._inspection: Final = EngineInspection(self._partitions, self._keys, self._pending)
        self.snapshots: Final = Snapshots(self._partitions, self._keys, self._pending)
        self.stale_waits: Final = StaleWaits(self._pending)
        self._free_owners: Final[list[int]] = []
        self._next_to_shut_down: i64 = 0

    # Owners.

    def add_owner(self, holdings: Holdings | None = None) -> Owner:
        """A new owner, to register operations for: ids are unique and rise within one owner.

        `holdings` are those of its account; without, it shares those of all that belongs to none, which have no limits.
        """
        owners = self._pending.owners
        if holdings is None:
            holdings = self._partitions.unowned
        if self._free_owners:
            owner = Owner(self._free_owners.pop(), holdings)
            owners[owner.owner_id] = owner
        else:
            owner = Owner(len(owners), holdings)
            owners.append(owner)
        return owner

    def remove_owner(self, owner: Owner, now_ms: int) -> None:
        """Cancels all its pending operations, without completions. The owner must not be used afterwards."""
        owner.closed = True
        owner.completions = None
        owner.ended_last = 0
        owner.items_ended_last = 0
        self.cancel_all(owner, now_ms)
        self._pending.owners[owner.owner_id] = None
        self._free_owners.append(owner.owner_id)

    # Changes.

    def register(
        self, owner: Owner, kind: int, batch: OperationBatch, now_ms: int, known_up_to: int = -1
    ) -> RegisterReceipt:
        """Registers a batch of operations of one kind, item by item.

        An operation is accepted (and may have ended already), known already (its id is not above `known_up_to`; -1:
        the highest of before), or refused with a reason. Raises InvalidBatch when the columns as a whole cannot be
        read; nothing is applied then.
        """
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        self._pass_time(now_ms)
        return self._registration.register(owner, kind, batch, now_ms, known_up_to)

    def apply(
        self,
        batch: EventBatch,
        now_ms: int,
        start: int = 0,
        limit: int = 100_000,
        *,
        maker: Holdings | None = None,
        is_full: bool = False,
    ) -> EventsReceipt:
        """Applies events from `start` on until events and units of work together reach `limit`; see `next_index`.

        The effects of one event are never split. Partitions that become known are counted in `maker`. With `is_full`,
        events that would make a partition, key, replica or epoch are refused. Raises InvalidBatch as `register` does.
        """
        self._pass_time(now_ms)
        if maker is None:
            maker = self._partitions.unowned
        return self._events.apply(batch, now_ms, start, limit, maker, is_full)

    def cancel(self, owner: Owner, operation_ids: list[int], now_ms: int, work_max: int = UNLIMITED) -> list[bool]:
        """Cancels operations by id. For each: True when it was pending; False when it had ended or was never
        registered. With `work_max` there may be fewer answers than ids: go on with those that follow.
        """
        self._pass_time(now_ms)
        cancelled: list[bool] = []
        stop: i64 = self._pending.work_total + work_max
        for operation_id in operation_ids:
            if self._pending.work_total >= stop:
                break
            slot = self._inspection.find(owner, operation_id)
            if slot >= 0:
                self._pending.end(slot, CANCELLED, now_ms)
            cancelled.append(slot >= 0)
        return cancelled

    def fail_stale(
        self,
        owner: Owner,
        operation_ids: list[int],
        stale: set[PartitionName],
        now_ms: int,
        work_max: int = UNLIMITED,
    ) -> list[bool]:
        """Ends operations whose stale timeout is over as FAILED; those of their marks that are stale say MARK_STALE.
        Answers as `cancel` does.
        """
        self._pass_time(now_ms)
        failed: list[bool] = []
        stop: i64 = self._pending.work_total + work_max
        for operation_id in operation_ids:
            if self._pending.work_total >= stop:
                break
            slot = self._inspection.find(owner, operation_id)
            if slot >= 0:
                self.stale_waits.fail(slot, stale, now_ms)
            failed.append(slot >= 0)
        return failed

    def cancel_all(self, owner: Owner, now_ms: int, work_max: int = UNLIMITED, up_to_id: int = OPERATION_ID_MAX) -> int:
        """Cancels what an owner has pending, the lowest ids first; returns how many. See `has_pending`."""
        self._pass_time(now_ms)
        return self._end_all(owner, CANCELLED, now_ms, UNLIMITED, work_max, up_to_id)

    def has_pending(self, owner: Owner, up_to_id: int) -> bool:
        """Whether an operation of an owner is pending, of those with ids up to this one."""
        return owner.first_pending(up_to_id, self._pending.operations) >= 0

    def cancel_partition(self, name: PartitionName, now_ms: int, work_max: int = UNLIMITED) -> int:
        """Cancels, and completes, what waits on a partition; returns how many. See `has_waits`."""
        self._pass_time(now_ms)
        before = self._pending.ended_total
        partition = self._partitions.get(name)
        if partition is not None:
            self._wakeups.cancel_waiting(partition, CANCELLED, now_ms, work_max)
        return self._pending.ended_total - before

    def cancel_key(self, key: str, now_ms: int, work_max: int = UNLIMITED) -> int:
        """The same for a signal key."""
        self._pass_time(now_ms)
        before = self._pending.ended_total
        signal_key = self._keys.get(key)
        if signal_key is not None:
            self._wakeups.cancel_entries(signal_key.waits, CANCELLED, now_ms, work_max)
        return self._pending.ended_total - before

    def has_waits(self, name: PartitionName) -> bool:
        """Whether anything waits on a partition, or on a key, (key, -1)."""
        if name[1] < 0:
            signal_key = self._keys.get(name[0])
            return signal_key is not None and signal_key.waits.live > 0
        partition = self._partitions.get(name)
        return partition is not None and partition.watched() > 0

    def shut_down(self, now_ms: int, limit: int, owner: Owner | None = None, work_max: int = UNLIMITED) -> int:
        """Ends up to `limit` pending operations, of one owner or of all, as SHUTTING_DOWN. Returns how many; 0: none is
        left.
        """
        self._pass_time(now_ms)
        if owner is not None:
            return self._end_all(owner, SHUTTING_DOWN, now_ms, limit, work_max, OPERATION_ID_MAX)
        operations = self._pending.operations
        ended = 0
        stop: i64 = self._pending.work_total + work_max
        while ended < limit and self._pending.count > 0 and self._pending.work_total < stop:
            slot = self._next_to_shut_down
            self._next_to_shut_down = slot + 1 if slot + 1 < operations.size else 0
            if slot < operations.size and operations.kind[slot] != FREE:
                self._pending.end(slot, SHUTTING_DOWN, now_ms)
                ended += 1
        return ended

    def _end_all(self, owner: Owner, outcome: i64, now_ms: i64, limit: int, work_max: int, up_to_id: int) -> int:
        ended = 0
        stop: i64 = self._pending.work_total + work_max
        while ended < limit and self._pending.work_total < stop:
            slot = owner.first_pending(up_to_id, self._pending.operations)
            if slot < 0:
                break
            self._pending.end(slot, outcome, now_ms)
            ended += 1
        return ended

    def play(self, owner: Owner, tape: Tape, prompt: bool) -> Played:
        """Plays a tape (see `tape`). With `prompt`, what is due expires at its own millisecond, before the next step.

        Raises InvalidBatch as `register` and `apply` do; nothing is applied then.
        """
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        player = TapePlayer(self._registration, self._events, self._inspection, owner, self._now_ms, prompt)
        played = player.play(tape)
        self._pass_time(player.now_ms)
        return played

    def restore(self, owner: Owner, saved: SavedOperations, gone: bytes, now_ms: int) -> int:
        """Lets operations that were saved wait on; returns how many (see `Snapshots.restore`)."""
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        self._pass_time(now_ms)
        return self.snapshots.restore(owner, saved, gone, now_ms)

    # Time.

    def advance_clock(self, now_ms: int, limit: int, work_max: int = UNLIMITED) -> int:
        """Expires what is due, at most `limit` operations, in order of deadline; returns how many.

        When `next_expiration_ms() <= now_ms` afterwards, there is more to do: call again.
        """
        self._pass_time(now_ms)
        wheel = self._pending.wheel
        stop: i64 = self._pending.work_total + work_max
        moves: i64 = wheel.moves_total
        expired = 0
        while expired < limit and self._pending.work_total < stop and wheel.moves_total - moves < MOVES_MAX:
            fired: list[int] = []
            asked = min(limit - expired, EXPIRED_AT_A_TIME)
            wheel.advance(now_ms, asked, fired)
            for slot in fired:
                self._pending.end(slot, EXPIRED, now_ms)
            expired += len(fired)
            if len(fired) < asked:
                break
        return expired

    def next_expiration_ms(self) -> int:
        """When `advance_clock` has to be called next; -1: nothing is timed. It may lie in the past."""
        return self._pending.wheel.next_expiration_ms()

    @property
    def has_stale_waits(self) -> bool:
        """Whether an operation is pending that has a stale timeout: see `stale_waits`."""
        return len(self._pending.stale_timeouts_ms) > 0

    @property
    def has_unreported(self) -> bool:
        """Whether operations wait for a partition that no event has mentioned yet: see `unreported`."""
        return self._partitions.unreported > 0

    def unreported(self, names: list[PartitionName]) -> list[PartitionName]:
        """The known partitions among these that no event has mentioned yet."""
        found: list[PartitionName] = []
        for name in names:
            partition = self._partitions.get(name)
            if partition is not None and not partition.announced:
                found.append(name)
        return found

    def _pass_time(self, now_ms: i64) -> None:
        assert now_ms >= self._now_ms, f"clock went back: now_ms={now_ms} engine={self._now_ms}"
        self._now_ms = now_ms

    # Results and views.

    def take_completions(self) -> list[Completions]:
        """What has ended since the last call: one `Completions` for each owner that has any."""
        return self._pending.take_completions()

    def describe(self, owner: Owner, operation_id: int, now_ms: int) -> PendingView | None:
        """A pending operation; None when it is not pending."""
        self._pass_time(now_ms)
        return self._inspection.describe(owner, operation_id)

    def list_pending(
        self,
        start: int,
        limit: int,
        now_ms: int,
        owner_id: int = -1,
        kind: int = 0,
        partition: PartitionName | None = None,
        key: str = "",
    ) -> tuple[list[PendingView], int]:
        """Pending operations in order of slot from `start` on, at most `limit`, and where to continue (-1: at the end).

        The filters go together. One call looks at a bounded number of slots, so a page may be short or empty.
        """
        self._pass_time(now_ms)
        return self._inspection.list_pending(start, limit, owner_id, kind, partition, key)

    def count_remaining(self, start: int, limit: int, now_ms: int, times: RemainingTimes) -> int:
        """Adds to `times` the time left of the pending operations in `limit` slots from `start` on; returns where to go
        on (-1: that was all).
        """
        self._pass_time(now_ms)
        return self._inspection.count_remaining(start, limit, now_ms, times)

    def hottest(self, start: int, limit: int, above: int) -> tuple[list[tuple[int, PartitionName]], int]:
        """Of `limit` places from `start` on, where partitions and then keys are: those with more than `above` watch
        entries of pending operations, each with how many; and where to go on (-1: that was all). A key is (key, -1).
        """
        return self._inspection.hottest(start, limit, above)

    def rank_pending(self, start: int, limit: int, now_ms: int, ranking: PendingRanking) -> int:
        """Adds to `ranking` the pending operations in at most `limit` slots from `start` on, or fewer where those have
        more than `limit` items; returns where to go on (-1: that was all).
        """
        self._pass_time(now_ms)
        return self._inspection.rank(start, limit, ranking)

    def ranked_view(self, ranked: RankedOperation, now_ms: int) -> PendingView | None:
        """An operation of a ranking; None: it has ended."""
        return self.slot_view(ranked.slot, ranked.operation_id, now_ms)

    def slot_view(self, slot: int, operation_id: int, now_ms: int) -> PendingView | None:
        """The pending operation of that id in a slot, from 0; None: the slot has none, or another one."""
        self._pass_time(now_ms)
        return self._inspection.view_of(slot, operation_id)

    def wheel_rings(self, counted_max: int) -> list[WheelRing]:
        """The timing wheel as it stands, level by level; of each bucket up to `counted_max` operations are counted."""
        return self._inspection.wheel_rings(counted_max)

    @property
    def wheel_moves(self) -> int:
        """How many operations have been taken out of buckets so far, because they fired or cascaded."""
        return self._pending.wheel.moves_total

    def partition_view(self, name: PartitionName, now_ms: int) -> PartitionView | None:
        """A known partition; None otherwise."""
        self._pass_time(now_ms)
        return self._inspection.partition_view(name)

    @property
    def partition_changes(self) -> int:
        """Changes whenever a partition becomes known, or is no longer."""
        return self._partitions.changes

    def partition_names(self) -> list[PartitionName]:
        """All known partitions, in order of creation."""
        return list(self._partitions.by_name)

    def counts(self, kind: int) -> KindCounts:
        """Counters of one kind."""
        return self._inspection.counts(kind)

    @property
    def pending(self) -> int:
        """Pending operations of all kinds."""
        return self._pending.count

    @property
    def pending_items(self) -> int:
        """Partitions and keys of all pending operations."""
        return self._pending.item_count

    def memory_bytes(self) -> int:
        """What the engine takes in memory, estimated from the sizes of its tables."""
        pending = self._pending
        held = pending.operations.size * OPERATION_BYTES + pending.items.size * ITEM_BYTES
        held += pending.pending_by_kind[FETCH] * FETCH_BYTES + self._wakeups.fetches.item_count * FETCH_ITEM_BYTES
        held += len(pending.stale_timeouts_ms) * STALE_TIMEOUT_BYTES
        return held + self._partitions.bytes + self._keys.bytes + len(pending.owners) * OWNER_BYTES

    def memory_bytes_more(self, operations: int, items: int) -> int:
        """What it would take besides if so many more operations, of so many items, were to wait."""
        pending = self._pending
        free_rows = pending.operations.size - pending.count
        free_items = pending.items.size - pending.item_count
        return max(operations - free_rows, 0) * OPERATION_BYTES + max(items - free_items, 0) * ITEM_BYTES

    @property
    def partition_count(self) -> int:
        """Known partitions."""
        return len(self._partitions.by_name)

    @property
    def held_key_count(self) -> int:
        """Signal keys that somebody waits for."""
        return self.limits.signal_keys_max - self._keys.room()

    @property
    def signal_key_count(self) -> int:
        """Known signal keys, idle ones included."""
        return len(self._keys.by_key)

    def check(self) -> None:
        """Assert the invariants of the pending operations. Visits everything: for simulators and tests."""
        self._pending.check()
