"""Composite: waits until enough of its terms are true, and fails as soon as a term of its failure arm is.

A term is a partition whose high watermark must reach an offset, or a key whose signals must reach a count. A term that
was true once stays true. A term is *lost* when its partition cannot be waited for any longer; the operation fails when
more terms are lost than it can spare. Names may be repeated, within an arm and in both.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i16, i32, i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import AsGiven
from purgatory.engine.codes import COMPOSITE, EXPIRED, FAILED, NONE, REQUEST_TIMED_OUT, SATISFIED, UNLESS_REACHED
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.kinds.countdown import Countdown, partition_fault
from purgatory.engine.kinds.pace import pace_per_second, remaining_ms
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner
from purgatory.engine.waiting.watches import ref_is_live, ref_item

__all__ = ["CompositeKind"]

# The epoch of an item, which terms do not need, holds two flags.
KEY: Final[i64] = 1
"""The term waits for a key, not for a partition."""
UNLESS: Final[i64] = 2
"""The term belongs to the failure arm."""
ONE_SPARE: Final[i64] = 4
"""The epoch of the first item also counts, in these units, how many more terms may be lost."""


@final
class CompositeKind(Countdown):
    """The only kind with both partitions and keys. `items_left` counts the terms that have yet to become true."""

    def __init__(self, pending: PendingOperations) -> None:
        super().__init__(COMPOSITE, pending, answers_mark_of_now=True, names_keys=True)
        self.keys: Final = pending.keys

    def mark(self, partition: Partition) -> i64:
        return partition.high_watermark

    def state(self, partition: Partition, required: i64, epoch: i64) -> i64:
        fault = partition_fault(partition, -1)
        if fault != NONE:
            return fault
        return UNRESOLVED if partition.high_watermark < 0 or partition.high_watermark < required else NONE

    def _state_now(self, is_key: bool, target: i64, required: i64) -> i64:
        """NONE if a term is true, UNRESOLVED if it may become so, else why it is lost."""
        if is_key:
            return NONE if self.keys.at(target).count >= required else UNRESOLVED
        return self.state(self.partitions.at(target), required, -1)

    def _mark_now(self, is_key: bool, target: i64) -> i64:
        return self.keys.at(target).count if is_key else self.partitions.at(target).high_watermark

    # Registration.

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> None:
        targets = self._hold(owner.usage, columns, first_item, columns.item_counts.at(row))
        self._begin(owner, columns, row, first_item, targets, now_ms)

    def begin_plain(
        self,
        owner: Owner,
        columns: BatchColumns,
        row: i64,
        operation_id: i64,
        timeout_ms: i64,
        first_item: i64,
        item_count: i64,
        now_ms: i64,
    ) -> bool:
        # Names that are known are valid, and nothing has to be made for them.
        terms = item_count - columns.column("unless_count").at(row)
        if terms < 1 or columns.column("required_terms").at(row) > terms:
            return False
        targets = vec[i64]([0] * item_count)
        idle: i64 = 0
        place: i64 = 0
        while place < item_count:
            item = first_item + place
            named = columns.places.at(item)
            if named < columns.first_key:
                partition = columns.known_partition(item)
                if partition is None:
                    return False
                targets[place] = partition.index
            else:
                key = self.keys.get(columns.keys[named - columns.first_key])
                if key is None or columns.offsets.at(item) == 0:
                    return False
                if key.references == 0:
                    idle += 1
                targets[place] = key.index
            place += 1
        # Keys that nobody waits for yet count in the share of the account.
        if owner.usage.keys + idle > owner.usage.keys_max:
            return False
        place = 0
        while place < item_count:
            if columns.places.at(first_item + place) < columns.first_key:
                self.partitions.hold(self.partitions.at(targets[place]))
            else:
                self.keys.hold(self.keys.at(targets[place]), owner.usage)
            place += 1
        self._begin(owner, columns, row, first_item, targets, now_ms)
        return True

    def _begin(
        self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, targets: vec[i64], now_ms: i64
    ) -> None:
        count: i64 = i64(len(targets))
        terms = count - columns.column("unless_count").at(row)
        required_terms = columns.column("required_terms").at(row)
        if required_terms == 0:
            required_terms = terms
        is_true: i64 = 0
        lost: i64 = 0
        outcome: i64 = EXPIRED
        place: i64 = 0
        while place < count:
            is_key = columns.places.at(first_item + place) >= columns.first_key
            state = self._state_now(is_key, targets[place], required_of(columns, first_item + place, is_key))
            if place >= terms:
                if state == NONE:
                    outcome = FAILED
            elif state == NONE:
                is_true += 1
            elif state != UNRESOLVED:
                lost += 1
            place += 1
        if outcome != FAILED and terms - lost < required_terms:
            outcome = FAILED
        elif outcome != FAILED and is_true >= required_terms:
            outcome = SATISFIED
        operation_id = columns.operation_ids.at(row)
        timeout_ms = columns.timeouts_ms.at(row)
        if outcome != EXPIRED or timeout_ms == 0:
            self._end_terms_at_once(owner, columns, first_item, terms, targets, operation_id, outcome)
            return
        slot = self.pending.admit(owner, COMPOSITE, count, required_terms - is_true, operation_id, timeout_ms, now_ms)
        self._add_terms(columns, first_item, terms, targets, slot, terms - lost - required_terms)

    def _hold(self, usage: AccountUsage, columns: BatchColumns, first_item: i64, count: i64) -> vec[i64]:
        """The targets of an operation, each with one reference added."""
        targets = vec[i64]([-1] * count)
        has_new_keys = False
        place: i64 = 0
        while place < count:
            named = columns.places.at(first_item + place)
            if named < columns.first_key:
                targets[place] = self.partitions.get_or_create(columns.partitions[named], usage).index
            else:
                key = self.keys.get(columns.keys[named - columns.first_key])
                if key is None:
                    has_new_keys = True
                else:
                    self.keys.hold(key, usage)
                    targets[place] = key.index
            place += 1
        # Keys are made last: making one may evict an idle key, which must not be one that the operation names.
        place = 0
        while has_new_keys and place < count:
            if targets[place] < 0:
                name = columns.keys[columns.places.at(first_item + place) - columns.first_key]
                key = self.keys.get(name)
                if key is None:
                    key = self.keys.make(name)
                self.keys.hold(key, usage)
                targets[place] = key.index
            place += 1
        return targets

    def _add_terms(
        self, columns: BatchColumns, first_item: i64, terms: i64, targets: vec[i64], slot: i64, spare: i64
    ) -> None:
        """Add the items of an admitted operation."""
        last: i64 = -1
        flags = spare * ONE_SPARE
        place: i64 = 0
        while place < i64(len(targets)):
            target = targets[place]
            is_key = columns.places.at(first_item + place) >= columns.first_key
            required = required_of(columns, first_item + place, is_key)
            state = self._state_now(is_key, target, required)
            if is_key:
                flags += KEY
            if place >= terms:
                flags += UNLESS
            last = self.pending.add_item(slot, last, target, required, self._mark_now(is_key, target), flags, state)
            if state == UNRESOLVED:
                self._watch_target(is_key, target, last, required)
            flags = 0
            place += 1

    def _watch_target(self, is_key: bool, target: i64, item: i64, required: i64) -> None:
        if is_key:
            self.pending.watch(self.keys.composite_waits(self.keys.at(target)), COMPOSITE, item, required)
        else:
            self.watch(self.partitions.at(target), item, required)

    def _end_terms_at_once(
        self,
        owner: Owner,
        columns: BatchColumns,
        first_item: i64,
        terms: i64,
        targets: vec[i64],
        operation_id: i64,
        outcome: i64,
    ) -> None:
        completions = self.pending.completions_of(owner)
        count: i64 = i64(len(targets))
        place: i64 = 0
        while place < count:
            is_key = columns.places.at(first_item + place) >= columns.first_key
            required = required_of(columns, first_item + place, is_key)
            error = told(self._state_now(is_key, targets[place], required), place >= terms)
            mark = self._mark_now(is_key, targets[place])
            self._answer(completions, is_key, targets[place], error, required, mark, -1, -1.0)
            place += 1
        self.pending.end_at_once(completions, operation_id, COMPOSITE, outcome, count)

    # Results.

    def _answer(
        self,
        completions: Completions,
        is_key: bool,
        target: i64,
        error: i64,
        required: i64,
        mark: i64,
        remaining: i64,
        pace: float,
    ) -> None:
        """Record the result of a term, and release its target."""
        if is_key:
            key = self.keys.at(target)
            completions.add_item(key.name, error, required, mark, -1, remaining, pace)
            self.keys.release(key)
        else:
            partition = self.partitions.at(target)
            completions.add_item(partition.name, error, required, mark, partition.log_start_offset, remaining, pace)
            self.partitions.release(partition)

    def build_result(self, slot: i64, outcome: i64, waited_ms: i64, completions: Completions) -> bool:
        items = self.items
        failed = False
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            # The order of reads, `release` and `unwatch` is that of `Countdown.build_result`.
            after = i64(items.next[item])
            target = i64(items.target[item])
            flags = i64(items.epoch[item])
            is_key = flags & KEY != 0
            error = i64(items.error_code[item])
            mark = items.mark[item]
            required = items.required[item]
            remaining: i64 = -1
            pace = -1.0
            items.release(item)
            if error == UNRESOLVED:
                # The event that ends the operation may have decided more terms than the one that was visited first.
                # If one of them is in the failure arm, the operation fails.
                error = told(self._state_now(is_key, target, required), flags & UNLESS != 0)
                failed = failed or error == UNLESS_REACHED
                before = mark
                mark = self._mark_now(is_key, target)
                if outcome == EXPIRED and before >= 0:
                    remaining = remaining_ms(before, mark, required, waited_ms)
                    pace = pace_per_second(before, mark, waited_ms)
                waits = self.keys.at(target).composite_waits if is_key else self.partitions.at(target).waits[COMPOSITE]
                self.pending.unwatch(waits, COMPOSITE)
            self._answer(completions, is_key, target, error, required, mark, remaining, pace)
            item = after
        return failed

    # Changes of partitions and keys.

    def settle(self, item: i64, error: i64, mark: i64, now_ms: i64) -> None:
        items = self.items
        is_unless = i64(items.epoch[item]) & UNLESS != 0
        if error == NONE and not is_unless:
            self.pending.resolve(item, NONE, mark, now_ms)
            return
        slot = i64(items.slot[item])
        items.error_code[item] = i16(told(error, is_unless))
        items.mark[item] = mark
        self.pending.work_total += 1
        first = i64(self.pending.operations.first_item[slot])
        if is_unless:
            if error == NONE:
                self.pending.end(slot, FAILED, now_ms)
                return
        elif i64(items.epoch[first]) < ONE_SPARE:
            self.pending.end(slot, FAILED, now_ms)
            return
        else:
            items.epoch[first] = i32(i64(items.epoch[first]) - ONE_SPARE)
        self.pending.note_progress(slot)

    def wake_key(self, key: SignalKey, now_ms: i64) -> None:
        """The key was signalled: its terms whose count is reached are true."""
        waits = key.composite_waits
        if waits is None:
            return
        while True:
            ref = waits.pop_reached(key.count)
            if ref < 0:
                return
            if ref_is_live(ref, self.items.generation):
                self.pending.popped(waits, COMPOSITE)
                self.pending.evaluations_by_kind[COMPOSITE] += 1
                self.settle(ref_item(ref), NONE, key.count, now_ms)

    # Stale marks.

    def must_come(self, item: i64) -> bool:
        return i64(self.items.error_code[item]) == UNRESOLVED and i64(self.items.epoch[item]) & UNLESS == 0

    def spare(self, slot: i64) -> i64:
        return i64(self.items.epoch[i64(self.pending.operations.first_item[slot])]) // ONE_SPARE

    # Views and snapshots.

    def partition_of(self, item: i64) -> Partition | None:
        if i64(self.items.epoch[item]) & KEY != 0:
            return None
        return self.partitions.at(i64(self.items.target[item]))

    def name_of(self, item: i64) -> AsGiven:
        partition = self.partition_of(item)
        return self.keys.at(i64(self.items.target[item])).name if partition is None else partition.name

    def reached(self, slot: i64, item: i64) -> i64:
        return self._mark_now(i64(self.items.epoch[item]) & KEY != 0, i64(self.items.target[item]))

    def arms(self, slot: i64) -> tuple[int, int]:
        required_terms = int(i64(self.pending.operations.items_left[slot]))
        unless_count = 0
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            if i64(self.items.epoch[item]) & UNLESS != 0:
                unless_count += 1
            elif i64(self.items.error_code[item]) == NONE:
                required_terms += 1
            item = i64(self.items.next[item])
        return required_terms, unless_count

    def check(self, slot: i64) -> None:
        open_terms: i64 = 0
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            if self.must_come(item):
                open_terms += 1
            item = i64(self.items.next[item])
        left = i64(self.pending.operations.items_left[slot])
        spare = self.spare(slot)
        assert left > 0, f"composite in slot {slot} has all its terms"
        assert open_terms == left + spare, f"slot {slot}: {open_terms} terms, {left} needed, {spare} to spare"

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        last: i64 = -1
        for item in range(place.item, place.item + saved.item_counts[place.row]):
            error = saved.error_codes[item]
            required = saved.required[item]
            flags = saved.epochs[item]
            is_key = flags & KEY != 0
            target = self._hold_saved_key(saved, item) if is_key else self.mention_again(saved, item).index
            last = self.pending.add_item(slot, last, target, required, saved.marks[item], flags, error)
            if error == UNRESOLVED:
                self._watch_target(is_key, target, last, required)
        return False

    def _hold_saved_key(self, saved: SavedOperations, item: i64) -> i64:
        name: AsGiven = saved.names[saved.places[item]]
        key = self.keys.get(name[0])
        if key is None:
            key = self.keys.make(name[0])
        self.keys.hold(key, self.keys.unowned)
        return key.index


def required_of(columns: BatchColumns, item: i64, is_key: bool) -> i64:
    """The offset or count of a term; without a value, 0 for a partition and 1 for a key."""
    required = columns.offsets.at(item)
    return required if required >= 0 else 1 if is_key else 0


def told(state: i64, is_unless: bool) -> i64:
    """The error code that a result has for a term in this state."""
    if state == UNRESOLVED:
        return REQUEST_TIMED_OUT
    return UNLESS_REACHED if state == NONE and is_unless else state
