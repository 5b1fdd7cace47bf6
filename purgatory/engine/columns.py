"""Reading the columns of a batch: their lengths are checked once, then each value is one look-up.

A column holds one value for each row, or one value for all, or none for the default.
"""

from __future__ import annotations

from typing import Final

from purgatory.engine.errors import InvalidBatch

__all__ = ["Column", "flag_column"]


class Column:
    """One column of ints over `rows` rows. Raises InvalidBatch naming `field` when its length fits neither rule."""

    def __init__(self, field: str, values: list[int], rows: int, default: int) -> None:
        length = len(values)
        if length not in (0, 1, rows):
            raise InvalidBatch(field, f"has {length} values; it takes {rows} (one for each row), 1 (for all) or none")
        self.values: Final = values
        self.is_full: Final = length == rows and length != 1
        self.constant: Final = values[0] if length == 1 else default

    def at(self, row: int) -> int:
        """The value of a row."""
        return self.values[row] if self.is_full else self.constant


def flag_column(field: str, values: list[bool], rows: int) -> Column:
    """A column of booleans, False by default."""
    return Column(field, [1 if value else 0 for value in values], rows, 0)
