"""Rows of one table of the archive as columns of numbers: what travels from files to the engine.

A column that is absent has its default in every row. Names (of partitions and keys) are places in the chunk's own
dictionary, where a name may occur more than once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME
from purgatory.extensions.archive.schema import CALLS, EVENTS, OUTCOMES, REGISTRATIONS

Name = tuple[str, int]
Column = npt.NDArray[Any]

TABLES: Final = (REGISTRATIONS, CALLS, OUTCOMES, EVENTS)
"""The tables that a replay reads."""

DEFAULTS: Final[dict[str, dict[str, int]]] = {
    REGISTRATIONS: {
        "item": 0,
        "item_count": 1,
        # The default of an offset depends on the kind: see `arrow_chunks.null_value`.
        **{name: column.default for name, column in COLUMNS_BY_NAME.items() if name != "offset"},
    },
    OUTCOMES: {"lateness_ms": 0, "item": 0, "item_count": 1, "error_code": 0, "reached_offset": -1},
    EVENTS: {
        "row": 0,
        "offset": -1,
        "leader_epoch": -1,
        "replica_id": -1,
        "byte_position": -1,
        "segment_base_offset": -1,
        "log_start_offset": -1,
        "flags": 0,
        "copy": 0,  # 1: of several that were made of a row, not the first
    },
    CALLS: {"session": -1, "timeout_ms": 0},
}
"""Columns that may be absent, and the value that every row then has."""

NAMES_FEW: Final = 256
"""Dictionaries up to this size are not worth trimming."""


@dataclass
class RowChunk:
    """Rows of a table in the order of their calls. `details` holds what is not a number, for the rows that have any."""

    table: str
    columns: dict[str, Column]
    names: list[Name] = field(default_factory=list)
    detail_rows: Column = field(default_factory=lambda: np.empty(0, np.int64))
    details: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.columns["call"])

    @property
    def first_call(self) -> int:
        return int(self.columns["call"][0])

    def column(self, name: str) -> Column:
        """A column, or its defaults if it is absent."""
        found = self.columns.get(name)
        return np.full(len(self), DEFAULTS[self.table][name], np.int64) if found is None else found

    def slice(self, start: int, stop: int) -> "RowChunk":
        """Rows from `start` up to `stop`: views, not copies."""
        low, high = np.searchsorted(self.detail_rows, (start, stop))
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return RowChunk(self.table, columns, self.names, self.detail_rows[low:high] - start, self.details[low:high])

    def take(self, rows: Column) -> "RowChunk":
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        columns = {name: values.take(rows) for name, values in self.columns.items()}
        if not self.details:
            return RowChunk(self.table, columns, self.names)
        at = np.full(len(self), -1, np.int64)
        at[self.detail_rows] = np.arange(len(self.details))
        places = at[rows]
        chosen = np.flatnonzero(places >= 0)
        details = [self.details[place] for place in places[chosen].tolist()]
        return RowChunk(self.table, columns, self.names, chosen, details)

    def without_names(self) -> "RowChunk":
        columns = {name: values for name, values in self.columns.items() if name != "name"}
        return RowChunk(self.table, columns, [], self.detail_rows, self.details)

    def with_names_used(self, few: int = NAMES_FEW) -> "RowChunk":
        """Drops names that no row has, unless there are only a `few`."""
        if "name" not in self.columns or len(self.names) <= few:
            return self
        places, used = pd.factorize(self.columns["name"], sort=True)
        names = [self.names[place] for place in used.tolist()]
        return RowChunk(self.table, {**self.columns, "name": places}, names, self.detail_rows, self.details)


def join(chunks: Sequence[RowChunk]) -> RowChunk:
    if len(chunks) == 1:
        return chunks[0]
    table = chunks[0].table
    columns: dict[str, Column] = {}
    for name in dict.fromkeys(name for chunk in chunks for name in chunk.columns):
        offsets = np.cumsum([0, *(len(chunk.names) for chunk in chunks)])[:-1] if name == "name" else None
        parts = [chunk.column(name) for chunk in chunks]
        if offsets is not None:
            parts = [part + offset for part, offset in zip(parts, offsets, strict=True)]
        columns[name] = np.concatenate(parts)
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])[:-1]
    detail_rows = [chunk.detail_rows + start for chunk, start in zip(chunks, starts, strict=True)]
    return RowChunk(
        table,
        columns,
        [name for chunk in chunks for name in chunk.names],
        np.concatenate(detail_rows),
        [detail for chunk in chunks for detail in chunk.details],
    )


def in_order(chunk: RowChunk) -> RowChunk:
    """Sorted by call, stably. The rows of a daemon's file are in order already."""
    calls = chunk.columns["call"]
    if bool(np.all(calls[1:] >= calls[:-1])):
        return chunk
    return chunk.take(np.argsort(calls, kind="stable"))
