"""Positions that only rise, read again and again."""

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class MarkMove(NamedTuple, Generic[Key]):
    """A mark's position; None: it is gone. `is_set_back`: it has become lower, or is gone."""

    mark: Key
    position: int | None
    is_set_back: bool


class RisingMarks(Generic[Key]):
    """Believes a position that is lower or missing once it was so twice: one such reading may come from a server that
    lags behind the one that answered before.

    Args:
        told: The positions that daemons have.
    """

    def __init__(self, told: Mapping[Key, int]) -> None:
        self._known = dict(told)
        self._lower: frozenset[Key] = frozenset()
        """Marks that were lower or missing in the last reading."""

    def take(self, reading: Mapping[Key, int]) -> list[MarkMove[Key]]:
        """Apply a reading of all marks. Returns those that are believed, whether or not they have moved."""
        lower = frozenset(mark for mark, known in self._known.items() if reading.get(mark, -1) < known)
        doubted = lower - self._lower
        believed = (self._known.keys() | reading.keys()) - doubted
        self._known = {mark: self._known[mark] for mark in doubted} | {
            mark: reading[mark] for mark in believed & reading.keys()
        }
        self._lower = doubted
        return [MarkMove(mark, reading.get(mark), mark in lower) for mark in believed]
