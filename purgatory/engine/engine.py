"""The engine: the single owner of all partitions, keys and pending operations, and of the timer that expires them.

Time is an argument of every call. Every call is bounded by the size of its batch or by its `limit`. After a call that
may end operations, `take_completions` returns the operations that ended. The same calls always give the same results.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.codes import CANCELLED, FETCH, SHUTTING_DOWN
from purgatory.engine.completions import Completions
from purgatory.engine.inspection import EngineInspection
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.events import Events
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.memory_estimate import (
    FETCH_BYTES,
    FETCH_ITEM_BYTES,
    HEARTBEAT_BYTES,
    IDLE_ACCOUNT_BYTES,
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
from purgatory.engine.waiting.admission import Admission
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.stale_waits import StaleWaits
from purgatory.engine.waiting.tables import FREE, Owner
from purgatory.engine.waiting.wakeups import UNLIMITED, Wakeups
from purgatory.engine.waiting.wheel import MOVES_MAX

__all__ = ["Engine"]

EXPIRED_AT_A_TIME: Final = 16
"""Operations taken out of the wheel at once. All of them then end, whatever that costs: each may have 2,000 items."""


class Engine:
    """Purgatory of all kinds of delayed operation. Times are monotonic milliseconds and must not decrease.

    `work_max` bounds a call: it stops after the operation that brings its work to this many units. One unit is an ended
    operation, each of its items, a resolved item, an evaluation, or a replica examined for an event. So ending a plain
    wait on one partition by an event is three units.
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
        self._keys: Final = SignalKeys(limits.signal_keys_max, limits.signal_values_bytes_max, self._partitions.unowned)
        self._pending: Final = PendingOperations(self._partitions, self._keys, tick_ms, wheel_size, now_ms)
        self._wakeups: Final = Wakeups(self._pending)
        self._admission: Final = Admission(self._pending, limits)
        self._events: Final = Events(
            self._partitions, self._keys, self._wakeups, limits, strict_partitions, replica_lag_time_max_ms
        )
        self._inspection: Final = EngineInspection(self._partitions, self._keys, self._pending)
        self.snapshots: Final = Snapshots(self._partitions, self._keys, self._pending)
        self.stale_waits: Final = StaleWaits(self._pending)
        self._free_owners: Final[list[int]] = []
        self._next_to_shut_down: i64 = 0

    # Owners.

    def add_owner(self, usage: AccountUsage | None = None) -> Owner:
        """Create an owner to register operations for. Operation ids are unique and ascending within one owner.

        `usage` are those of its account. By default, the owner uses the shared usage without an account, which
        have no limits.
        """
        owners = self._pending.owners
        if usage is None:
            usage = self._partitions.unowned
        # Reused, so that `owners` is never longer than the most owners at one time. So nothing may be looked up by the
        # id of an owner that was removed: it may be that of a later one.
        if self._free_owners:
            owner = Owner(self._free_owners.pop(), usage)
            owners[owner.owner_id] = owner
        else:
            owner = Owner(len(owners), usage)
            owners.append(owner)
        return owner

    def remove_owner(self, owner: Owner, now_ms: int) -> None:
        """Cancel all pending operations of an owner, without completions. The owner must not be used afterwards.

        What ended before must have been taken: a later owner with the same id would get these results.
        """
        untaken = owner.completions
        assert untaken is None, f"owner {owner.owner_id} has results that were not taken: {len(untaken)}"
        # Closed before its operations end, so that `completions_of` discards their results.
        owner.closed = True
        owner.ended_last = 0
        owner.items_ended_last = 0
        # Not bounded: the host ends the operations of a session in slices before it removes the owner.
        self.cancel_all(owner, now_ms)
        self._pending.owners[owner.owner_id] = None
        self._free_owners.append(owner.owner_id)

    # Changes.

    def register(
        self, owner: Owner, kind: int, batch: OperationBatch, now_ms: int, known_up_to: int = -1
    ) -> RegisterReceipt:
        """Register a batch of operations of one kind, item by item.

        An operation is accepted (it may already have ended), already known (its id is not above `known_up_to`; -1: the
        highest id before this batch), or refused with a reason.

        Raises:
            InvalidBatch: The columns do not fit together. Nothing has been changed.
        """
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        self._pass_time(now_ms)
        return self._admission.admit(owner, kind, batch, now_ms, known_up_to)

    def apply(
        self,
        batch: EventBatch,
        now_ms: int,
        start: int = 0,
        limit: int = 100_000,
        *,
        account: AccountUsage | None = None,
        is_full: bool = False,
    ) -> EventsReceipt:
        """Apply events from `start` until events and units of work reach `limit` (see `EventsReceipt.next_index`).

        The effects of one event are never split. Partitions and keys that become known are counted in `account`. With
        `is_full`, events that would create a partition, key, replica or epoch are refused.

        Raises:
            InvalidBatch: The columns do not fit together. Nothing has been changed.
        """
        self._pass_time(now_ms)
        if account is None:
            account = self._partitions.unowned
        return self._events.apply(batch, now_ms, start, limit, account, is_full)

    def cancel(self, owner: Owner, operation_ids: list[int], now_ms: int, work_max: int = UNLIMITED) -> list[bool]:
        """Cancel operations by id. For each: True if it was pending, False if it had ended or was never registered.

        With `work_max`, the result may be shorter than the ids: call again with the remaining ones.
        """
        self._pass_time(now_ms)
        cancelled: list[bool] = []
        stop: i64 = self._pending.work_total + work_max
        for operation_id in operation_ids:
            if self._pending.work_total >= stop:
                break
            # An id that is not pending is not counted as work, so the caller has to limit the number of ids.
            slot = self._inspection.find(owner, operation_id)
            if slot >= 0:
                self._pending.end(slot, CANCELLED, now_ms)
            cancelled.append(slot >= 0)
        return cancelled

    def extend(self, owner: Owner, operation_ids: list[int], timeout_ms: int, now_ms: int) -> list[bool]:
        """Let operations wait for at least `timeout_ms` from now on. For each: True if it was pending.

        A deadline only moves to a later time. One that is due but has not been handled moves too.
        """
        self._pass_time(now_ms)
        assert 1 <= timeout_ms <= self.limits.timeout_ms_max, f"timeout_ms={timeout_ms}"
        extended: list[bool] = []
        for operation_id in operation_ids:
            slot = self._inspection.find(owner, operation_id)
            if slot >= 0:
                self._pending.extend(slot, now_ms + timeout_ms)
            extended.append(slot >= 0)
        return extended

    def fail_stale(
        self,
        owner: Owner,
        operation_ids: list[int],
        stale: set[PartitionName],
        now_ms: int,
        work_max: int = UNLIMITED,
    ) -> list[bool]:
        """End operations whose stale timeout is over as FAILED; their stale marks get the code MARK_STALE.

        The result is that of `cancel`.
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
        """Cancel the pending operations of an owner, lowest ids first. Returns how many. See `has_pending`."""
        self._pass_time(now_ms)
        return self._end_all(owner, CANCELLED, now_ms, UNLIMITED, work_max, up_to_id)

    def has_pending(self, owner: Owner, up_to_id: int) -> bool:
        """Whether the owner has a pending operation with an id up to `up_to_id`."""
        return owner.first_pending(up_to_id, self._pending.operations) >= 0

    def cancel_partition(self, name: PartitionName, now_ms: int, work_max: int = UNLIMITED) -> int:
        """Cancel the operations that wait on a partition, with completions. Returns how many. See `has_waits`."""
        self._pass_time(now_ms)
        before = self._pending.ended_total
        partition = self._partitions.get(name)
        if partition is not None:
            self._wakeups.cancel_waiting(partition, CANCELLED, now_ms, work_max)
        return self._pending.ended_total - before

    def cancel_key(self, key: str, now_ms: int, work_max: int = UNLIMITED) -> int:
        """Cancel the operations that wait on a signal key, as `cancel_partition` does."""
        self._pass_time(now_ms)
        before = self._pending.ended_total
        signal_key = self._keys.get(key)
        if signal_key is not None:
            self._wakeups.cancel_waiting_key(signal_key, CANCELLED, now_ms, work_max)
        return self._pending.ended_total - before

    def has_waits(self, name: PartitionName) -> bool:
        """Whether any operation waits on a partition, or on a key, (key, -1)."""
        if name[1] < 0:
            signal_key = self._keys.get(name[0])
            return signal_key is not None and signal_key.watched() > 0
        partition = self._partitions.get(name)
        return partition is not None and partition.watched() > 0

    def shut_down(self, now_ms: int, limit: int, owner: Owner | None = None, work_max: int = UNLIMITED) -> int:
        """End up to `limit` operations, of one owner or of all, as SHUTTING_DOWN. Returns how many; 0: none is left."""
        self._pass_time(now_ms)
        if owner is not None:
            return self._end_all(owner, SHUTTING_DOWN, now_ms, limit, work_max, OPERATION_ID_MAX)
        operations = self._pending.operations
        ended = 0
        stop: i64 = self._pending.work_total + work_max
        while ended < limit and self._pending.count > 0 and self._pending.work_total < stop:
            slot = self._next_to_shut_down
            # The walk continues where the last slice stopped, and wraps: slots behind it may have been taken again.
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
        """Play a tape (see `tape`). With `prompt`, due operations expire at their own millisecond, before each step.

        Raises:
            InvalidBatch: As for `register` and `apply`. Nothing has been changed.
        """
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        # The player advances time by itself. The engine takes over its clock at the end of the tape.
        player = TapePlayer(self._admission, self._events, self._inspection, owner, self._now_ms, prompt)
        played = player.play(tape)
        self._pass_time(player.now_ms)
        return played

    def restore(self, owner: Owner, saved: SavedOperations, gone: bytes, now_ms: int) -> int:
        """Restore saved operations, which continue to wait. Returns how many (see `Snapshots.restore`)."""
        assert not owner.closed, f"owner {owner.owner_id} was removed"
        self._pass_time(now_ms)
        return self.snapshots.restore(owner, saved, gone, now_ms)

    # Time.

    def advance_clock(self, now_ms: int, limit: int, work_max: int = UNLIMITED) -> int:
        """End up to `limit` operations that expire or have missed a heartbeat, by deadline. Returns how many.

        If `next_expiration_ms() <= now_ms` afterwards, there is more to do: call again.
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
            expired += self._pending.on_timers(fired, now_ms)
            if len(fired) < asked:  # nothing more is due, or the wheel has used up its moves
                break
        return expired

    def note_pause(self, pause_ms: int) -> bool:
        """Count `pause_ms` neither as silence of a key nor for stale timeouts. Returns whether a wait has either."""
        assert pause_ms >= 0, f"pause_ms={pause_ms}"
        if not self._pending.heartbeats and not self._pending.stale_timeouts:
            return False
        self._pending.paused_ms += pause_ms
        return True

    def note_refused_events(self, account: AccountUsage, now_ms: int) -> None:
        """Events of an account were refused for reasons of the owner: its keys were not silent until now."""
        account.refused_ms = self._pending.listening_ms(now_ms)

    def next_expiration_ms(self) -> int:
        """When to call `advance_clock` next; -1: nothing is timed. May be in the past."""
        return self._pending.wheel.next_expiration_ms()

    @property
    def has_stale_waits(self) -> bool:
        """Whether a pending operation has a stale timeout: see `stale_waits`."""
        return len(self._pending.stale_timeouts) > 0

    @property
    def has_unreported(self) -> bool:
        """Whether operations wait for a partition that no event has mentioned yet: see `unreported`."""
        return self._partitions.unreported > 0

    def unreported(self, names: list[PartitionName]) -> list[PartitionName]:
        """The known partitions among `names` that no event has mentioned yet."""
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
        """The operations that ended since the last call: one `Completions` per owner that has any."""
        return self._pending.take_completions()

    def describe(self, owner: Owner, operation_id: int, now_ms: int) -> PendingView | None:
        """A view of a pending operation; None if it is not pending."""
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
        """Up to `limit` pending operations in slot order from slot `start` on, and where to continue (-1: at the end).

        Filters are combined. A call visits a bounded number of slots, so a page may be short or empty.
        """
        self._pass_time(now_ms)
        return self._inspection.list_pending(start, limit, owner_id, kind, partition, key)

    def count_remaining(self, start: int, limit: int, now_ms: int, times: RemainingTimes) -> int:
        """Add the time left of the pending operations in `limit` slots from `start` on to `times`.

        Returns where to continue (-1: at the end).
        """
        self._pass_time(now_ms)
        return self._inspection.count_remaining(start, limit, now_ms, times)

    def hottest(self, start: int, limit: int, above: int) -> tuple[list[tuple[int, PartitionName]], int]:
        """The names with more than `above` watch entries of pending operations, each with its number of entries.

        Visits `limit` indexes from `start` on, first those of partitions, then those of keys. A key is (key, -1). The
        second value is where to continue (-1: at the end).
        """
        return self._inspection.hottest(start, limit, above)

    def rank_pending(self, start: int, limit: int, now_ms: int, ranking: PendingRanking) -> int:
        """Add the pending operations in up to `limit` slots from `start` on to `ranking`; stops after `limit` items.

        Returns where to continue (-1: at the end).
        """
        self._pass_time(now_ms)
        return self._inspection.rank(start, limit, ranking)

    def ranked_view(self, ranked: RankedOperation, now_ms: int) -> PendingView | None:
        """A view of an operation of a ranking; None if it has ended."""
        return self.slot_view(ranked.slot, ranked.operation_id, now_ms)

    def slot_view(self, slot: int, operation_id: int, now_ms: int) -> PendingView | None:
        """The pending operation with this id in a slot; None if the slot is free or holds another operation."""
        self._pass_time(now_ms)
        return self._inspection.view_of(slot, operation_id)

    def wheel_rings(self, counted_max: int) -> list[WheelRing]:
        """The state of the timing wheel, level by level. Up to `counted_max` operations per bucket are counted."""
        return self._inspection.wheel_rings(counted_max)

    def wheel_bucket_count(self, level: int, index: int, counted_max: int) -> int:
        """The number of operations in one bucket, counted up to `counted_max`."""
        return self._pending.wheel.bucket_count(level, index, counted_max)

    @property
    def wheel_moves(self) -> int:
        """How many operations have been taken out of buckets in total, because they fired or cascaded."""
        return self._pending.wheel.moves_total

    def partition_view(self, name: PartitionName, now_ms: int) -> PartitionView | None:
        """A view of a known partition; None if it is not known."""
        self._pass_time(now_ms)
        return self._inspection.partition_view(name)

    @property
    def partition_changes(self) -> int:
        """A counter that changes whenever a partition becomes known or is forgotten."""
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
        """Total partitions and keys of all pending operations."""
        return self._pending.item_count

    def memory_bytes(self) -> int:
        """Estimated memory of the engine, from the sizes of its tables."""
        pending = self._pending
        held = pending.operations.size * OPERATION_BYTES + pending.items.size * ITEM_BYTES
        held += pending.pending_by_kind[FETCH] * FETCH_BYTES + self._wakeups.fetches.item_count * FETCH_ITEM_BYTES
        held += len(pending.stale_timeouts) * STALE_TIMEOUT_BYTES + len(pending.heartbeats) * HEARTBEAT_BYTES
        held += self._keys.idle_accounts * IDLE_ACCOUNT_BYTES
        return held + self._partitions.bytes + self._keys.bytes + len(pending.owners) * OWNER_BYTES

    def memory_bytes_more(self, operations: int, items: int) -> int:
        """Estimated additional memory if `operations` more operations with `items` items were pending."""
        pending = self._pending
        # Tables never shrink: a free row is counted by `memory_bytes` already, and using it takes no more memory.
        free_rows = pending.operations.size - pending.count
        free_items = pending.items.size - pending.item_count
        return max(operations - free_rows, 0) * OPERATION_BYTES + max(items - free_items, 0) * ITEM_BYTES

    @property
    def partition_count(self) -> int:
        """Number of known partitions."""
        return len(self._partitions.by_name)

    @property
    def held_key_count(self) -> int:
        """Number of signal keys with a pending operation."""
        return self.limits.signal_keys_max - self._keys.room()

    @property
    def held_value_bytes(self) -> int:
        """Bytes of the values of signal keys with a pending operation."""
        return int(self._keys.held_value_bytes)

    @property
    def signal_key_count(self) -> int:
        """Number of known signal keys, including idle ones."""
        return len(self._keys.by_key)

    def check(self) -> None:
        """Assert the invariants of pending operations and keys. Visits everything: for simulators and tests."""
        self._pending.check()
        self._keys.check()
