"""Signal: waits until all (or any) of its keys have been signalled often enough, or can no longer be.

A key that is signalled as failed fails all operations that need it; with `any` the last one that is left. An operation
that requires a heartbeat fails when one of the keys that it still waits for is silent for too long.
"""

from typing import Final, final

from mypy_extensions import i16, i32, i64

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.kinds.kind import Kind
from purgatory.engine.kinds.pace import pace_per_second, remaining_ms
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner
from purgatory.engine.waiting.watches import ref_is_live, ref_item
from purgatory.engine.waiting.wheel import round_up_to_tick

NEVER_MS: Final[i64] = 2**62


def state_of(key: SignalKey, required: i64) -> i64:
    """The error code of a key that must reach a count; UNRESOLVED while it has to be waited for."""
    if key.failed:
        return codes.SIGNAL_FAILED
    return codes.NONE if key.count >= required else UNRESOLVED


def outcome_of(keys: i64, left: i64, failed: i64, any_key: bool) -> i64:
    """The outcome of an operation of which `left` keys are not reached and `failed` can no longer be; else PENDING."""
    if any_key:
        if left + failed < keys:
            return codes.SATISFIED
        return codes.FAILED if left == 0 else codes.PENDING
    if failed > 0:
        return codes.FAILED
    return codes.SATISFIED if left == 0 else codes.PENDING


@final
class SignalKind(Kind):
    """The only kind whose targets are keys. A key is watched at the count that it must reach."""

    def __init__(self, pending: PendingOperations) -> None:
        super().__init__(codes.SIGNAL, pending.partitions, pending.items, names_keys=True)
        self.pending: Final = pending
        self.keys: Final = pending.keys

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> i64:
        items = range(first_item, first_item + columns.item_counts.at(row))
        held = self.keys.get_or_create_all([columns.keys[columns.places.at(item)] for item in items], owner.usage)
        from_now = columns.column("from_now").at(row) != 0
        any_key = columns.column("any_key").at(row) != 0
        operation_id = columns.operation_ids.at(row)
        required: list[i64] = []
        left = 0
        failed = 0
        for place, key in enumerate(held):
            # Cannot overflow: both are below OFFSET_MAX.
            wanted = columns.offsets.at(first_item + place)
            if from_now:
                wanted += key.count
            required.append(wanted)
            if key.failed:
                failed += 1
            elif key.count < wanted:
                left += 1
        pending = self.pending
        timeout_ms = columns.timeouts_ms.at(row)
        outcome = outcome_of(len(held), left, failed, any_key)
        if outcome != codes.PENDING or timeout_ms == 0:
            if outcome == codes.PENDING:
                outcome = codes.EXPIRED
            self._end_at_once(owner, held, required)
            return outcome
        # With `any` the first key to be resolved brings `items_left` to 0; other items stay unresolved and answer 7.
        # The epoch of the first item, which keys do not need, is how many more keys may fail. Counting them at each
        # failure would take the square of their number.
        spare: i64 = left - 1 if any_key else 0
        left -= spare
        slot = pending.admit(owner, codes.SIGNAL, len(held), left, operation_id, timeout_ms, now_ms)
        item: i64 = -1
        for place, key in enumerate(held):
            error = state_of(key, required[place])
            item = pending.add_item(slot, item, key.index, required[place], key.count, -1 if place else spare, error)
            if error == UNRESOLVED:
                pending.watch(key.waits, codes.SIGNAL, item, required[place])
        heartbeat_timeout_ms = columns.column("heartbeat_timeout_ms").at(row)
        if heartbeat_timeout_ms > 0:
            pending.require_heartbeat(slot, heartbeat_timeout_ms, now_ms)
        return codes.PENDING

    def _end_at_once(self, owner: Owner, held: list[SignalKey], required: list[i64]) -> None:
        completions = self.pending.completions_of(owner)
        for place, key in enumerate(held):
            error = state_of(key, required[place])
            self._add_item(completions, key, error, required[place], key.count, -1, -1.0)
            self.keys.release(key)

    def _add_item(
        self,
        completions: Completions,
        key: SignalKey,
        error: i64,
        required: i64,
        reached: i64,
        remaining: i64,
        pace: float,
    ) -> None:
        """Add the result of one key, with its value unless the key is still waited for."""
        is_resolved = error != UNRESOLVED
        if not is_resolved:
            error = codes.REQUEST_TIMED_OUT
        completions.add_item(key.name, error, required, reached, -1, remaining, pace)
        if is_resolved and key.value:
            completions.add_signal_value(key.value)

    def build_result(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        items = self.pending.items
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            # The order of reads, `release` and `unwatch` is that of `Countdown.build_result`.
            after = i64(items.next[item])
            key = self.keys.at(i64(items.target[item]))
            error = i64(items.error_code[item])
            mark = items.mark[item]
            required = items.required[item]
            remaining: i64 = -1
            pace = -1.0
            reached = mark
            items.release(item)
            if error == UNRESOLVED:
                reached = key.count
                if outcome == codes.EXPIRED:
                    remaining = remaining_ms(mark, key.count, required, waited_ms)
                    pace = pace_per_second(mark, key.count, waited_ms)
                self.pending.unwatch(key.waits, codes.SIGNAL)
            self._add_item(completions, key, error, required, reached, remaining, pace)
            self.keys.release(key)
            item = after
        # Not by the items: with `any`, a failed key does not matter once another one is reached.
        return False

    def wake_key(self, key: SignalKey, now_ms: i64) -> None:
        """End the operations whose count is reached, after the key was signalled."""
        items = self.pending.items
        while True:
            ref = key.waits.pop_reached(key.count)
            if ref < 0:
                return
            if ref_is_live(ref, items.generation):
                self.pending.popped(key.waits, codes.SIGNAL)
                self.pending.evaluations_by_kind[codes.SIGNAL] += 1
                self.pending.resolve(ref_item(ref), codes.NONE, key.count, now_ms)

    def fail_key(self, key: SignalKey, now_ms: i64) -> None:
        """Fail what needs the key, after it was signalled as failed."""
        items = self.pending.items
        for ref in key.waits.drain():
            # Checked entry by entry: an operation may end with an earlier one.
            if ref_is_live(ref, items.generation):
                self.pending.popped(key.waits, codes.SIGNAL)
                self.pending.evaluations_by_kind[codes.SIGNAL] += 1
                self._fail_item(ref_item(ref), key.count, now_ms)

    def _fail_item(self, item: i64, mark: i64, now_ms: i64) -> None:
        pending = self.pending
        slot = i64(pending.items.slot[item])
        pending.work_total += 1
        pending.items.error_code[item] = i16(codes.SIGNAL_FAILED)
        pending.items.mark[item] = mark
        spare = self.spare(slot)
        if spare == 0:
            pending.end(slot, codes.FAILED, now_ms)
        else:
            pending.items.epoch[i64(pending.operations.first_item[slot])] = i32(spare - 1)
            pending.note_progress(slot)

    def spare(self, slot: i64) -> i64:
        return i64(self.items.epoch[i64(self.pending.operations.first_item[slot])])

    def check(self, slot: i64) -> None:
        unresolved: i64 = 0
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            unresolved += i64(self.must_come(item))
            item = i64(self.items.next[item])
        expected = i64(self.pending.operations.items_left[slot]) + self.spare(slot)
        assert unresolved == expected, f"slot {slot}: {unresolved} keys are waited for, not {expected}"

    # Heartbeats.

    def on_timer(self, slot: i64, now_ms: i64) -> bool:
        pending = self.pending
        deadline_ms = pending.deadline_ms(slot)
        silent_ms = self._silent_at_ms(slot)
        if min(silent_ms, deadline_ms) > now_ms:
            pending.set_timer(slot, min(silent_ms, deadline_ms))
            return False
        # A late caller finds both over: the earlier one decides.
        if deadline_ms <= silent_ms:
            pending.end(slot, codes.EXPIRED, now_ms)
            return True
        silent: list[bool] = []
        item = i64(pending.operations.first_item[slot])
        while item >= 0:
            is_unresolved = i64(self.items.error_code[item]) == UNRESOLVED
            silent.append(is_unresolved and self._item_silent_at_ms(slot, item) <= now_ms)
            item = i64(self.items.next[item])
        pending.fail(slot, codes.HEARTBEAT_MISSED, silent, now_ms)
        return True

    def _silent_at_ms(self, slot: i64) -> i64:
        """When the first of the keys that an operation waits for will have been silent for too long."""
        items = self.pending.items
        first = NEVER_MS
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            self.pending.work_total += 1
            if i64(items.error_code[item]) == UNRESOLVED:
                first = min(first, self._item_silent_at_ms(slot, item))
            item = i64(items.next[item])
        return first

    def _item_silent_at_ms(self, slot: i64, item: i64) -> i64:
        heartbeat = self.pending.heartbeats[int(slot)]
        key = self.keys.at(i64(self.pending.items.target[item]))
        heard_ms = max(heartbeat.since_ms, key.signalled_ms, self._signaller(slot, key).refused_ms)
        # A deadline is rounded up to a tick, and so is the end of a silence.
        silent_ms = heard_ms + heartbeat.timeout_ms + self.pending.paused_ms
        return round_up_to_tick(silent_ms, self.pending.wheel.tick_ms)

    def _signaller(self, slot: i64, key: SignalKey) -> AccountUsage:
        """Who is expected to signal a key: the account that did so last, or else the one that waits."""
        if key.signaller is not None:
            return key.signaller
        owner = self.pending.owners[i64(self.pending.operations.owner_id[slot])]
        assert owner is not None, f"slot {slot} has no owner"
        return owner.usage

    # Views and snapshots.

    def partition_of(self, item: i64) -> Partition | None:
        return None

    def name_of(self, item: i64) -> AsGiven:
        return self.keys.at(i64(self.items.target[item])).name

    def reached(self, slot: i64, item: i64) -> i64:
        return self.keys.at(i64(self.items.target[item])).count

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        last: i64 = -1
        spare = -i64(self.pending.operations.items_left[slot])
        for item in range(place.item, place.item + saved.item_counts[place.row]):
            error = saved.error_codes[item]
            required = saved.required[item]
            name: AsGiven = saved.names[saved.places[item]]
            key = self.keys.get_or_create(name[0], self.keys.unowned)
            last = self.pending.add_item(slot, last, key.index, required, saved.marks[item], -1, error)
            if error == UNRESOLVED:
                spare += 1
                self.pending.watch(key.waits, codes.SIGNAL, last, required)
        self.items.epoch[i64(self.pending.operations.first_item[slot])] = i32(spare)
        return False
