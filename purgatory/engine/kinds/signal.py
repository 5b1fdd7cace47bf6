"""Signal: waits until all (or any) of its keys have been signalled often enough."""

from typing import Final, final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import AsGiven
from purgatory.engine.codes import EXPIRED, NONE, REQUEST_TIMED_OUT, SATISFIED, SIGNAL
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

__all__ = ["SignalKind"]


@final
class SignalKind(Kind):
    """The only kind whose targets are keys. A key is watched at the count that it must reach, and never fails."""

    def __init__(self, pending: PendingOperations) -> None:
        super().__init__(SIGNAL, pending.partitions, pending.items, names_partitions=False, names_keys=True)
        self.pending: Final = pending
        self.keys: Final = pending.keys

    def begin(self, owner: Owner, columns: BatchColumns, row: i64, first_item: i64, now_ms: i64) -> None:
        held = self._hold_keys(owner.usage, columns, row, first_item)
        from_now = columns.column("from_now").at(row) != 0
        any_key = columns.column("any_key").at(row) != 0
        operation_id = columns.operation_ids.at(row)
        required: list[i64] = []
        left = 0
        for place, key in enumerate(held):
            # Cannot overflow: both are below OFFSET_MAX.
            wanted = columns.offsets.at(first_item + place)
            if from_now:
                wanted += key.count
            required.append(wanted)
            if key.count < wanted:
                left += 1
        pending = self.pending
        satisfied = left == 0 or (any_key and left < len(held))
        if satisfied or columns.timeouts_ms.at(row) == 0:
            completions = pending.completions_of(owner)
            for place, key in enumerate(held):
                error = NONE if key.count >= required[place] else REQUEST_TIMED_OUT
                completions.add_item(key.name, error, required[place], key.count, -1, -1, -1.0)
                self.keys.release(key)
            pending.end_at_once(completions, operation_id, SIGNAL, SATISFIED if satisfied else EXPIRED, len(held))
            return
        # The first key to be resolved brings `items_left` to 0; the other items stay unresolved and answer 7.
        if any_key:
            left = 1
        slot = pending.admit(owner, SIGNAL, len(held), left, operation_id, columns.timeouts_ms.at(row), now_ms)
        item: i64 = -1
        for place, key in enumerate(held):
            error_code: i64 = NONE if key.count >= required[place] else UNRESOLVED
            item = pending.add_item(slot, item, key.index, required[place], key.count, -1, error_code)
            if error_code == UNRESOLVED:
                pending.watch(key.waits, SIGNAL, item, required[place])

    def _hold_keys(self, holder: AccountUsage, columns: BatchColumns, row: i64, first_item: i64) -> list[SignalKey]:
        """The keys of an operation, each with one reference added."""
        stop = first_item + columns.item_counts.at(row)
        names = [columns.keys[columns.places.at(item)] for item in range(first_item, stop)]
        # Hold known keys first: creating a key may evict the idle key that was signalled longest ago, which must not be
        # one that this operation names further on.
        for name in names:
            key = self.keys.get(name)
            if key is not None:
                self.keys.hold(key, holder)
        held: list[SignalKey] = []
        for name in names:
            key = self.keys.get(name)
            if key is None:
                key = self.keys.make(name)
                self.keys.hold(key, holder)
            held.append(key)
        return held

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
            remaining = -1
            pace = -1.0
            reached = mark
            items.release(item)
            if error == UNRESOLVED:
                error = REQUEST_TIMED_OUT
                reached = key.count
                if outcome == EXPIRED:
                    remaining = remaining_ms(mark, key.count, required, waited_ms)
                    pace = pace_per_second(mark, key.count, waited_ms)
                self.pending.unwatch(key.waits, SIGNAL)
            completions.add_item(key.name, error, required, reached, -1, remaining, pace)
            self.keys.release(key)
            item = after
        return False

    def wake_key(self, key: SignalKey, now_ms: i64) -> None:
        """End the operations whose count is reached, after the key was signalled."""
        items = self.pending.items
        while True:
            ref = key.waits.pop_reached(key.count)
            if ref < 0:
                return
            if ref_is_live(ref, items.generation):
                self.pending.popped(key.waits, SIGNAL)
                self.pending.evaluations_by_kind[SIGNAL] += 1
                self.pending.resolve(ref_item(ref), NONE, key.count, now_ms)

    def partition_of(self, item: i64) -> Partition | None:
        return None

    def name_of(self, item: i64) -> AsGiven:
        return self.keys.at(i64(self.items.target[item])).name

    def reached(self, slot: i64, item: i64) -> i64:
        return self.keys.at(i64(self.items.target[item])).count

    def restore(self, saved: SavedOperations, place: SavedPlace, slot: i64) -> bool:
        last: i64 = -1
        for item in range(place.item, place.item + saved.item_counts[place.row]):
            error = saved.error_codes[item]
            required = saved.required[item]
            name: AsGiven = saved.names[saved.places[item]]
            key = self.keys.get(name[0])
            if key is None:
                key = self.keys.make(name[0])
            self.keys.hold(key, self.keys.unowned)
            last = self.pending.add_item(slot, last, key.index, required, saved.marks[item], -1, error)
            if error == UNRESOLVED:
                self.pending.watch(key.waits, SIGNAL, last, required)
        return False
