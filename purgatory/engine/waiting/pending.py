"""All pending operations: how they are admitted, how each ends exactly once, and how its result is recorded.

This module keeps slots, items, timer, owners and counters consistent. The kind of an operation decides when it ends,
but always through `resolve` or `end`, so that an operation is removed once.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i16, i32, i64

from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.kind import Kind
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.waiting.tables import FREE, UNRESOLVED, ItemTable, OperationTable, Owner
from purgatory.engine.waiting.watches import WatchList, make_ref
from purgatory.engine.waiting.wheel import TimingWheel, round_up_to_tick

OUTCOMES_MAX: Final = 8


class Heartbeat:
    """What an operation requires of its keys: none may be silent for `timeout_ms`.

    Silence counts from `since_ms` or the last signal of the key, both in listening time. The timer of such an operation
    is set to the end of a silence and then set again, so it is not the deadline of the operation; that is
    `deadline_ms`.
    """

    def __init__(self, timeout_ms: i64, since_ms: i64, deadline_ms: i64) -> None:
        self.timeout_ms: Final[i64] = timeout_ms
        self.since_ms: Final[i64] = since_ms
        self.deadline_ms: i64 = deadline_ms


class StaleTimeout:
    """How long the marks of an operation may be stale, from `since_ms` (listening time) on."""

    def __init__(self, timeout_ms: i64, since_ms: i64) -> None:
        self.timeout_ms: Final[i64] = timeout_ms
        self.since_ms: Final[i64] = since_ms


class PendingOperations:
    """The pending operations of all kinds, on one timer."""

    def __init__(self, partitions: Partitions, keys: SignalKeys, tick_ms: i64, wheel_size: i64, now_ms: i64) -> None:
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.operations: Final = OperationTable()
        self.items: Final = ItemTable()
        self.wheel: Final = TimingWheel(tick_ms, wheel_size, now_ms)
        self.kinds: list[Kind] = []
        """By code, with an unused entry at 0. Set once, by the `Wakeups` of these pending operations."""
        self.owners: Final[list[Owner | None]] = []
        self.count: i64 = 0
        self.item_count: i64 = 0
        """Total items of all pending operations."""
        self.ended_total: i64 = 0
        self.work_total: i64 = 0
        """Units of work, by which slices are limited. See `Engine` for their definition."""
        self.pending_by_kind: Final = vec[i64]([0] * (len(codes.KINDS) + 1))
        self.watched_by_kind: Final = vec[i64]([0] * (len(codes.KINDS) + 1))
        self.evaluations_by_kind: Final = vec[i64]([0] * (len(codes.KINDS) + 1))
        self.ended: Final = vec[i64]([0] * ((len(codes.KINDS) + 1) * OUTCOMES_MAX))
        self._ready: list[Completions] = []
        self.paused_ms: i64 = 0
        """Total length of the pauses: see `calls.Pause`."""
        self.stale_timeouts: Final[dict[int, StaleTimeout]] = {}
        """By slot, only for operations that have one: they are few, and the others have no cost."""
        self.heartbeats: Final[dict[int, Heartbeat]] = {}
        """By slot, only for operations that require one."""
        self.notes_progress = False
        self.progressed: list[int] = []
        """Slots of operations with a newly resolved item that still wait for others, if this is recorded."""

    # Admission.

    def admit(
        self, owner: Owner, kind: i64, item_count: i64, items_left: i64, operation_id: i64, timeout_ms: i64, now_ms: i64
    ) -> i64:
        """Allocate a slot for an operation that has to wait, and start its timer. Its items have yet to be added."""
        slot = self.enter(owner, kind, item_count, items_left, operation_id, now_ms)
        linked = self.wheel.add(slot, now_ms + timeout_ms)
        # A timeout of 0 never gets here, and any later deadline is rounded up to a tick after the clock of the wheel.
        assert linked, f"deadline {now_ms + timeout_ms} was due at once, now_ms={now_ms}"
        return slot

    def enter(
        self, owner: Owner, kind: i64, item_count: i64, items_left: i64, operation_id: i64, registered_ms: i64
    ) -> i64:
        """Allocate a slot without starting the timer."""
        slot = self.operations.take(kind, owner.owner_id, operation_id, registered_ms, items_left)
        # Before the timer starts: `take` may have added a slot for which the wheel has no node yet.
        self.wheel.ensure(self.operations.size)
        owner.note(operation_id, slot, self.operations)
        self.count += 1
        self.item_count += item_count
        usage = owner.usage
        usage.operations += 1
        usage.items += item_count
        self.pending_by_kind[kind] += 1
        return slot

    def require_heartbeat(self, slot: i64, timeout_ms: i64, now_ms: i64) -> None:
        """Require a heartbeat, from now on, of an operation whose timer was set to its deadline."""
        deadline_ms = self.wheel.deadline_ms(slot)
        self.heartbeats[int(slot)] = Heartbeat(timeout_ms, self.listening_ms(now_ms), deadline_ms)
        self.set_timer(slot, min(now_ms + timeout_ms, deadline_ms))

    def limit_staleness(self, slot: i64, timeout_ms: i64, now_ms: i64) -> None:
        """Set the stale timeout of an operation, which begins now."""
        self.stale_timeouts[int(slot)] = StaleTimeout(timeout_ms, self.listening_ms(now_ms))

    def listening_ms(self, now_ms: i64) -> i64:
        """The listening time: engine time without the pauses."""
        return now_ms - self.paused_ms

    def set_timer(self, slot: i64, time_ms: i64) -> None:
        """Set the timer of an operation to a time that is not due yet."""
        linked = self.wheel.add(slot, time_ms)
        assert linked, f"the timer of slot {slot} was due at once, time_ms={time_ms}"

    def deadline_ms(self, slot: i64) -> i64:
        """The deadline of an operation."""
        if self.heartbeats and int(slot) in self.heartbeats:
            return self.heartbeats[int(slot)].deadline_ms
        return self.wheel.deadline_ms(slot)

    def extend(self, slot: i64, deadline_ms: i64) -> None:
        """Move the deadline of an operation to a later time. An earlier one changes nothing."""
        if deadline_ms <= self.deadline_ms(slot):
            return
        if self.heartbeats and int(slot) in self.heartbeats:
            # Its timer is due before and will be set again then.
            self.heartbeats[int(slot)].deadline_ms = round_up_to_tick(deadline_ms, self.wheel.tick_ms)
        else:
            self.set_timer(slot, deadline_ms)

    def add_item(
        self, slot: i64, last_item: i64, target: i64, required: i64, mark: i64, epoch: i64, error_code: i64
    ) -> i64:
        """Append an item to an admitted operation, after `last_item` (-1: the first). It has to wait if UNRESOLVED."""
        item = self.items.take(slot, target, required, mark, epoch, error_code)
        if last_item < 0:
            self.operations.first_item[slot] = i32(item)
        else:
            self.items.next[last_item] = i32(item)
        return item

    # What admission adds, and where it is taken back: the timer, the counters and the slot in `end`; the entry in the
    # index of the owner when that is compacted; items, watches and references of partitions in `build_result` of the
    # kind. A new kind that forgets one of its three leaks it without an error; `check` finds items and slots.
    # The only way to end.

    def resolve(self, item: i64, error_code: i64, mark: i64, now_ms: i64) -> None:
        """Resolve one item of a countdown with `error_code` at `mark`; with the last item the operation ends.

        Its watch entry must have been popped. A resolved item is never evaluated again.
        """
        self.work_total += 1
        self.items.error_code[item] = i16(error_code)
        self.items.mark[item] = mark
        slot = i64(self.items.slot[item])
        # Counted, because looking for another unresolved item would walk up to 2,000 items each time one is resolved.
        left = i64(self.operations.items_left[slot]) - 1
        self.operations.items_left[slot] = i32(left)
        if left == 0:
            self.end(slot, codes.SATISFIED, now_ms)
        # Only for a listener that takes the list after each call, such as the journal: otherwise it would grow without
        # bound.
        elif self.notes_progress:
            self.progressed.append(int(slot))

    def note_progress(self, slot: i64) -> None:
        """Record that an item of a pending operation was resolved otherwise than by `resolve`."""
        if self.notes_progress:
            self.progressed.append(int(slot))

    def on_timers(self, fired: list[int], now_ms: i64) -> int:
        """The timers of these slots fired. Returns how many have ended: with a heartbeat, the operation may go on."""
        if not self.heartbeats:
            for slot in fired:
                self.end(slot, codes.EXPIRED, now_ms)
            return len(fired)
        ended = 0
        for slot in fired:
            if slot not in self.heartbeats:
                self.end(slot, codes.EXPIRED, now_ms)
                ended += 1
            elif self.kinds[i64(self.operations.kind[slot])].on_timer(slot, now_ms):
                ended += 1
        return ended

    def fail(self, slot: i64, error_code: i64, causes: list[bool], now_ms: i64) -> None:
        """End an operation as FAILED. Of its items that were not reached, those in `causes` get the error code.

        `causes` has one value for each item, in order, and is true only for items that the operation still waits for.
        """
        owner = self.owners[i64(self.operations.owner_id[slot])]
        assert owner is not None, f"slot {slot} has no owner"
        # A fetch that ends early answers with what it has read, so its unreached partitions have no error.
        not_reached: i64 = codes.NONE if i64(self.operations.kind[slot]) == codes.FETCH else codes.REQUEST_TIMED_OUT
        # Taken before `end`, which appends to the same object; the new rows are corrected afterwards, so `build_result`
        # of a kind does not have to know about these errors.
        completions = self.completions_of(owner)
        item = completions.items
        self.end(slot, codes.FAILED, now_ms)
        for is_cause in causes:
            if is_cause and completions.error_codes[item] == not_reached:
                completions.error_codes[item] = error_code
            item += 1

    def end(self, slot: i64, outcome: i64, now_ms: i64) -> None:
        """End a pending operation: unlink it everywhere and record its result. SATISFIED with errors becomes FAILED."""
        # The order matters: the kind still needs the slot and the items to build the result, so they are released after
        # it.
        kind = i64(self.operations.kind[slot])
        owner = self.owners[i64(self.operations.owner_id[slot])]
        assert owner is not None, f"slot {slot} has no owner"
        waited_ms = now_ms - self.operations.registered_ms[slot]
        lateness_ms: i64 = 0
        # An expired slot has already left the wheel; all other outcomes must remove it.
        if outcome == codes.EXPIRED:
            deadline_ms = self.deadline_ms(slot) if self.heartbeats else self.wheel.deadline_ms(slot)
            lateness_ms = now_ms - deadline_ms
            assert lateness_ms >= 0, f"operation {self.operations.operation_id[slot]} expired {-lateness_ms} ms early"
        else:
            self.wheel.remove(slot)
        completions = self.completions_of(owner)
        items_before = completions.items
        failed = self.kinds[kind].build_result(slot, outcome, waited_ms, completions)
        if outcome == codes.SATISFIED and failed:
            outcome = codes.FAILED
        # Counted by what `build_result` has written, because the rows of the items are released by now.
        item_count = completions.items - items_before
        completions.add_operation(self.operations.operation_id[slot], kind, outcome, waited_ms, lateness_ms, item_count)
        self.operations.release(slot)
        # With the slot: the next operation in it must not inherit the timeout.
        if self.stale_timeouts:
            self.stale_timeouts.pop(int(slot), None)
        if self.heartbeats:
            self.heartbeats.pop(int(slot), None)
        owner.pending -= 1
        self.count -= 1
        self.item_count -= item_count
        usage = owner.usage
        usage.operations -= 1
        usage.items -= item_count
        self.pending_by_kind[kind] -= 1
        self._count_end(kind, outcome, item_count)

    def end_at_once(self, owner: Owner, operation_id: i64, kind: i64, outcome: i64, item_count: i64) -> None:
        """Record the end of an operation that was never pending, after its items."""
        self.completions_of(owner).add_operation(operation_id, kind, outcome, 0, 0, item_count)
        self._count_end(kind, outcome, item_count)

    def _count_end(self, kind: i64, outcome: i64, item_count: i64) -> None:
        self.ended_total += 1
        self.work_total += 1 + item_count
        self.ended[kind * OUTCOMES_MAX + outcome] += 1

    # Watches.

    def watch(self, entries: WatchList, kind: i64, item: i64, threshold: i64) -> None:
        """Watch for `threshold` on behalf of an item."""
        entries.add(threshold, self._ref(item))
        self.watched_by_kind[kind] += 1

    def _ref(self, item: i64) -> i64:
        return make_ref(item, i64(self.items.generation[item]))

    def unwatch(self, entries: WatchList | None, kind: i64) -> None:
        """An entry became stale because its item was released or renewed. Compacts the list if there are many."""
        assert entries is not None, "an item that waits has no watch list"
        self.popped(entries, kind)
        # The generation of the item has changed already; otherwise `compact` would keep the dead entry.
        if entries.wants_compaction():
            entries.compact(self.items.generation)

    def popped(self, entries: WatchList, kind: i64) -> None:
        """A live entry was taken out of the list."""
        entries.forget()
        self.watched_by_kind[kind] -= 1

    # Completions.

    def completions_of(self, owner: Owner) -> Completions:
        """The completions of an owner, to append to. For a closed owner they are discarded."""
        completions = owner.completions
        if completions is None:
            # Made as large as last time: a receiver of thousands of results would otherwise double every column several
            # times.
            completions = Completions(owner.owner_id, owner.ended_last, owner.items_ended_last)
            # Results of a closed owner end here: its id is about to be reused, and they would be delivered to its
            # successor.
            if not owner.closed:
                owner.completions = completions
                self._ready.append(completions)
        return completions

    def take_completions(self) -> list[Completions]:
        """The operations that ended since the last call: one `Completions` per owner that has any."""
        ready = self._ready
        self._ready = []
        for completions in ready:
            completions.finish()
            owner = self.owners[completions.owner_id]
            # Still the same owner, although ids are reused: one with completions is not removed.
            assert owner is not None, f"owner {completions.owner_id} was removed with {len(completions)} results"
            owner.completions = None
            owner.ended_last = len(completions)
            owner.items_ended_last = completions.items
        return ready

    # Invariants.

    def check(self) -> None:
        """Assert that tables, owners, accounts and counters agree. Visits every row: for simulators and tests only."""
        operations = self.operations
        by_kind = [0] * (len(codes.KINDS) + 1)
        by_owner = [0] * len(self.owners)
        items_by_owner = [0] * len(self.owners)
        for slot in range(int(operations.size)):
            kind = int(operations.kind[slot])
            if kind == FREE:
                assert slot not in self.stale_timeouts, f"free slot {slot} has a stale timeout"
                assert slot not in self.heartbeats, f"free slot {slot} requires a heartbeat"
                continue
            owner_id = int(operations.owner_id[slot])
            owner = self.owners[owner_id]
            operation_id = operations.operation_id[slot]
            assert owner is not None, f"slot {slot} belongs to owner {owner_id}, which was removed"
            assert owner.find(operation_id, operations) == slot, f"owner {owner_id} has lost {operation_id} at {slot}"
            by_kind[kind] += 1
            by_owner[owner_id] += 1
            items_by_owner[owner_id] += self._check_items(slot, kind)
        assert by_kind == [int(count) for count in self.pending_by_kind], f"{by_kind}, not {self.pending_by_kind}"
        assert sum(by_owner) == self.count, f"{sum(by_owner)} operations are pending, not {self.count}"
        assert sum(items_by_owner) == self.item_count, f"{sum(items_by_owner)} items are held, not {self.item_count}"
        operations.check(sum(by_owner))
        self.items.check(sum(items_by_owner))
        for owner_id, owner in enumerate(self.owners):
            count = 0 if owner is None else int(owner.pending)
            assert count == by_owner[owner_id], f"owner {owner_id} counts {count} operations, not {by_owner[owner_id]}"

    def _check_items(self, slot: int, kind: int) -> int:
        """Assert that the items of an operation are linked to it; return how many there are."""
        items = self.items
        count = 0
        unresolved = 0
        item = int(self.operations.first_item[slot])
        while item >= 0:
            assert int(items.slot[item]) == slot, f"item {item} of slot {slot} is linked to slot {items.slot[item]}"
            count += 1
            unresolved += int(items.error_code[item]) == UNRESOLVED
            item = int(items.next[item])
        assert count > 0, f"slot {slot} has no items"
        left = int(self.operations.items_left[slot])
        # Fetches end on a number of bytes, so they do not count resolved items.
        if kind in (codes.PRODUCE, codes.DELETE_RECORDS):
            assert unresolved == left > 0, f"slot {slot} waits for {unresolved} items and counts {left}"
        self.kinds[kind].check(slot)
        return count
