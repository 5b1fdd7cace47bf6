"""Batches go to the host in parts, so that the loop is free between them: how much a part holds, and names of parts.

A part is translated when it is asked for, from ranges of the message's columns. Everything that makes a batch
unreadable as a whole is looked at before the first part is made, by the lengths of its columns alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from purgatory.service.errors import unreadable_batch

VALUES_PER_PART: Final = 2_000
"""Rows, or items, of a batch of columns in one part: one or two milliseconds, ten where all are refused. An operation
with more items is a part by itself."""

ROWS_COST_MAX: Final = 1_200
"""Rows, and what is in them, in one part of a batch of rows: to read one costs ten times as much as in columns."""

Name = TypeVar("Name")


def given_columns(columns: Any, values_max: int) -> dict[str, Any]:  # noqa: ANN401 - columns of any message
    """The columns that have values, by name. Raises `BatchRejected` for one that has more values than are allowed.

    Of the twenty columns a batch has four or five: to ask for each of them costs more than to ask which there are.
    """
    given = {field.name: values for field, values in columns.ListFields() if field.name != "kind"}
    for name, values in given.items():
        count = len(values)
        if count > values_max:
            raise unreadable_batch(f"columns.{name}", f"has {count} values, the most in one batch is {values_max}")
    return given


def fits_one_part(given: dict[str, Any]) -> bool:
    """Whether all these columns do."""
    return all(len(values) <= VALUES_PER_PART for values in given.values())


def part_of(values: Any, start: int, stop: int) -> list[Any]:  # noqa: ANN401 - a repeated field
    """A range of a column, copied; of one that has a single value for all, that value."""
    part: list[Any] = values[start:stop] if len(values) > 1 else values[:]
    return part


class Dictionary(Generic[Name]):
    """The names of a batch that goes in parts. Those of a short dictionary are read once, for all parts; of a long one
    each part has only those that it uses, with other places.
    """

    def __init__(self, names: Sequence[Any], read: Callable[[Any], Name]) -> None:
        self._names: Final = names
        self._read: Final = read
        self._whole: Final = [read(name) for name in names] if len(names) <= VALUES_PER_PART else None

    def part(self, places: list[int]) -> tuple[list[Name], list[int]]:
        """The dictionary of a part and the places in it. What lies outside of the whole one lies outside of this."""
        if self._whole is not None:
            return self._whole, places
        used: dict[int, int] = {}
        count = len(self._names)
        moved = [used.setdefault(place, len(used)) if place < count else place for place in places or [0]]
        return [self._read(self._names[place]) for place in used], moved
