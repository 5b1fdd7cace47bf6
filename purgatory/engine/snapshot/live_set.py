"""The ids of a saved batch of operations, and which of them are still pending."""

from typing import Final, cast

from librt.vecs import vec
from mypy_extensions import i64, u8


class LiveSet:
    """A fixed set of ascending ids with one bit per removed id."""

    def __init__(self, given: object, gone: bytes) -> None:
        """Create the set.

        Args:
            given: The ids in ascending order, a `vec[i64]`. It is typed `object` on purpose: a compiled function that
                receives a `vec` from uncompiled Python never releases it, unless the parameter is an object.
            gone: One bit per removed id; the lowest bit of the first byte is the first id. Missing bytes are zero.
        """
        ids = cast("vec[i64]", given)
        count: i64 = i64(len(ids))
        assert count > 0, "a live set needs at least one id"
        self.ids: Final[vec[i64]] = ids
        self.first: Final[i64] = ids[0]
        self.last: Final[i64] = ids[count - 1]
        self.left: i64 = count
        self._gone: Final[vec[u8]] = vec[u8](bytes((int(count) + 7) // 8))
        self._hint: i64 = 0
        place: i64 = 0
        while place < count and place >> 3 < i64(len(gone)):
            if i64(gone[place >> 3]) >> (place & 7) & 1:
                self._mark_removed(place)
            place += 1

    def remove(self, given: object, start: i64) -> i64:
        """Remove ids until one is outside the range of this set.

        Args:
            given: Ids to remove, a `vec[i64]`; ids within the range that are not in the set are skipped.
            start: Index in `given` to begin at.

        Returns:
            The index of the first id that is below `first` or above `last`, or the length of `given`.
        """
        ids = cast("vec[i64]", given)
        place = start
        count: i64 = i64(len(ids))
        while place < count:
            wanted = ids[place]
            if wanted < self.first or wanted > self.last:
                break
            self._remove_one(wanted)
            place += 1
        return place

    def _remove_one(self, wanted: i64) -> None:
        # Operations mostly end in the order of their ids, so the next id is usually the one after the last removed.
        # A hint only: it is used if the id is really there, so it may be out of date.
        found = self._hint
        count: i64 = i64(len(self.ids))
        if found >= count or self.ids[found] != wanted:
            low: i64 = 0
            high: i64 = count
            while low < high:
                middle: i64 = (low + high) // 2
                if self.ids[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            found = low
        if found < count and self.ids[found] == wanted:
            self._mark_removed(found)
            self._hint = found + 1

    def _mark_removed(self, place: i64) -> None:
        # An id may be removed twice; `left` must count it once.
        byte: i64 = i64(self._gone[place >> 3])
        bit: i64 = 1 << (place & 7)
        if byte & bit == 0:
            self._gone[place >> 3] = u8(byte | bit)
            self.left -= 1

    def remaining(self) -> list[int]:
        """The ids that have not been removed, ascending."""
        return [
            int(self.ids[place])
            for place in range(len(self.ids))
            if i64(self._gone[place >> 3]) >> (i64(place) & 7) & 1 == 0
        ]

    def gone(self) -> bytes:
        """The bits of the removed ids, as the constructor takes them."""
        return bytes(self._gone)
