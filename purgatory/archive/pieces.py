"""The pieces of a chunk, read side by side: what one column is in many calls, without a step for each value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from purgatory.archive.calls import CallStamp
from purgatory.archive.packing import Chunk
from purgatory.engine.snapshot.number_block import RUN
from purgatory.engine.snapshot.packed_columns import HEAD, Layout

__all__ = ["INT64", "Numbers", "Part", "Pieces", "extra_at", "pieces_in", "rows_at", "stamp_at"]

INT64: Final = np.dtype(np.int64)

Numbers = npt.NDArray[np.int64]

CALL_NUMBER, TIME_MS, AT_MS, ROWS, OPERATIONS, REGISTRANT, EXTRA = range(2, 9)
"""Places in the head of a piece, after its length and its table (`HEAD`)."""


def pieces_in(numbers: Numbers) -> dict[int, list[int]]:
    """Where the pieces of a chunk begin, by the number of their table."""
    starts: dict[int, list[int]] = {}
    place = 0
    while place < len(numbers):
        length, table = numbers[place : place + 2].tolist()
        starts.setdefault(table, []).append(place)
        place += length
    return starts


def stamp_at(chunk: Chunk, numbers: Numbers, start: int) -> CallStamp:
    """The call of the piece that begins there."""
    return CallStamp(chunk.run_id, *numbers[start + CALL_NUMBER : start + ROWS].tolist())


def extra_at(chunk: Chunk, numbers: Numbers, start: int) -> Any:  # noqa: ANN401
    """What the piece that begins there has that is no number."""
    return chunk.extras[numbers[start + EXTRA]]


def rows_at(numbers: Numbers, starts: Sequence[int]) -> int:
    """How many rows the pieces make that begin there."""
    return int(numbers[np.array(starts) + ROWS].sum())


class Part(NamedTuple):
    """A column of the pieces of one chunk."""

    values: Numbers | None
    """One for each piece, or (`whole`) for each row; None: no piece has it."""
    whole: bool
    given: npt.NDArray[np.bool_] | None
    """The pieces that have it; None: all."""


class Pieces:
    """The pieces of one table in a chunk, side by side."""

    def __init__(self, numbers: Numbers, starts: Sequence[int], layout: Layout) -> None:
        width = HEAD + layout.columns
        places = np.array(starts, INT64)
        heads = numbers[places[:, None] + np.arange(width)]
        self.call_numbers: Final = heads[:, CALL_NUMBER]
        self.times_ms: Final = heads[:, TIME_MS]
        self.instants_ms: Final = heads[:, AT_MS]
        self.rows: Final = heads[:, ROWS]
        self.operations: Final = heads[:, OPERATIONS]
        self.registrants: Final = heads[:, REGISTRANT]
        self.extras: Final = heads[:, EXTRA]
        self._numbers: Final = numbers
        self._counts: Final = heads[:, HEAD:]
        taken = np.where(self._counts < 0, -RUN * self._counts, self._counts)
        self._places: Final = (places + width)[:, None] + np.cumsum(taken, axis=1) - taken
        self._firsts: Final = numbers[np.minimum(self._places, len(numbers) - 1)]
        self._least: Final = self._counts.min(axis=0).tolist()
        self._most: Final = self._counts.max(axis=0).tolist()

    def part(self, column: int, rows: Numbers) -> Part:
        """A column; `rows` of each piece, or operations, whichever it has values for."""
        least, most = self._least[column], self._most[column]
        if least == most == 0:
            return Part(None, False, None)
        counts, firsts = self._counts[:, column], self._firsts[:, column]
        given = None if least == 1 or counts.all() else counts != 0
        if least >= 0 and most <= 1:
            return Part(firsts, False, given)
        places = self._places[:, column]
        values = self._spread_runs(counts, places, firsts, rows) if least < 0 else np.repeat(firsts, rows)
        starts = np.cumsum(rows) - rows
        for piece in np.flatnonzero(counts > 1).tolist():
            place, start, count = places[piece], starts[piece], counts[piece]
            values[start : start + count] = self._numbers[place : place + count]
        return Part(values, True, given)

    def _spread_runs(self, counts: Numbers, places: Numbers, firsts: Numbers, rows: Numbers) -> Numbers:
        """A value for each row of a column some pieces of which consist of runs; others are taken for one of each."""
        runs = np.where(counts < 0, -counts, 1)
        is_run = np.repeat(counts < 0, runs)
        before = np.cumsum(runs) - runs
        own = np.repeat(places, runs) + RUN * (np.arange(len(is_run)) - np.repeat(before, runs))
        own = np.where(is_run, own, 0)
        lengths = np.where(is_run, self._numbers[own], np.repeat(rows, runs))
        values = np.repeat(np.where(is_run, self._numbers[own + 1], np.repeat(firsts, runs)), lengths)
        steps = np.where(is_run, self._numbers[own + 2], 0)
        if steps.any():
            starts = np.cumsum(lengths) - lengths
            values += np.repeat(steps, lengths) * (np.arange(len(values)) - np.repeat(starts, lengths))
        return values
