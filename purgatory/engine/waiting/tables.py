"""Pending operations as packed arrays: a table of operations by slot, a table of their items, and an index per owner.

An *item* is one partition (or key) of one operation. The items of an operation are linked in the order of the request.
Both tables reuse freed rows. An item's generation changes when it is freed or watched again, so that a stale watch
entry cannot affect its successor. These tables contain no rules.

A full column is copied into one of twice the length; at half a million rows that takes 3 to 5 ms for 8 bytes per row.
If all columns were full at the same row, it would take 35 ms within one registration. So the columns here, in the wheel
and in the watches of one key start with different capacities, chosen such that no more than 8 bytes per row are copied
at any one row.

A pending operation with one item takes about 130 bytes, including timer and watch (see `make bench`).
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i16, i32, i64, u8

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.completions import Completions

UNRESOLVED: Final = -32_000
"""Error code of an item that is still waited for; reported to callers as 7."""

FREE: Final = 0
"""Kind of a free slot."""


class OperationTable:
    """Rows of pending operations. `items_left`: items left to resolve; not used by fetches."""

    def __init__(self) -> None:
        self.size: i64 = 0
        self.kind: vec[u8] = vec[u8](capacity=16)
        self.owner_id: vec[i32] = vec[i32](capacity=17)
        self.operation_id: vec[i64] = vec[i64](capacity=18)
        self.registered_ms: vec[i64] = vec[i64](capacity=20)
        self.first_item: vec[i32] = vec[i32](capacity=21)
        self.items_left: vec[i32] = vec[i32](capacity=22)
        self._free: i64 = -1

    def take(self, kind: i64, owner_id: i64, operation_id: i64, registered_ms: i64, items_left: i64) -> i64:
        """Allocate a slot for a new operation, without items."""
        slot = self._free
        if slot >= 0:
            self._free = i64(self.first_item[slot])
        else:
            slot = self.size
            self.size = slot + 1
            # `append` may return another array: assign each column again, and keep no alias across `take`.
            self.kind = append(self.kind, u8(FREE))
            self.owner_id = append(self.owner_id, i32(0))
            self.operation_id = append(self.operation_id, 0)
            self.registered_ms = append(self.registered_ms, 0)
            self.first_item = append(self.first_item, i32(-1))
            self.items_left = append(self.items_left, i32(0))
        self.kind[slot] = u8(kind)
        self.owner_id[slot] = i32(owner_id)
        self.operation_id[slot] = operation_id
        self.registered_ms[slot] = registered_ms
        self.first_item[slot] = i32(-1)
        self.items_left[slot] = i32(items_left)
        return slot

    def release(self, slot: i64) -> None:
        """Free a slot."""
        assert i64(self.kind[slot]) != FREE, f"slot {slot} is free already"
        # The other columns keep their values, so an id that is found in a row proves nothing without the kind
        # (`Owner._is_pending`).
        self.kind[slot] = u8(FREE)
        # The free list is linked through a column that a free row does not need.
        self.first_item[slot] = i32(self._free)
        self._free = slot

    def check(self, used: int) -> None:
        """Assert that each row is either one of the `used` ones or in the free list, once."""
        free = 0
        row = self._free
        while row >= 0:
            free += 1
            assert free <= self.size, "the free list has a cycle"
            assert i64(self.kind[row]) == FREE, f"slot {row} is in the free list and in use"
            row = i64(self.first_item[row])
        assert free + used == self.size, f"{used} rows are used and {free} free, of {self.size}"


class ItemTable:
    """Rows of items. `mark`: the mark at registration; once resolved, the mark that was reached."""

    def __init__(self) -> None:
        self.size: i64 = 0
        self.generation: vec[i32] = vec[i32](capacity=17)
        self.slot: vec[i32] = vec[i32](capacity=19)
        self.next: vec[i32] = vec[i32](capacity=21)
        self.target: vec[i32] = vec[i32](capacity=25)
        self.required: vec[i64] = vec[i64](capacity=24)
        self.mark: vec[i64] = vec[i64](capacity=26)
        self.epoch: vec[i32] = vec[i32](capacity=30)
        self.error_code: vec[i16] = vec[i16](capacity=16)
        self._free: i64 = -1

    def take(self, slot: i64, target: i64, required: i64, mark: i64, epoch: i64, error_code: i64) -> i64:
        """Allocate a row for an item of `slot` on `target` (the index of its partition or key), not linked yet."""
        item = self._free
        if item >= 0:
            self._free = i64(self.next[item])
        else:
            item = self.size
            self.size = item + 1
            self.generation = append(self.generation, i32(0))
            self.slot = append(self.slot, i32(0))
            self.next = append(self.next, i32(-1))
            self.target = append(self.target, i32(0))
            self.required = append(self.required, 0)
            self.mark = append(self.mark, 0)
            self.epoch = append(self.epoch, i32(-1))
            self.error_code = append(self.error_code, i16(0))
        # The generation is not reset: entries of the item that had this row before may still be in watch lists, and
        # must stay stale.
        self.slot[item] = i32(slot)
        self.next[item] = i32(-1)
        self.target[item] = i32(target)
        self.required[item] = required
        self.mark[item] = mark
        self.epoch[item] = i32(epoch)
        self.error_code[item] = i16(error_code)
        return item

    def renew(self, item: i64) -> i64:
        """Start a new generation: any entry that watches the item becomes stale."""
        # Wraps within the 31 bits of a ref: a stale entry would have to stay in a list for 2**31 renewals of its row to
        # be mistaken for a live one.
        generation = (i64(self.generation[item]) + 1) & 0x7FFF_FFFF
        self.generation[item] = i32(generation)
        return generation

    def release(self, item: i64) -> None:
        """Free a row; entries that still watch it become stale."""
        self.renew(item)
        self.slot[item] = i32(-1)
        self.next[item] = i32(self._free)
        self._free = item

    def check(self, used: int) -> None:
        """Assert that each row is either one of the `used` ones or in the free list, once."""
        free = 0
        row = self._free
        while row >= 0:
            free += 1
            assert free <= self.size, "the free list has a cycle"
            assert i64(self.slot[row]) == -1, f"item {row} is in the free list and in use"
            row = i64(self.next[row])
        assert free + used == self.size, f"{used} rows are used and {free} free, of {self.size}"


class Owner:
    """The owner of registered operations. Its ids are ascending, so that a repeated id is detected by one comparison
    and a pending operation is found by binary search.
    """

    def __init__(self, owner_id: int, usage: AccountUsage) -> None:
        self.owner_id: Final = owner_id
        self.usage: Final = usage
        """Usage of its account."""
        self.highest_operation_id: i64 = 0
        self.pending: i64 = 0
        self.closed = False
        self.completions: Completions | None = None
        """Operations that ended since completions were last taken."""
        self.ended_last: i64 = 0
        """How many operations had ended when completions were last taken: an estimate for the next time."""
        self.items_ended_last: i64 = 0
        """How many items they had."""
        self.ids: vec[i64] = vec[i64](capacity=6)
        self.slots: vec[i32] = vec[i32](capacity=12)
        self._ended: i64 = 0
        """No operation before this index of `ids` is pending: where ending all operations in slices continues."""

    def note(self, operation_id: i64, slot: i64, operations: OperationTable) -> None:
        """Record the slot of a newly pending operation. Ended ones are dropped once they outnumber the pending ones."""
        if i64(len(self.ids)) > 2 * self.pending + 64:
            self._compact(operations)
        # Ascending without a search, because ids of an owner only rise. A restore is the exception, see `put_in_order`.
        self.ids = append(self.ids, operation_id)
        self.slots = append(self.slots, i32(slot))
        self.pending += 1

    def _compact(self, operations: OperationTable) -> None:
        # In place and in order: ids are ascending, and `find` is a binary search. This runs when less than half are
        # pending, so the copy is O(1) per recorded id.
        ids = self.ids
        slots = self.slots
        kept: i64 = 0
        place: i64 = 0
        count: i64 = i64(len(ids))
        while place < count:
            if self._is_pending(place, operations):
                ids[kept] = ids[place]
                slots[kept] = slots[place]
                kept += 1
            place += 1
        self.ids = ids[:kept]
        self.slots = slots[:kept]
        self._ended = 0

    def _is_pending(self, place: i64, operations: OperationTable) -> bool:
        # Slots are reused, by other owners too: only all three values together identify this operation.
        slot = i64(self.slots[place])
        return (
            operations.operation_id[slot] == self.ids[place]
            and i64(operations.kind[slot]) != FREE
            and i64(operations.owner_id[slot]) == self.owner_id
        )

    def find(self, operation_id: i64, operations: OperationTable) -> i64:
        """Slot of a pending operation; -1 if it is not pending."""
        low = self._first_place(operation_id)
        if low < i64(len(self.ids)) and self.ids[low] == operation_id and self._is_pending(low, operations):
            return i64(self.slots[low])
        return -1

    def _first_place(self, operation_id: i64) -> i64:
        """Index of the first id that is not below this one."""
        low: i64 = 0
        high: i64 = i64(len(self.ids))
        while low < high:
            middle: i64 = (low + high) // 2
            if self.ids[middle] < operation_id:
                low = middle + 1
            else:
                high = middle
        return low

    def put_in_order(self) -> None:
        """Sort the ids after a restore, which may record them out of order: `find` needs the order."""
        count: i64 = i64(len(self.ids))
        place: i64 = 1
        while place < count and self.ids[place - 1] < self.ids[place]:
            place += 1
        if place >= count:
            return  # the usual case; to sort a million ids takes a quarter of their restore
        pairs = sorted([(int(self.ids[place]), int(self.slots[place])) for place in range(len(self.ids))])
        self.ids = vec[i64]([pair[0] for pair in pairs])
        self.slots = vec[i32]([i32(pair[1]) for pair in pairs])
        self._ended = 0

    def first_pending(self, up_to_id: i64, operations: OperationTable) -> i64:
        """Slot of the pending operation with the lowest id; -1 if none is pending up to `up_to_id`."""
        place = self._ended
        count: i64 = i64(len(self.ids))
        while place < count and not self._is_pending(place, operations):
            place += 1
        # No id before this place becomes pending again, so ending all operations in slices costs O(ids) in total.
        self._ended = place
        return i64(self.slots[place]) if place < count and self.ids[place] <= up_to_id else -1

    def pending_slots_above(self, operation_id: i64, operations: OperationTable) -> list[int]:
        """Slots of all pending operations with ids above this one, in order of registration."""
        found: list[int] = []
        place = self._first_place(operation_id + 1)
        count: i64 = i64(len(self.ids))
        while place < count:
            if self._is_pending(place, operations):
                found.append(i64(self.slots[place]))
            place += 1
        return found
