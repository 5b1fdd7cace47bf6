"""Columns of one file as plain arrays, and where its clocks went back from one call to the next."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from purgatory.archive import schema
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.integers import Integers, stable_order


@dataclass(frozen=True)
class FileClock:
    """The clocks of one file. A fall is a later call with an earlier time; how many, and how deep at most."""

    run_id: str
    table: str
    first: tuple[int, int, int]
    """Call number, engine clock and wall clock (ms) of the first call; `last` likewise."""
    last: tuple[int, int, int]
    time_falls: int
    time_fall_ms: int
    at_falls: int
    at_fall_ms: int


class ClockReader:
    """Follows the clocks through one file, part by part."""

    def __init__(self, file: ArchiveFile) -> None:
        self._file = file
        self._first: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None
        self._falls = [0, 0]
        self._deepest = [0, 0]

    def read(self, part: pa.Table) -> None:
        """Takes the next rows, which may be out of order within a part."""
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
        """Empty for a file without rows."""
        if self._first is None or self._last is None:
            return []
        return [
            FileClock(
                self._file.run_id, self._file.table, self._first, self._last,
                self._falls[0], self._deepest[0], self._falls[1], self._deepest[1],
            )
        ]  # fmt: skip


def numbers_of(part: pa.Table, column: str) -> Integers:
    """A column as 64-bit integers, null as 0; all 0 if the file's older schema lacks the column."""
    if column not in part.column_names:
        return np.zeros(part.num_rows, np.int64)
    found = part.column(column)
    values: Integers = (found.fill_null(0) if found.null_count else found).to_numpy()
    return values.astype(np.int64, copy=False)


def instants_of(part: pa.Table, column: str) -> Integers:
    """A column of instants in milliseconds of Unix time."""
    values: Integers = part.column(column).cast(pa.int64()).to_numpy()
    return values
