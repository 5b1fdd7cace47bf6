"""Reads the columns of a batch: lengths are checked once, then reading a value is one look-up and allocates nothing.

A column has one value per row, one value for all rows, or none, which means the default.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.errors import InvalidBatch

OUT_OF_RANGE: Final[i64] = -(2**62)
"""Stored in a `Column` in place of a value that is out of range."""


class Column:
    """A column whose values are range-checked once and then read as machine integers.

    Most columns have no value out of range. Then `is_within` is True, and rows need no further checks.
    """

    def __init__(self, values: list[int], default: int, lowest: int, highest: int) -> None:
        given = values or [default]
        count: i64 = i64(len(given))
        # Checked in a loop over Python integers and stored as machine integers: a value is converted only once it is
        # known to fit.
        read = vec[i64]([0] * count)
        within = True
        place: i64 = 0
        while place < count:
            value = given[place]
            if lowest <= value <= highest:
                read[place] = value
            else:
                # The value itself may not fit into 64 bits; `_given` keeps it for the message.
                read[place] = OUT_OF_RANGE
                within = False
            place += 1
        self.is_within: Final = within
        self._given: Final = given
        self._values: Final = read
        # With a step of 0 a single value is read for every row, without a branch in `at`.
        self._step: Final[i64] = 1 if count > 1 else 0

    def at(self, row: i64) -> i64:
        """The value of a row, or OUT_OF_RANGE."""
        return self._values[row * self._step]

    def given(self, row: i64) -> int:
        """The original value of a row, even if out of range."""
        return self._given[row * self._step]


def check_length(field: str, length: int, rows: int) -> None:
    """Raise InvalidBatch, naming `field`, if a column of `length` values does not fit `rows` rows."""
    if length > 1 and length != rows:
        raise InvalidBatch(field, f"has {length} values; it takes {rows} (one for each row), 1 (for all) or none")


def value_at(values: list[int], row: int, default: int) -> int:
    """The value of a row, or the default if the column is empty."""
    length = len(values)
    if length > 1:
        return values[row]
    return values[0] if length == 1 else default
