"""The operations registered in a window, as the engine takes them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from purgatory.archive.schema import NO_PARTITION
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.kinds.operation_columns import BOOL, COLUMNS_BY_NAME, OPERATION
from purgatory_pipeline.replay.load.row_chunk import Column, Name, RowChunk

FIXED_COLUMNS: Final = [column for name, column in COLUMNS_BY_NAME.items() if name != "min_bytes"]
"""Columns that no policy changes."""


@dataclass(frozen=True)
class CompleteOperations:
    """A chunk of items whose operations are all complete: where each begins, and how many items it has."""

    chunk: RowChunk
    starts: Column
    counts: Column
    incomplete: int
    """Operations with missing rows; they are not in the chunk."""

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, name: str, rows: Column | None = None) -> Column:
        """A column, of the first item of each operation, or of the operations in some rows."""
        values = self.chunk.column(name)
        starts = self.starts if rows is None else self.starts.take(rows)
        return values if len(values) == len(starts) else values.take(starts)


def complete_operations(chunk: RowChunk) -> CompleteOperations:
    """Finds the operations in a chunk of registrations or outcomes, and drops incomplete ones."""
    rows = len(chunk)
    if "item_count" not in chunk.columns and "item" not in chunk.columns:
        return CompleteOperations(chunk, np.arange(rows), np.ones(rows, np.int64), 0)
    items = chunk.column("item")
    starts = np.flatnonzero(items == 0)
    counts = np.diff(starts, append=rows)
    complete = counts == chunk.column("item_count")[starts]
    orphans = int(starts[0]) if len(starts) else rows
    if not orphans and bool(np.all(complete)):
        return CompleteOperations(chunk, starts, counts, 0)
    kept = np.zeros(rows, np.bool_)
    kept[orphans:] = np.repeat(complete, counts)
    found = complete_operations(chunk.take(kept)) if kept.any() else None
    incomplete = len(starts) - int(np.count_nonzero(complete)) + int(orphans > 0)
    if found is None:
        empty = np.empty(0, np.int64)
        return CompleteOperations(chunk.slice(0, 0), empty, empty, incomplete)
    return CompleteOperations(found.chunk, found.starts, found.counts, incomplete)


class RegisteredOperations:
    def __init__(self, whole: CompleteOperations, first_id: int, topics: dict[str, int]) -> None:
        chunk = whole.chunk
        self.rows: Final = len(whole)
        self.ids: Final = np.arange(first_id, first_id + self.rows)
        self.call: Final = whole.first("call").astype(np.int64)
        self.time: Final = whole.first("time").astype(np.int64)
        self.session: Final = whole.first("session").astype(np.int64)
        self.operation: Final = whole.first("operation").astype(np.int64)
        self.kind: Final = whole.first("kind").astype(np.int64)
        self.timeout_ms: Final = whole.first("timeout_ms").astype(np.int64)
        self.min_bytes: Final = whole.first("min_bytes").astype(np.int64)
        self.item_counts: Final = whole.counts
        self.names: Final = chunk.names
        self._names_of_items: Final = chunk.column("name")
        of_names = topics_of(chunk.names, topics)
        self.topic: Final = of_names[whole.first("name")]
        """Of the first item, as numbered in `topics`; 0: a signal's key."""
        self._whole: Final = whole
        self._batches: dict[int, dict[str, Any]] = {}

    def batch(self, kind: int, timeouts_ms: Column, min_bytes: Column) -> OperationBatch:
        """The operations of one kind. Columns that no policy changes are made once for all policies."""
        chosen = self.kind == kind
        rows = None if bool(np.all(chosen)) else np.flatnonzero(chosen)
        fixed = self._batches.get(kind)
        if fixed is None:
            fixed = self._batches[kind] = self._fixed(kind, rows)
        ids = (self.ids if rows is None else self.ids.take(rows)).tolist()
        own = {"timeouts_ms": listed(timeouts_ms, rows)}
        if kind == codes.FETCH:
            own["min_bytes"] = listed(min_bytes, rows)
        return OperationBatch(ids, **own, **fixed)

    def _fixed(self, kind: int, rows: Column | None) -> dict[str, Any]:
        columns = self._whole.chunk.columns
        single = len(self._names_of_items) == self.rows
        items = rows if rows is None or single else np.flatnonzero(np.repeat(self.kind == kind, self.item_counts))
        names, places = self._dictionary(items)
        fixed: dict[str, Any] = {"item_indexes": listed(places, None)}
        if kind == codes.SIGNAL:
            fixed["keys"] = [key for key, _ in names]
        else:
            fixed["partitions"] = names
        if not single:
            fixed["item_counts"] = listed(self.item_counts, rows)
        for column in FIXED_COLUMNS:
            if column.name not in columns:
                continue
            of_operations = column.level == OPERATION
            values = self._whole.first(column.name, rows) if of_operations else columns[column.name]
            chosen = None if of_operations else items
            fixed[column.batch_name] = listed(values != 0 if column.type_name == BOOL else values, chosen)
        return fixed

    def _dictionary(self, items: Column | None) -> tuple[list[Name], Column]:
        """The names of some items, and for each item its place among them."""
        places = self._names_of_items if items is None else self._names_of_items.take(items)
        used = np.zeros(len(self.names), np.int64)
        used[places] = 1
        kept = np.flatnonzero(used)
        used[kept] = np.arange(len(kept))
        return [self.names[place] for place in kept.tolist()], used[places]


def listed(values: Column, rows: Column | None) -> list[Any]:
    """A column, or some rows of it, as a batch has it: a single value if all are the same."""
    chosen = values if rows is None else values.take(rows)
    if len(chosen) > 1 and chosen[0] == chosen[-1] and bool(np.all(chosen == chosen[0])):
        return [chosen[0].item()]
    found: list[Any] = chosen.tolist()
    return found


def topics_of(names: list[Name], topics: dict[str, int]) -> Column:
    """The topic of each name as a number, added to `topics` if new; 0 for keys, of which there may be too many."""
    found = [
        0 if partition == NO_PARTITION else topics.setdefault(topic, len(topics) + 1) for topic, partition in names
    ]
    return np.array(found, np.int64)
