"""Merges the chunks of a run's tables into windows: all rows of all tables from one call to another.

Chunks arrive in the order of their first calls. So when a chunk begins with call `n`, all rows of earlier calls have
arrived, and memory is bounded by the chunks that overlap.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from purgatory_pipeline.archive.catalog import ROW_KEYS
from purgatory_pipeline.engine_rows.arrow_chunks import NUMBERS
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.engine_rows.row_chunk import RowChunk, in_order, join

ROWS_MIN: Final = 150_000
"""A window is closed at this many rows, which then share its fixed cost."""


@dataclass(frozen=True)
class CallWindow:
    """Rows by table, in the order of their calls; tables without rows are missing."""

    tables: dict[str, RowChunk]
    last_ms: int
    """The engine's clock at its last call; it never goes back within a run."""
    clock_falls: int
    """Rows whose clock was behind an earlier call's; they were moved to the latest instant before them."""
    repeated: int
    """Duplicates that were dropped."""

    def get(self, table: str) -> RowChunk | None:
        return self.tables.get(table)


def windows(
    chunks: Iterable[RowChunk], first_ms: int = 0, *, repeated: bool = False, rows_min: int = ROWS_MIN
) -> Iterator[CallWindow]:
    """The windows of one run. `chunks`: of all its tables, by first call, those of one table in their order.

    `first_ms` is when the run began. `repeated`: some rows may be duplicated.
    """
    merger = _Merger(first_ms, repeated)
    for chunk in chunks:
        if merger.rows >= max(rows_min, 2 * merger.rows_left) and (window := merger.cut(chunk.first_call)) is not None:
            yield window
        merger.add(chunk)
    if (window := merger.cut(None)) is not None:
        yield window


class _Merger:
    """Rows held between two windows."""

    def __init__(self, first_ms: int, repeated: bool) -> None:
        self.rows = 0
        self.rows_left = 0
        """Rows that remained after the last cut. The next window is closed only at twice this number, because each cut
        copies all remaining rows.
        """
        self._held: dict[str, list[RowChunk]] = {}
        self._now_ms = first_ms
        self._before = 0
        """The call before which everything has been taken out."""
        self._repeated: Final = repeated

    def add(self, chunk: RowChunk) -> None:
        assert chunk.first_call >= self._before, f"call {chunk.first_call} comes after those before {self._before}"
        self.rows += len(chunk)
        self._held.setdefault(chunk.table, []).append(chunk)

    def cut(self, before_call: int | None) -> CallWindow | None:
        """Takes out all rows of calls before a call (None: all). Returns None if there are none."""
        self._before = self._before if before_call is None else before_call
        taken: dict[str, RowChunk] = {}
        repeated = 0
        # A chunk may extend beyond `before_call`; the rest stays for the next window, with the names it still needs.
        for table, held in list(self._held.items()):
            whole = in_order(join(held))
            stop = len(whole) if before_call is None else int(np.searchsorted(whole.columns["call"], before_call))
            if stop:
                taken[table] = whole.slice(0, stop)
                if self._repeated:
                    taken[table] = without_repeated(taken[table])
                    repeated += stop - len(taken[table])
            if stop < len(whole):
                self._held[table] = [whole.slice(stop, len(whole)).with_names_used()]
            else:
                del self._held[table]
        self.rows = self.rows_left = sum(len(chunk) for held in self._held.values() for chunk in held)
        if not taken:
            return None
        last_ms, falls = self._straighten(taken)
        return CallWindow(taken, last_ms, falls, repeated)

    def _straighten(self, taken: dict[str, RowChunk]) -> tuple[int, int]:
        """Makes times non-decreasing over all tables; returns the last instant and the number of changed rows."""
        chunks = list(taken.values())
        times = np.concatenate([chunk.columns["time"] for chunk in chunks])
        calls = np.concatenate([chunk.columns["call"] for chunk in chunks])
        order = np.argsort(calls, kind="stable")
        in_order_of_calls = times[order]
        # The engine asserts that its clock never goes back, and the order of calls must hold, so times are raised.
        highest = np.maximum(np.maximum.accumulate(in_order_of_calls), self._now_ms)
        falls = int(np.count_nonzero(highest != in_order_of_calls))
        self._now_ms = int(highest[-1])
        if falls:
            times[order] = highest
            start = 0
            for chunk in chunks:
                chunk.columns = {**chunk.columns, "time": times[start : start + len(chunk)]}
                start += len(chunk)
        return self._now_ms, falls


def without_repeated(chunk: RowChunk) -> RowChunk:
    """Drops rows that occur again, as those of overlapping files do."""
    own_names = NUMBERS[chunk.table]
    keys = pd.DataFrame({name: chunk.column(own_names[name]) for name in ROW_KEYS[chunk.table] if name in own_names})
    repeated: Flags = keys.duplicated().to_numpy()
    return chunk.take(~repeated) if repeated.any() else chunk
