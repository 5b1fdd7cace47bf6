"""Clocks and numbers of one file: columns as plain arrays, and where the clocks went back from call to call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.archive import schema
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.stable_sort import stable_order

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FileClock:
    """How the clocks went in one file. Falls: how often a later call has an earlier time, and by how much at most."""

    run_id: str
    table: str
    first: tuple[int, int, int]
    """Call, engine's clock and wall clock (ms) of its first call, and of its last one."""
    last: tuple[int, int, int]
    time_falls: int
    time_fall_ms: int
    at_falls: int
    at_fall_ms: int


class ClockReader:
    """Follows the clocks through one file."""

    def __init__(self, file: ArchiveFile) -> None:
        self._file = file
        self._first: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None
        self._falls = [0, 0]
        self._deepest = [0, 0]

    def read(self, part: pa.Table) -> None:
        """The next rows; those of a part are put in the order of their calls."""
        if part.num_rows == 0 or self._file.table == schema.MARKERS:  # a marker may be about another run
            return
        calls = numbers_of(part, "call_number")
        clocks = [numbers_of(part, "time_ms"), instants_of(part, "at")]
        if np.any(np.diff(calls) < 0):
            order = stable_order(calls)
            calls, clocks = calls[order], [clock[order] for clock in clocks]
        ends = [(int(calls[place]), int(clocks[0][place]), int(clocks[1][place])) for place in (0, -1)]
        for index, clock in enumerate(clocks):
            steps = np.diff(clock)
            self._fall(index, steps[steps < 0])
            if self._last is not None and self._last[0] <= ends[0][0]:
                self._fall(index, np.array([ends[0][index + 1] - self._last[index + 1]]))
        self._first = min(self._first or ends[0], ends[0])
        self._last = max(self._last or ends[1], ends[1])

    def _fall(self, index: int, steps: Integers) -> None:
        falls = steps[steps < 0]
        if len(falls):
            self._falls[index] += len(falls)
            self._deepest[index] = max(self._deepest[index], -int(falls.min()))

    def seen(self) -> list[FileClock]:
        """One, or none of a file without rows."""
        if self._first is None or self._last is None:
            return []
        return [
            FileClock(
                self._file.run_id, self._file.table, self._first, self._last,
                self._falls[0], self._deepest[0], self._falls[1], self._deepest[1],
            )
        ]  # fmt: skip


def numbers_of(part: pa.Table, column: str) -> Integers:
    """A column as 64-bit integers; 0 where there is none: an older schema may lack it."""
    if column not in part.column_names:
        return np.zeros(part.num_rows, np.int64)
    found = part.column(column)
    values: Integers = (found.fill_null(0) if found.null_count else found).to_numpy()
    return values.astype(np.int64, copy=False)


def instants_of(part: pa.Table, column: str) -> Integers:
    """A column of instants in milliseconds of Unix time."""
    values: Integers = part.column(column).cast(pa.int64()).to_numpy()
    return values
