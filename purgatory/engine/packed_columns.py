"""Whole columns as packed arrays, for whoever keeps them: the archive.

The engine itself needs none of it. It is here because it looks at each value, and what is here is compiled.
"""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven

__all__ = ["chosen", "condensed", "numbered", "packed"]


def packed(values: list[int]) -> vec[i64]:
    """The same numbers as a packed array."""
    numbers = vec[i64]([0] * len(values))
    for place, value in enumerate(values):
        numbers[place] = value
    return numbers


def condensed(values: vec[i64]) -> vec[i64]:
    """One value where all are the same, otherwise the values."""
    if len(values):
        first = values[0]
        for value in values:
            if value != first:
                return values
    return values[:1]


def numbered(names: list[AsGiven], known: dict[AsGiven, int]) -> vec[i64]:
    """For each name its number in `known`, which is given those that are new: neighbours are mostly the same object."""
    numbers = vec[i64]([0] * len(names))
    number: i64 = 0
    last: AsGiven = None
    for place, name in enumerate(names):
        if name is not last:
            number = known.setdefault(name, len(known))
            last = name
        numbers[place] = number
    return numbers


def chosen(values: vec[i64], places: list[int]) -> vec[i64]:
    """The values at these places; -1 where a place is negative."""
    numbers = vec[i64]([-1] * len(places))
    for row, place in enumerate(places):
        if place >= 0:
            numbers[row] = values[place]
    return numbers
