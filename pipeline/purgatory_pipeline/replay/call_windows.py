"""Merges the chunks of a run's tables into windows: all rows of all tables from one call to another.

Chunks arrive in the order of their first calls. So when a chunk begins with call `n`, all rows of earlier calls have
arrived, and memory is bounded by the chunks that overlap.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pandas as pd

from purgatory_pipeline.archive.catalog import ROW_KEYS
from purgatory_pipeline.engine_rows.arrow_chunks import NUMBERS
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.engine_rows.row_chunk import RowChunk, in_order, join

NEVER: Final = 2**62
"""After all calls."""
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
    held: dict[str, list[RowChunk]] = {}
    rows = rows_left = before = 0
    for chunk in chain(chunks, [None]):
        # Each cut copies all rows that remain, so the next one comes only at twice their number.
        if chunk is None or rows >= max(rows_min, 2 * rows_left):
            before = NEVER if chunk is None else chunk.first_call
            taken = _cut(held, before)
            rows = rows_left = sum(len(part) for parts in held.values() for part in parts)
            if taken:
                once = {table: without_repeated(part) if repeated else part for table, part in taken.items()}
                dropped = sum(map(len, taken.values())) - sum(map(len, once.values()))
                first_ms, falls = _straighten(list(once.values()), first_ms)
                yield CallWindow(once, first_ms, falls, dropped)
        if chunk is not None:
            assert chunk.first_call >= before, f"call {chunk.first_call} comes after those before {before}"
            rows += len(chunk)
            held.setdefault(chunk.table, []).append(chunk)


def _cut(held: dict[str, list[RowChunk]], before_call: int) -> dict[str, RowChunk]:
    """Takes out all rows of calls before a call. A chunk may extend beyond it: the rest stays for the next window, with
    the names it still needs.
    """
    taken: dict[str, RowChunk] = {}
    for table, parts in list(held.items()):
        whole = in_order(join(parts))
        stop = int(np.searchsorted(whole.columns["call"], before_call))
        if stop:
            taken[table] = whole.slice(0, stop)
        if stop < len(whole):
            held[table] = [whole.slice(stop, len(whole)).with_names_used()]
        else:
            del held[table]
    return taken


def _straighten(chunks: Sequence[RowChunk], now_ms: int) -> tuple[int, int]:
    """Makes times non-decreasing over all tables; returns the last instant and the number of changed rows."""
    times = np.concatenate([chunk.columns["time"] for chunk in chunks])
    order = np.argsort(np.concatenate([chunk.columns["call"] for chunk in chunks]), kind="stable")
    in_order_of_calls = times[order]
    # The engine asserts that its clock never goes back, and the order of calls must hold, so times are raised.
    highest = np.maximum(np.maximum.accumulate(in_order_of_calls), now_ms)
    falls = int(np.count_nonzero(highest != in_order_of_calls))
    if falls:
        times[order] = highest
        stops = np.cumsum([len(chunk) for chunk in chunks])
        for chunk, own in zip(chunks, np.split(times, stops[:-1]), strict=True):
            chunk.columns = {**chunk.columns, "time": own}
    return int(highest[-1]), falls


def without_repeated(chunk: RowChunk) -> RowChunk:
    """Drops rows that occur again, as those of overlapping files do."""
    own_names = NUMBERS[chunk.table]
    keys = pd.DataFrame({name: chunk.column(own_names[name]) for name in ROW_KEYS[chunk.table] if name in own_names})
    repeated: Flags = keys.duplicated().to_numpy()
    return chunk.take(~repeated) if repeated.any() else chunk
