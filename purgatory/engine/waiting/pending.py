"""All pending operations: how they are admitted, how each ends exactly once, and what is then said of it.

Here slots, items, timer, owners and counters are kept in step. The rules of when an operation ends are elsewhere
(`countdown`, `fetch`, `events`); whatever they decide comes through `resolve` or `end`.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i16, i32, i64

from purgatory.engine.codes import (
    EXPIRED,
    FAILED,
    FETCH,
    KINDS,
    NONE,
    OFFSET_MAX,
    PRODUCE,
    REQUEST_TIMED_OUT,
    SATISFIED,
    SIGNAL,
)
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.fetch import Fetch, FetchItem, answer
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.waiting.tables import UNRESOLVED, ItemTable, OperationTable, Owner
from purgatory.engine.waiting.watches import WatchList, make_ref
from purgatory.engine.waiting.wheel import TimingWheel

__all__ = ["PendingOperations"]

OUTCOMES_MAX: Final = 8


class PendingOperations:
    """The pending operations of all kinds, on one timer."""

    def __init__(self, partitions: Partitions, keys: SignalKeys, tick_ms: i64, wheel_size: i64, now_ms: i64) -> None:
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.operations: Final = OperationTable()
        self.items: Final = ItemTable()
        self.wheel: Final = TimingWheel(tick_ms, wheel_size, now_ms)
        self.fetches: Final[dict[int, Fetch]] = {}
        self.owners: Final[list[Owner | None]] = []
        self.count: i64 = 0
        self.ended_total: i64 = 0
        self.pending_by_kind: Final = vec[i64]([0] * (len(KINDS) + 1))
        self.watched_by_kind: Final = vec[i64]([0] * (len(KINDS) + 1))
        self.evaluations_by_kind: Final = vec[i64]([0] * (len(KINDS) + 1))
        self.ended: Final = vec[i64]([0] * ((len(KINDS) + 1) * OUTCOMES_MAX))
        self._ready: list[Completions] = []
        self.notes_progress = False
        self.progressed: list[int] = []
        """Slots of operations of which an item was resolved and others are waited for, if that is to be noted."""

    # Admission.

    def admit(self, owner: Owner, kind: i64, items_left: i64, operation_id: i64, timeout_ms: i64, now_ms: i64) -> i64:
        """A slot for an operation that has to wait for so many items, timed, without any yet."""
        slot = self.enter(owner, kind, items_left, operation_id, now_ms)
        linked = self.wheel.add(slot, now_ms + timeout_ms)
        assert linked, f"deadline {now_ms + timeout_ms} was due at once, now_ms={now_ms}"
        return slot

    def enter(self, owner: Owner, kind: i64, items_left: i64, operation_id: i64, registered_ms: i64) -> i64:
        """The same, not timed yet."""
        slot = self.operations.take(kind, owner.owner_id, operation_id, registered_ms, items_left)
        self.wheel.ensure(self.operations.size)
        owner.note(operation_id, slot, self.operations)
        self.count += 1
        self.pending_by_kind[kind] += 1
        return slot

    def add_item(
        self, slot: i64, last_item: i64, target: i64, required: i64, mark: i64, epoch: i64, error_code: i64
    ) -> i64:
        """One more item of an admitted operation, after `last_item` (-1: the first). UNRESOLVED ones are waited for."""
        item = self.items.take(slot, target, required, mark, epoch, error_code)
        if last_item < 0:
            self.operations.first_item[slot] = i32(item)
        else:
            self.items.next[last_item] = i32(item)
        return item

    # The one end.

    def resolve(self, item: i64, error_code: i64, mark: i64, now_ms: i64) -> None:
        """One item of a countdown has come to `error_code` at `mark`; with the last one the operation ends.

        Its watch entry must have been popped. What is resolved is never looked at again.
        """
        self.items.error_code[item] = i16(error_code)
        self.items.mark[item] = mark
        slot = i64(self.items.slot[item])
        left = i64(self.operations.items_left[slot]) - 1
        self.operations.items_left[slot] = i32(left)
        if left == 0:
            self.end(slot, SATISFIED, now_ms)
        elif self.notes_progress:
            self.progressed.append(int(slot))

    def end(self, slot: i64, outcome: i64, now_ms: i64) -> None:
        """Ends a pending operation: unlinks it everywhere, and writes down how it ended. SATISFIED with errors is
        FAILED.
        """
        kind = i64(self.operations.kind[slot])
        owner = self.owners[i64(self.operations.owner_id[slot])]
        assert owner is not None, f"slot {slot} has no owner"
        waited_ms = now_ms - self.operations.registered_ms[slot]
        lateness_ms: i64 = 0
        if outcome == EXPIRED:
            lateness_ms = now_ms - self.wheel.deadline_ms(slot)
            assert lateness_ms >= 0, f"operation {self.operations.operation_id[slot]} expired {-lateness_ms} ms early"
        else:
            self.wheel.remove(slot)
        completions = self.completions_of(owner)
        items_before = completions.items
        if kind == FETCH:
            failed = self._end_fetch(slot, completions)
        elif kind == SIGNAL:
            failed = self._end_signal(slot, outcome, waited_ms, completions)
        else:
            failed = self._end_countdown(slot, kind, outcome, waited_ms, completions)
        if outcome == SATISFIED and failed:
            outcome = FAILED
        item_count = completions.items - items_before
        completions.add_operation(self.operations.operation_id[slot], kind, outcome, waited_ms, lateness_ms, item_count)
        self.operations.release(slot)
        owner.pending -= 1
        self.count -= 1
        self.pending_by_kind[kind] -= 1
        self.note_end(kind, outcome)

    def note_end(self, kind: i64, outcome: i64) -> None:
        """Counts an end, of an operation that waited or of one that never had to."""
        self.ended_total += 1
        self.ended[kind * OUTCOMES_MAX + outcome] += 1

    def _end_countdown(self, slot: i64, kind: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        """Items of a produce or delete-records that ends; whether one of them failed."""
        failed = False
        item = i64(self.operations.first_item[slot])
        while item >= 0:
            after = i64(self.items.next[item])
            partition = self.partitions.at(i64(self.items.target[item]))
            error = i64(self.items.error_code[item])
            mark = self.items.mark[item]
            required = self.items.required[item]
            remaining = -1
            pace = -1.0
            reached = mark
            self.items.release(item)
            if error == UNRESOLVED:
                error = REQUEST_TIMED_OUT
                current = partition.high_watermark if kind == PRODUCE else partition.low_watermark()
                if kind == PRODUCE:
                    reached = current
                if outcome == EXPIRED and mark >= 0:
                    remaining = remaining_ms(mark, current, required, waited_ms)
                    pace = pace_per_second(mark, current, waited_ms)
                self._unwatch(partition.produces if kind == PRODUCE else partition.deletes, kind)
            elif error != NONE:
                failed = True
            completions.add_item(partition.name, error, required, reached, partition.log_start_offset, remaining, pace)
            self.partitions.release(partition)
            item = after
        return failed

    def _end_signal(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        """Items of a signal that ends. Keys never fail; with `any` some may not have been reached."""
        item = i64(self.operations.first_item[slot])
        while item >= 0:
            after = i64(self.items.next[item])
            key = self.keys.at(i64(self.items.target[item]))
            error = i64(self.items.error_code[item])
            mark = self.items.mark[item]
            required = self.items.required[item]
            remaining = -1
            pace = -1.0
            reached = mark
            self.items.release(item)
            if error == UNRESOLVED:
                error = REQUEST_TIMED_OUT
                reached = key.count
                if outcome == EXPIRED:
                    remaining = remaining_ms(mark, key.count, required, waited_ms)
                    pace = pace_per_second(mark, key.count, waited_ms)
                self._unwatch(key.waits, SIGNAL)
            completions.add_item(key.name, error, required, reached, -1, remaining, pace)
            self.keys.release(key)
            item = after
        return False

    def _end_fetch(self, slot: i64, completions: Completions) -> bool:
        """Items of a fetch that ends: what a read would give now; whether one of them is an error."""
        fetch = self.fetches.pop(int(slot))
        failed = self.answer_fetch(fetch, completions)
        for item in fetch.items:
            self.unwatch_fetch_item(fetch, item)
            self.items.release(item.item)
            if item.throttled:
                item.partition.throttled_fetches -= 1
            self.partitions.release(item.partition)
        return failed

    def answer_fetch(self, fetch: Fetch, completions: Completions) -> bool:
        """Writes down what each partition of an ending fetch answers; whether one of them is an error."""
        failed = False
        for item in fetch.items:
            said = answer(fetch, item)
            failed = failed or said.error_code != NONE
            completions.add_item(
                item.partition.name,
                said.error_code,
                item.fetch_offset,
                said.reached_offset,
                said.log_start_offset,
                -1,
                -1.0,
            )
            completions.fetched.append(said.fetched)
        return failed

    # Watches.

    def watch(self, entries: WatchList, kind: i64, item: i64, threshold: i64) -> None:
        """Watches for `threshold` on behalf of an item."""
        entries.add(threshold, self._ref(item))
        self.watched_by_kind[kind] += 1

    def _ref(self, item: i64) -> i64:
        return make_ref(item, i64(self.items.generation[item]))

    def _unwatch(self, entries: WatchList | None, kind: i64) -> None:
        """An entry of the list has died (its item was released or renewed); dead ones are swept when they are many."""
        assert entries is not None, "an item that waits has no watch list"
        self.popped(entries, kind)
        if entries.wants_compaction():
            entries.compact(self.items.generation)

    def popped(self, entries: WatchList, kind: i64) -> None:
        """A live entry has left the list."""
        entries.forget()
        self.watched_by_kind[kind] -= 1

    def unwatch_fetch_item(self, fetch: Fetch, item: FetchItem) -> None:
        """Ends the watch of one partition of a fetch, if it has one."""
        if item.threshold >= 0:
            item.threshold = -1
            self.items.renew(item.item)
            self._unwatch(fetch.watch(item.partition).entries, FETCH)

    # Completions.

    def completions_of(self, owner: Owner) -> Completions:
        """Where to write what has ended of an owner. What a closed owner would have been told is dropped."""
        completions = owner.completions
        if completions is None:
            completions = Completions(owner.owner_id, owner.ended_last)
            if not owner.closed:
                owner.completions = completions
                self._ready.append(completions)
        return completions

    def take_completions(self) -> list[Completions]:
        """What has ended since the last call, one for each owner that has any."""
        ready = self._ready
        self._ready = []
        for completions in ready:
            completions.finish()
            owner = self.owners[completions.owner_id]
            if owner is not None and owner.completions is completions:
                owner.completions = None
                owner.ended_last = len(completions)
        return ready


def remaining_ms(mark_before: i64, mark_now: i64, required: i64, waited_ms: i64) -> int:
    """When `required` would be reached at the pace from `mark_before` to `mark_now` in `waited_ms`; -1: it stood
    still.
    """
    moved: int = mark_now - mark_before
    if moved <= 0 or mark_now >= required:
        return -1
    missing: int = required - mark_now
    return min((missing * int(waited_ms) + moved - 1) // moved, OFFSET_MAX)


def pace_per_second(mark_before: i64, mark_now: i64, waited_ms: i64) -> float:
    """Mean pace of a mark over a wait; -1.0: it stood still."""
    if mark_now <= mark_before or waited_ms <= 0:
        return -1.0
    return float(int(mark_now - mark_before)) * 1000.0 / float(int(waited_ms))
