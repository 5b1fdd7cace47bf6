"""Reading the columns of a batch: their lengths are checked once, then each value is one look-up and no object.

A column holds one value for each row, or one value for all, or none for the default.
"""

from __future__ import annotations

from purgatory.engine.errors import InvalidBatch

__all__ = ["all_within", "check_length", "flag_at", "value_at"]


def check_length(field: str, length: int, rows: int) -> None:
    """Raises InvalidBatch naming `field` when a column of `length` values fits neither rule for `rows` rows."""
    if length > 1 and length != rows:
        raise InvalidBatch(field, f"has {length} values; it takes {rows} (one for each row), 1 (for all) or none")


def all_within(values: list[int], lowest: int, highest: int) -> bool:
    """Whether no value of a column is out of bounds."""
    return all(lowest <= value <= highest for value in values)


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
