"""A block of numbers that columns are written into, one after the other; the base of `packed_columns`."""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

__all__ = ["RUN", "NumberBlock"]

RUN: Final[i64] = 3
"""Numbers of a run: how many values it has, its first, and what is added from each to the next."""
ROOM: Final[i64] = 32_768
"""Numbers that there is room for at first; with more to write it grows."""
ROOM_KEPT: Final[i64] = 524_288
"""When more than this is cleared, it shrinks again."""
STEP_MAX: Final[i64] = 1 << 60
RUNS_SHARE: Final[i64] = 4
"""Runs are written where they take less than this part of what the values would."""

NO_NUMBERS: Final[list[int]] = []


class NumberBlock:
    """Memory that columns go into; `clear` it when what was written has been sent.

    Fresh memory for each would cost several times as much as to write into it.
    """

    def __init__(self) -> None:
        self.length: i64 = 0
        """Numbers written. What is behind a smaller length is forgotten by setting it."""
        self._numbers: vec[i64] = vec[i64]([0] * ROOM)
        self._end: i64 = 0
        """Of what is being written behind them."""
        self._column: i64 = 0
        """Where the next column says how many values it has."""

    def written(self) -> memoryview:
        """All that was written, without a copy: valid until something is written again."""
        return memoryview(self._numbers)[: self.length]

    def clear(self) -> None:
        """Begins anew."""
        self.length = 0
        if i64(len(self._numbers)) > ROOM_KEPT:
            self._numbers = vec[i64]([0] * ROOM)

    def _make_room(self, count: i64) -> None:
        """Room for so many more numbers behind what is there."""
        end, before = self._end, self._numbers
        if end + count <= i64(len(before)):
            return
        numbers = vec[i64]([0] * (2 * (end + count)))
        for index in range(end):
            numbers[index] = before[index]
        self._numbers = numbers

    def _finish_column(self, count: i64, end: i64) -> None:
        self._numbers[self._column] = count
        self._column += 1
        self._end = end

    def _one(self, value: i64) -> None:
        """A column of one value for all."""
        self._make_room(1)
        self._numbers[self._end] = value
        self._finish_column(1, self._end + 1)

    def _list(self, values: list[int]) -> None:
        """A column as it was given."""
        count: i64 = len(values)
        if count == 1:
            self._one(values[0])
            return
        self._make_room(2 * count)
        numbers, place = self._numbers, self._end
        for value in values:
            numbers[place] = value
            place += 1
        self._compact(count)

    def _compact(self, count: i64) -> None:
        """A column of so many values that were written where it begins: as few runs, or one value, or as they are.

        There must be room for as many again.
        """
        start = self._end
        end = place = start + count
        numbers = self._numbers
        limit = end + count // RUNS_SHARE
        at = start
        while at < end and place < limit:
            first = numbers[at]
            stop = at + 1
            step: i64 = 0
            if stop < end:
                step = numbers[stop] - first
                if -STEP_MAX < step < STEP_MAX:
                    last = first
                    while stop < end and numbers[stop] - last == step:
                        last = numbers[stop]
                        stop += 1
                else:
                    step = 0
            numbers[place] = stop - at
            numbers[place + 1] = first
            numbers[place + 2] = step
            place += RUN
            at = stop
        self._choose(count, at == end, place)

    def _choose(self, count: i64, is_compact: bool, place: i64) -> None:
        """How the column that was written, and then as runs up to `place`, is left."""
        numbers, start = self._numbers, self._end
        end = start + count
        if count < 2 or not is_compact:
            self._finish_column(count, end)
        elif place == end + RUN and numbers[end + 2] == 0:
            self._finish_column(1, start + 1)
        else:
            for index in range(end, place):
                numbers[index - count] = numbers[index]
            self._finish_column((end - place) // RUN, start + place - end)

    def _flags(self, values: list[bool]) -> None:
        """A column of flags."""
        self._list([1 if value else 0 for value in values] if values else NO_NUMBERS)

    def _slice(self, values: list[int], start: i64, stop: i64) -> None:
        """A part of a column that has a value for each row; of others all."""
        if len(values) <= 1 or (start == 0 and stop == i64(len(values))):
            self._list(values)
        else:
            self._list(values[start:stop])

    def _vector(self, values: vec[i64]) -> None:
        """A column of a value for each row."""
        count: i64 = len(values)
        index: i64 = 0
        if count:
            first = values[0]
            while index < count and values[index] == first:
                index += 1
            if index == count:
                self._one(first)
                return
        self._make_room(2 * count)
        numbers, place = self._numbers, self._end
        for index in range(count):
            numbers[place] = values[index]
            place += 1
        self._compact(count)
