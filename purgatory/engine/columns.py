"""Reading the columns of a batch: their lengths are checked once, then each value is one look-up and no object.

A column holds one value for each row, or one value for all, or none for the default.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.errors import InvalidBatch

__all__ = ["Column", "check_length", "flag_at", "value_at"]


class Column:
    """A column that was looked through: where all its values lie within bounds, each is read for next to nothing."""

    def __init__(self, values: list[int], default: int, lowest: int, highest: int) -> None:
        given = values or [default]
        count: i64 = i64(len(given))
        read = vec[i64]([0] * count)
        place: i64 = 0
        while place < count:
            value = given[place]
            if not lowest <= value <= highest:
                break
            read[place] = value
            place += 1
        self.is_within: Final = place == count
        self._values: Final = read
        self._step: Final[i64] = 1 if count > 1 else 0

    def at(self, row: i64) -> i64:
        """The value of a row; not to be asked for where one is out of bounds."""
        return self._values[row * self._step]


def check_length(field: str, length: int, rows: int) -> None:
    """Raises InvalidBatch naming `field` when a column of `length` values fits neither rule for `rows` rows."""
    if length > 1 and length != rows:
        raise InvalidBatch(field, f"has {length} values; it takes {rows} (one for each row), 1 (for all) or none")


def value_at(values: list[int], row: int, default: int) -> int:
    """The value of a row."""
    length = len(values)
    if length > 1:
        return values[row]
    return values[0] if length == 1 else default


def flag_at(values: list[bool], row: int) -> bool:
    """The flag of a row, False by default."""
    length = len(values)
    if length > 1:
        return values[row]
    return length == 1 and values[0]
