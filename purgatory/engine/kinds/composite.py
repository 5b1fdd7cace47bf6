"""Composite: waits until enough of its terms are true, and fails as soon as a term of its failure arm is.

A term is a partition whose high watermark must reach an offset, or a key whose signals must reach a count. A term that
was true once stays true. A term is *lost* when its partition cannot be waited for any longer; the operation fails when
more terms are lost than it can spare. Names may be repeated, within an arm and in both.

`RequestedTerms` are the terms as a row of a batch has them, and the partitions and keys that they name.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i16, i32, i64

from purgatory.engine import codes
from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.kinds.countdown import Countdown, partition_fault
from purgatory.engine.kinds.pace import pace_per_second, remaining_ms
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import Partitions, SignalKey, SignalKeys
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED, Owner
from purgatory.engine.waiting.watches import ref_is_live, ref_item


class RequestedTerms:
    """The terms of a row, by place: first those that must become true, then the failure arm."""

    def __init__(self, columns: BatchColumns, row: i64, first_item: i64) -> None:
        self.columns: Final = columns
        self.first_item: Final[i64] = first_item
        self.count: Final[i64] = columns.item_counts.at(row)
        self.unless_from: Final[i64] = self.count - columns.column("unless_count").at(row)
        """The first place of the failure arm."""
        required_terms = columns.column("required_terms").at(row)
        self.required_terms: Final[i64] = self.unless_from if required_terms == 0 else required_terms
        self.targets: Final[vec[i64]] = vec[i64]([-1] * self.count)
        """Indexes of the partitions and keys, once `hold` or `hold_known` has found them."""

    def is_key(self, place: i64) -> bool:
        """Whether a term names a key, not a partition."""
        return self.columns.places.at(self.first_item + place) >= self.columns.first_key

    def required(self, place: i64) -> i64:
        """The offset or count of a term; without a value, 0 for a partition and 1 for a key."""
        required = self.columns.offsets.at(self.first_item + place)
        return required if required >= 0 else 1 if self.is_key(place) else 0

    def hold(self, partitions: Partitions, keys: SignalKeys, usage: AccountUsage) -> None:
        """Find or make what valid terms name, and add a reference for each of them."""
        key_places: list[i64] = []
        names: list[str] = []
        place: i64 = 0
        while place < self.count:
            named = self.columns.places.at(self.first_item + place)
            if named < self.columns.first_key:
                self.targets[place] = partitions.get_or_create(self.columns.partitions[named], usage).index
            else:
                key_places.append(place)
                names.append(self.columns.keys[named - self.columns.first_key])
            place += 1
        for index, key in enumerate(keys.get_or_create_all(names, usage)):
            self.targets[key_places[index]] = key.index

    def hold_known(self, partitions: Partitions, keys: SignalKeys, usage: AccountUsage) -> bool:
        """As `hold`, for terms of a plain batch that were not checked.

        Names that are known are valid, and nothing has to be made for them. False: nothing was done; use the full
        checks, which also word the refusals.
        """
        if self.unless_from < 1 or self.required_terms > self.unless_from:
            return False
        idle: i64 = 0
        place: i64 = 0
        while place < self.count:
            item = self.first_item + place
            named = self.columns.places.at(item)
            if named < self.columns.first_key:
                partition = self.columns.known_partition(item)
                if partition is None:
                    return False
                self.targets[place] = partition.index
            else:
                key = keys.get(self.columns.keys[named - self.columns.first_key])
                if key is None or self.columns.offsets.at(item) == 0:
                    return False
                if key.references == 0:
                    idle += 1
                self.targets[place] = key.index
            place += 1
        # Idle keys count in the share of the account as soon as its operation holds them.
        if usage.keys + idle > usage.keys_max:
            return False
        place = 0
        while place < self.count:
            if self.is_key(place):
                keys.hold(keys.at(self.targets[place]), usage)
            else:
                partitions.hold(partitions.at(self.targets[place]))
            place += 1
        return True


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
        super().__init__(codes.COMPOSITE, pending, answers_mark_of_now=True, names_keys=True)
        self.keys: Final = pending.keys

    def mark(self, partition: Partition) -> i64:
        return partition.high_watermark

    def state(self, partition: Partition, required: i64, epoch: i64) -> i64:
        fault = partition_fault(partition, -1)
        if fault != codes.NONE:
            return fault
        return UNRESOLVED if partition.high_watermark < 0 or partition.high_watermark < required else codes.NONE

    def _state_now(self, is_key: bool, target: i64, required: i64, is_unless: bool) -> i64:
        """NONE if a term is true, UNRESOLVED if it may become so, else why it is lost."""
        if is_key:
            key = self.keys.at(target)
            # The failure arm asks only whether the key was signalled: a failed signal is one too.
            if key.failed and not is_unless:
                return codes.SIGNAL_FAILED
            return codes.NONE if key.count >= required else UNRESOLVED
        return self.state(self.partitions.at(target), required, -1)

    def _mark_now(self, is_key: bool, target: i64) -> i64:
        return self.keys.at(target).count if is_key else self.partitions.at(target).high_watermark

    # Registration.

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> i64:
        terms = RequestedTerms(columns, row, first_item)
        terms.hold(self.partitions, self.keys, owner.usage)
        return self._begin(owner, terms, columns.operation_ids.at(row), columns.timeouts_ms.at(row), now_ms)

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
    ) -> i64:
        terms = RequestedTerms(columns, row, first_item)
        if not terms.hold_known(self.partitions, self.keys, owner.usage):
            return UNRESOLVED
        return self._begin(owner, terms, operation_id, timeout_ms, now_ms)

    def _begin(self, owner: Owner, terms: RequestedTerms, operation_id: i64, timeout_ms: i64, now_ms: i64) -> i64:
        """Evaluate terms that are held."""
        is_true: i64 = 0
        lost: i64 = 0
        failed = False
        place: i64 = 0
        while place < terms.count:
            is_unless = place >= terms.unless_from
            state = self._state_now(terms.is_key(place), terms.targets[place], terms.required(place), is_unless)
            if is_unless:
                failed = failed or state == codes.NONE
            elif state == codes.NONE:
                is_true += 1
            elif state != UNRESOLVED:
                lost += 1
            place += 1
        spare = terms.unless_from - lost - terms.required_terms
        left = terms.required_terms - is_true
        if timeout_ms > 0 and not failed and spare >= 0 and left > 0:
            slot = self.pending.admit(owner, codes.COMPOSITE, terms.count, left, operation_id, timeout_ms, now_ms)
            self._add_terms(terms, slot, spare)
            return codes.PENDING
        self._end_terms_at_once(owner, terms)
        return codes.FAILED if failed or spare < 0 else codes.EXPIRED if left > 0 else codes.SATISFIED

    def _add_terms(self, terms: RequestedTerms, slot: i64, spare: i64) -> None:
        """Add the items of an admitted operation."""
        last: i64 = -1
        flags = spare * ONE_SPARE
        place: i64 = 0
        while place < terms.count:
            target = terms.targets[place]
            is_key = terms.is_key(place)
            required = terms.required(place)
            is_unless = place >= terms.unless_from
            state = self._state_now(is_key, target, required, is_unless)
            if is_key:
                flags += KEY
            if is_unless:
                flags += UNLESS
            last = self.pending.add_item(slot, last, target, required, self._mark_now(is_key, target), flags, state)
            if state == UNRESOLVED:
                self._watch_target(is_key, target, last, required)
            flags = 0
            place += 1

    def _watch_target(self, is_key: bool, target: i64, item: i64, required: i64) -> None:
        if is_key:
            self.pending.watch(self.keys.composite_waits(self.keys.at(target)), codes.COMPOSITE, item, required)
        else:
            self.watch(self.partitions.at(target), item, required)

    def _end_terms_at_once(self, owner: Owner, terms: RequestedTerms) -> None:
        completions = self.pending.completions_of(owner)
        place: i64 = 0
        while place < terms.count:
            is_key = terms.is_key(place)
            target = terms.targets[place]
            required = terms.required(place)
            is_unless = place >= terms.unless_from
            error = result_code(self._state_now(is_key, target, required, is_unless), is_unless)
            self._answer(completions, is_key, target, error, required, self._mark_now(is_key, target), -1, -1.0)
            place += 1

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
            if error != codes.REQUEST_TIMED_OUT and key.value:
                completions.add_signal_value(key.value)
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
                is_unless = flags & UNLESS != 0
                error = result_code(self._state_now(is_key, target, required, is_unless), is_unless)
                failed = failed or error == codes.UNLESS_REACHED
                before = mark
                mark = self._mark_now(is_key, target)
                if outcome == codes.EXPIRED:
                    paced_ms = waited_ms
                    if before < 0 and not is_key and self.partitions.at(target).first_mark >= 0:
                        partition = self.partitions.at(target)
                        before = partition.first_mark
                        paced_ms += self.pending.operations.registered_ms[slot] - partition.first_ms
                    if before >= 0 and paced_ms > 0:
                        remaining = remaining_ms(before, mark, required, paced_ms)
                        pace = pace_per_second(before, mark, paced_ms)
                waits = (
                    self.keys.at(target).composite_waits
                    if is_key
                    else self.partitions.at(target).waits[codes.COMPOSITE]
                )
                self.pending.unwatch(waits, codes.COMPOSITE)
            self._answer(completions, is_key, target, error, required, mark, remaining, pace)
            item = after
        return failed

    # Changes of partitions and keys.

    def settle(self, item: i64, error: i64, mark: i64, now_ms: i64) -> None:
        items = self.items
        is_unless = i64(items.epoch[item]) & UNLESS != 0
        if error == codes.NONE and not is_unless:
            self.pending.resolve(item, codes.NONE, mark, now_ms)
            return
        slot = i64(items.slot[item])
        items.error_code[item] = i16(result_code(error, is_unless))
        items.mark[item] = mark
        self.pending.work_total += 1
        first = i64(self.pending.operations.first_item[slot])
        if is_unless:
            if error == codes.NONE:
                self.pending.end(slot, codes.FAILED, now_ms)
                return
        elif i64(items.epoch[first]) < ONE_SPARE:
            self.pending.end(slot, codes.FAILED, now_ms)
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
                self.pending.popped(waits, codes.COMPOSITE)
                self.pending.evaluations_by_kind[codes.COMPOSITE] += 1
                self.settle(ref_item(ref), codes.NONE, key.count, now_ms)

    def fail_key(self, key: SignalKey, now_ms: i64) -> None:
        """The key was signalled as failed: its terms are lost, and those of failure arms have its count."""
        waits = key.composite_waits
        if waits is None:
            return
        items = self.items
        # All entries are taken first: a term that still has to wait is added to this same list.
        for ref in waits.drain():
            if not ref_is_live(ref, items.generation):
                continue
            item = ref_item(ref)
            self.pending.popped(waits, codes.COMPOSITE)
            self.pending.evaluations_by_kind[codes.COMPOSITE] += 1
            state = self._state_now(True, key.index, items.required[item], i64(items.epoch[item]) & UNLESS != 0)
            if state == UNRESOLVED:
                self.pending.work_total += 1
                self.pending.watch(waits, codes.COMPOSITE, item, items.required[item])
            else:
                self.settle(item, state, key.count, now_ms)

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
            elif i64(self.items.error_code[item]) == codes.NONE:
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
            target: i64
            if is_key:
                name: AsGiven = saved.names[saved.places[item]]
                target = self.keys.get_or_create(name[0], self.keys.unowned).index
            else:
                target = self.mention_again(saved, item).index
            last = self.pending.add_item(slot, last, target, required, saved.marks[item], flags, error)
            if error == UNRESOLVED:
                self._watch_target(is_key, target, last, required)
        return False


def result_code(state: i64, is_unless: bool) -> i64:
    """The error code that a result has for a term in this state."""
    if state == UNRESOLVED:
        return codes.REQUEST_TIMED_OUT
    return codes.UNLESS_REACHED if state == codes.NONE and is_unless else state
