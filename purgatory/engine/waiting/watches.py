"""The watches of one key, ordered by threshold: the value that the key must reach before the watcher can possibly end.

An entry is (threshold, ref). A ref names an item of the owner's tables and the item's generation, so a stale entry can
be distinguished from its successor without unlinking it: entries of ended items stay until they are passed or
compacted.

Thresholds nearly always rise, so the entries are a sorted run in two packed arrays, appended at the tail and popped at
the head. A threshold that is a little out of order (at most SHIFT_MAX entries from the tail) is shifted into the run;
any other goes to an overflow heap, so that even a falling series costs O(log n) per entry.

| operation                     | cost                                                     |
|-------------------------------|----------------------------------------------------------|
| add, rising threshold         | O(1)                                                     |
| add, out of order             | O(log n)                                                 |
| pop_reached                   | O(1) from the run, O(log n) from the overflow; amortised |
| compact                       | O(entries); amortised O(1) for each entry added          |
| bytes for an entry            | 16 in the run, 24 in the overflow                        |

The order is exact: by threshold, and equal thresholds in order of insertion. An entry goes to the overflow only while
more than SHIFT_MAX entries of the run have greater thresholds. None of those can be popped before it, and compaction
keeps them even if they are dead. So a later entry with an equal threshold goes to the overflow too, behind it, and
equal entries in the run are always older.
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from purgatory.engine.waiting.heap import PackedHeap

GENERATION_BITS: Final = 31
GENERATION_MASK: Final[i64] = 2**31 - 1

SHIFT_MAX: Final[i64] = 16
"""How far from the tail of the run an out-of-order threshold may be shifted in."""

POPPED: Final[i64] = -1
"""Replaces the ref of an overflow entry that was popped."""

SLACK: Final[i64] = 64
"""Up to this many dead entries, or popped entries at the head of the run, are not worth a rebuild."""


def make_ref(item: i64, generation: i64) -> i64:
    """A reference to an item (0 to 2**31 - 1) in its current generation; never negative."""
    # 31 bits each, so a ref is below 2**62 and never negative: -1 is free to mean "none".
    return (item << GENERATION_BITS) + (generation & GENERATION_MASK)


def ref_item(ref: i64) -> i64:
    """The item of a ref."""
    return ref >> GENERATION_BITS


def ref_is_live(ref: i64, generations: vec[i32]) -> bool:
    """Whether the item still has the generation for which the ref was made. `generations` is indexed by item."""
    return i64(generations[ref >> GENERATION_BITS]) & GENERATION_MASK == ref & GENERATION_MASK


class WatchList:
    """Entries (threshold, ref) of one key.

    `live` counts the entries whose items are unresolved: `add` raises it, and the owner calls `forget` exactly once for
    each entry whose item has been resolved, popped or not. Nothing else changes it.
    """

    def __init__(self) -> None:
        self.live: i64 = 0
        self._thresholds: vec[i64] = vec[i64]()
        self._refs: vec[i64] = vec[i64](capacity=2)
        self._head: i64 = 0
        self._overflow: PackedHeap = PackedHeap()
        self._overflow_refs: vec[i64] = vec[i64]()

    def __len__(self) -> int:
        """Stored entries, including stale ones."""
        return i64(len(self._refs)) - self._head + self._overflow.size

    def add(self, threshold: i64, ref: i64) -> None:
        """Store an entry and count it as live."""
        self.live += 1
        end: i64 = i64(len(self._refs))
        # An empty run implies an empty overflow, so any threshold may start it.
        if end == self._head or threshold >= self._thresholds[end - 1]:
            self._thresholds = append(self._thresholds, threshold)
            self._refs = append(self._refs, ref)
        elif self._is_near_tail(threshold):
            self._shift_in(threshold, ref)
        else:
            self._overflow_add(threshold, ref)

    def forget(self) -> None:
        """Count one entry less as live: its item has been resolved."""
        assert self.live > 0, f"forget without a live entry, {len(self)} stored"
        self.live -= 1

    def pop_reached(self, mark: i64) -> i64:
        """Remove and return the next ref whose threshold is at or below `mark`; -1 if there is none."""
        head: i64 = self._head
        # The overflow has refs while it has entries. Checking them instead of the heap avoids touching another object
        # that is rarely in the cache. Strictly below: of equal thresholds, those in the run are always older (see
        # above). The run is never empty while the overflow is not, so there is a head to compare with.
        if len(self._overflow_refs) > 0 and self._overflow.top_key() < self._thresholds[head]:
            # The head of the run is higher still.
            if self._overflow.top_key() > mark:
                return -1
            return self._overflow_pop()
        if head == i64(len(self._refs)) or self._thresholds[head] > mark:
            return -1
        ref: i64 = self._refs[head]
        self._head = head + 1
        # Copying the rest costs less than the pops since the last copy, so a pop stays O(1) amortised.
        if head > SLACK and head * 2 > i64(len(self._refs)):
            self._drop_head()
        return ref

    def wants_compaction(self) -> bool:
        """Whether more than half of the stored entries are dead, and more than SLACK."""
        return i64(len(self._refs)) - self._head + self._overflow.size > 2 * self.live + SLACK

    def compact(self, generations: vec[i32]) -> i64:
        """Drop the entries whose item has another generation now, and return how many. The order is kept."""
        # Run and overflow are not merged: a million entries take 7 to 20 ms, whereas a heap would return them one by
        # one.
        before: i64 = i64(len(self._refs)) - self._head + self._overflow.size
        if self._overflow.size > 0:
            # First, because it may empty the overflow; then the tail of the run can be compacted too.
            self._pack_overflow(generations, True)
        thresholds = self._thresholds
        refs = self._refs
        place: i64 = i64(len(refs))
        if self._overflow.size > 0:
            place -= SHIFT_MAX + 1  # kept, dead or not: the order of equal thresholds depends on them
            assert place >= self._head, f"{place + SHIFT_MAX + 1} entries, head {self._head}, beside an overflow"
        # Compact towards the tail, in place; the free space is then at the head.
        kept: i64 = place
        while place > self._head:
            place -= 1
            if ref_is_live(refs[place], generations):
                kept -= 1
                thresholds[kept] = thresholds[place]
                refs[kept] = refs[place]
        self._head = kept
        self._drop_head()
        return before - (i64(len(self._refs)) + self._overflow.size)

    def drain(self) -> list[int]:
        """Empty the list. Returns all refs, including stale ones, in order. `live` is left to the owner's `forget`."""
        refs: list[int] = []
        while True:
            ref: i64 = self._pop_any()
            if ref < 0:
                break
            refs.append(ref)
        self._thresholds = vec[i64]()
        self._refs = vec[i64]()
        self._head = 0
        return refs

    def _pop_any(self) -> i64:
        """Remove and return the first ref, whatever its threshold, without compacting the arrays; -1: none."""
        head: i64 = self._head
        if self._overflow.size > 0 and self._overflow.top_key() < self._thresholds[head]:
            return self._overflow_pop()
        if head == i64(len(self._refs)):
            return -1
        self._head = head + 1
        return self._refs[head]

    def _drop_head(self) -> None:
        """Free the memory of the popped head of the run."""
        # A slice is a copy. Local names for the arrays, as in `compact`, must not be used after this call.
        self._thresholds = self._thresholds[self._head :]
        self._refs = self._refs[self._head :]
        self._head = 0

    def _is_near_tail(self, threshold: i64) -> bool:
        """Whether a threshold below the run's last one belongs at most SHIFT_MAX entries from the tail."""
        place: i64 = i64(len(self._refs)) - SHIFT_MAX - 1
        return place < self._head or self._thresholds[place] <= threshold

    def _shift_in(self, threshold: i64, ref: i64) -> None:
        """Insert into the run, behind equal thresholds."""
        # An insertion sort step: at most SHIFT_MAX entries move, which up to that number is cheaper than a heap.
        self._thresholds = append(self._thresholds, threshold)
        self._refs = append(self._refs, ref)
        thresholds = self._thresholds
        refs = self._refs
        place: i64 = i64(len(refs)) - 1
        while place > self._head and thresholds[place - 1] > threshold:
            thresholds[place] = thresholds[place - 1]
            refs[place] = refs[place - 1]
            place -= 1
        thresholds[place] = threshold
        refs[place] = ref

    def _overflow_add(self, threshold: i64, ref: i64) -> None:
        """Push onto the heap by (threshold, position in `_overflow_refs`). Positions rise with insertion, so equal
        thresholds keep their order. Positions of popped entries are holes until the next renumbering.
        """
        if i64(len(self._overflow_refs)) > 2 * self._overflow.size + SLACK:
            self._pack_overflow(vec[i32](), False)
        self._overflow.push(threshold, i64(len(self._overflow_refs)))
        self._overflow_refs = append(self._overflow_refs, ref)

    def _overflow_pop(self) -> i64:
        overflow = self._overflow
        place: i64 = overflow.top_value()
        ref: i64 = self._overflow_refs[place]
        self._overflow_refs[place] = POPPED
        overflow.pop()
        # Positions start at 0 again, and `pop_reached` recognises an empty overflow by this array.
        if overflow.size == 0:
            self._overflow_refs = vec[i64]()
        return ref

    def _pack_overflow(self, generations: vec[i32], only_live: bool) -> None:
        """Close the holes of popped entries, because otherwise a list that never becomes empty would grow forever; with
        `only_live`, drop dead entries too.

        Positions keep their order, so equal thresholds stay in order of insertion.
        """
        old_refs = self._overflow_refs
        count: i64 = i64(len(old_refs))
        numbers = vec[i64](capacity=count)
        refs = vec[i64](capacity=self._overflow.size)
        place: i64 = 0
        while place < count:
            ref = old_refs[place]
            if ref == POPPED or (only_live and not ref_is_live(ref, generations)):
                numbers = append(numbers, -1)
            else:
                numbers = append(numbers, i64(len(refs)))
                refs = append(refs, ref)
            place += 1
        self._overflow.renumber(numbers)
        self._overflow_refs = refs
