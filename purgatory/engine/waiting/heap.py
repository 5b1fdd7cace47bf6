"""A binary min-heap of (key, value) pairs of integers in two packed arrays.

`heapq` would keep a tuple and two integers for each pair: objects for the garbage collector to traverse. Here a pair is
16 bytes, and a push or pop is a native call that allocates nothing.

| operation        | cost     |
|------------------|----------|
| push, pop        | O(log n) |
| top_key/value    | O(1)     |
| renumber         | O(n)     |

Pairs with equal keys come out smaller value first, so the order never depends on the history of the heap.
"""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

SHRINK_ABOVE: Final = 1024
"""Arrays longer than this are freed when the heap becomes empty."""


class PackedHeap:
    """Binary min-heap of (key, value), both i64. `size` is the number of pairs; read it, never set it."""

    def __init__(self) -> None:
        self.size: i64 = 0
        self._keys: vec[i64] = vec[i64]()
        self._values: vec[i64] = vec[i64]()

    def __len__(self) -> int:
        return self.size

    def push(self, key: i64, value: i64) -> None:
        """Add a pair. Duplicate pairs are allowed."""
        hole: i64 = self.size
        # After pops the arrays are longer than `size`; they grow only when no place is left.
        if hole == i64(len(self._keys)):
            self._keys = append(self._keys, key)
            self._values = append(self._values, value)
        self.size = hole + 1
        keys = self._keys
        values = self._values
        while hole > 0:
            parent: i64 = (hole - 1) >> 1
            if keys[parent] < key or (keys[parent] == key and values[parent] <= value):
                break
            keys[hole] = keys[parent]
            values[hole] = values[parent]
            hole = parent
        keys[hole] = key
        values[hole] = value

    def top_key(self) -> i64:
        """The smallest key. The heap must not be empty."""
        assert self.size > 0, "top_key of an empty heap"
        return self._keys[0]

    def top_value(self) -> i64:
        """The value of the pair with `top_key()`. The heap must not be empty."""
        assert self.size > 0, "top_value of an empty heap"
        return self._values[0]

    def pop(self) -> None:
        """Remove the top pair. The heap must not be empty."""
        assert self.size > 0, "pop from an empty heap"
        self.size -= 1
        if self.size > 0:
            # The pair behind the new end stays in the arrays as garbage; the next push overwrites it.
            self._sift_down(0, self._keys[self.size], self._values[self.size])
        # Only when nothing is left: a slice is a copy, and shrinking earlier would make pops O(n).
        elif i64(len(self._keys)) > SHRINK_ABOVE:
            self._keys = vec[i64]()
            self._values = vec[i64]()

    def renumber(self, numbers: vec[i64]) -> None:
        """Replace each value by `numbers[value]`; pairs for which that is negative are removed.

        The new values must be in the same order as the old ones.
        """
        keys = self._keys
        values = self._values
        kept: i64 = 0
        place: i64 = 0
        # In place: `kept` never passes `place`, so no pair is overwritten before it is read.
        while place < self.size:
            number = numbers[values[place]]
            if number >= 0:
                keys[kept] = keys[place]
                values[kept] = number
                kept += 1
            place += 1
        if kept == self.size:
            return  # the heap order still holds: the new values have the order of the old ones
        self.size = kept
        if kept * 2 < i64(len(keys)):
            self._keys = keys[:kept]
            self._values = values[:kept]
        # Floyd's construction, from the last parent upwards: O(kept), where pushing the pairs one by one would be
        # O(kept log kept).
        hole: i64 = kept // 2
        while hole > 0:
            hole -= 1
            self._sift_down(hole, self._keys[hole], self._values[hole])

    def _sift_down(self, hole: i64, key: i64, value: i64) -> None:
        """Insert a pair at a hole, or below it, moving smaller pairs up."""
        keys = self._keys
        values = self._values
        size: i64 = self.size
        child: i64 = 2 * hole + 1
        while child < size:
            right: i64 = child + 1
            if right < size and (
                keys[right] < keys[child] or (keys[right] == keys[child] and values[right] < values[child])
            ):
                child = right
            if key < keys[child] or (key == keys[child] and value <= values[child]):
                break
            keys[hole] = keys[child]
            values[hole] = values[child]
            hole = child
            child = 2 * hole + 1
        keys[hole] = key
        values[hole] = value
