"""The ids of a saved batch of operations, of which some have ended since."""

from typing import Final, cast

from librt.vecs import vec
from mypy_extensions import i64

__all__ = ["Roster"]


class Roster:
    """Rising ids, each of which may be crossed off."""

    def __init__(self, given: object, gone: bytes) -> None:
        """`given` are the ids, a `vec[i64]`; `gone` has a bit for each, the lowest of the first byte for the first; it
        may be too short.

        A compiled function that is handed a `vec` by Python that is not compiled never releases it, unless it takes
        it as an object.
        """
        ids = cast("vec[i64]", given)
        count: i64 = i64(len(ids))
        assert count > 0, "a roster of nobody"
        self.ids: Final[vec[i64]] = ids
        self.first: Final[i64] = ids[0]
        self.last: Final[i64] = ids[count - 1]
        self.left: i64 = count
        self._gone: Final = bytearray((int(count) + 7) // 8)
        self._hint: i64 = 0
        place: i64 = 0
        while place < count and place >> 3 < i64(len(gone)):
            if i64(gone[place >> 3]) >> (place & 7) & 1:
                self._cross_off(place)
            place += 1

    def strike(self, given: object, start: i64) -> i64:
        """Crosses off the ids (`given`, a `vec[i64]`) from `start` on, as long as they lie between the first and the
        last here; where it stopped.
        """
        ids = cast("vec[i64]", given)
        place = start
        count: i64 = i64(len(ids))
        while place < count:
            wanted = ids[place]
            if wanted < self.first or wanted > self.last:
                break
            self._strike_one(wanted)
            place += 1
        return place

    def _strike_one(self, wanted: i64) -> None:
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
            self._cross_off(found)
            self._hint = found + 1

    def _cross_off(self, place: i64) -> None:
        byte: i64 = i64(self._gone[place >> 3])
        bit: i64 = 1 << (place & 7)
        if byte & bit == 0:
            self._gone[place >> 3] = byte | bit
            self.left -= 1

    def remaining(self) -> list[int]:
        """The ids that are not crossed off."""
        return [
            int(self.ids[place])
            for place in range(len(self.ids))
            if i64(self._gone[place >> 3]) >> (i64(place) & 7) & 1 == 0
        ]

    def gone(self) -> bytes:
        """A bit for each id that is crossed off, as the constructor takes it."""
        return bytes(self._gone)
