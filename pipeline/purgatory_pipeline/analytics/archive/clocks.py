"""Columns of a file as arrays, and the places where its clocks went backwards between two calls."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from purgatory.extensions.archive import schema
from purgatory_pipeline.engine_rows.integers import Integers, stable_order


@dataclass
class FileClock:
    """The clocks of one file. A fall is a later call with an earlier time.

    Pairs are of the engine's clock and the wall clock. Calls and instants are of no use before the first `read`.
    """

    run_id: str
    table: str
    first_call: int = 2**63 - 1
    last_call: int = -1
    first_ms: tuple[int, int] = (0, 0)
    """Both clocks at the first call; `last_ms` those at the last call."""
    last_ms: tuple[int, int] = (0, 0)
    falls: list[int] = field(default_factory=lambda: [0, 0])
    deepest_fall_ms: list[int] = field(default_factory=lambda: [0, 0])

    def read(self, part: pa.Table) -> None:
        """Takes the file's next rows, which may be out of order within a part."""
        if part.num_rows == 0 or self.table == schema.MARKERS:  # a marker may be about another run
            return
        calls = numbers_of(part, "call_number")
        clocks = [numbers_of(part, "time_ms"), instants_of(part, "at")]
        if np.any(np.diff(calls) < 0):
            order = stable_order(calls)
            calls, clocks = calls[order], [clock[order] for clock in clocks]
        follows = 0 <= self.last_call <= calls[0]
        for index, clock in enumerate(clocks):
            steps_ms = np.diff(clock, prepend=self.last_ms[index] if follows else clock[0])
            self.falls[index] += int(np.count_nonzero(steps_ms < 0))
            self.deepest_fall_ms[index] = max(self.deepest_fall_ms[index], -int(steps_ms.min()))
        if calls[0] < self.first_call:
            self.first_call, self.first_ms = int(calls[0]), (int(clocks[0][0]), int(clocks[1][0]))
        if calls[-1] >= self.last_call:
            self.last_call, self.last_ms = int(calls[-1]), (int(clocks[0][-1]), int(clocks[1][-1]))


def numbers_of(part: pa.Table, column: str) -> Integers:
    """A column as 64-bit integers, null as 0."""
    found = part.column(column)
    values: Integers = (found.fill_null(0) if found.null_count else found).to_numpy()
    return values.astype(np.int64, copy=False)


def instants_of(part: pa.Table, column: str) -> Integers:
    """A column of instants in milliseconds of Unix time."""
    values: Integers = part.column(column).cast(pa.int64()).to_numpy()
    return values
