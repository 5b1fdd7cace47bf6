"""Registered operations and events as the engine's batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.kinds.operation_columns import BOOL, COLUMNS_BY_NAME, OPERATION
from purgatory.extensions.archive.schema import EVENTS, NO_PARTITION
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.engine_rows.row_chunk import DEFAULTS, Column, Name, RowChunk

FIXED_COLUMNS: Final = [column for name, column in COLUMNS_BY_NAME.items() if name != "min_bytes"]
"""Columns that no policy changes."""


@dataclass(frozen=True)
class CompleteOperations:
    """A chunk of items whose operations are all complete: where each begins, and how many items it has."""

    chunk: RowChunk
    starts: Column
    counts: Column
    incomplete: int = 0
    """Operations with missing rows; they are not in the chunk."""

    def __len__(self) -> int:
        return len(self.starts)

    def first(self, name: str) -> Column:
        """A column, of the first item of each operation."""
        values = self.chunk.column(name)
        return (values if len(values) == len(self) else values.take(self.starts)).astype(np.int64)

    def take(self, chosen: Flags) -> "CompleteOperations":
        """Some operations, and no rows before the first."""
        counts = self.counts[chosen]
        before = np.zeros(len(self.chunk) - int(self.counts.sum()), np.bool_)
        chunk = self.chunk.take(np.concatenate([before, np.repeat(chosen, self.counts)]))
        return CompleteOperations(chunk, np.cumsum(counts) - counts, counts)


def complete_operations(chunk: RowChunk) -> CompleteOperations:
    """Finds the operations in a chunk of registrations or outcomes, and drops incomplete ones."""
    rows = len(chunk)
    if "item_count" not in chunk.columns and "item" not in chunk.columns:
        return CompleteOperations(chunk, np.arange(rows), np.ones(rows, np.int64))
    starts = np.flatnonzero(chunk.column("item") == 0)
    found = CompleteOperations(chunk, starts, np.diff(starts, append=rows))
    complete = found.counts == found.first("item_count")
    begins_within = int(found.counts.sum()) < rows
    incomplete = int(np.count_nonzero(~complete)) + begins_within
    return replace(found.take(complete), incomplete=incomplete) if incomplete else found


class RegisteredOperations:
    """The operations registered in a window. `topics` numbers the topics of the run, from 1."""

    def __init__(self, whole: CompleteOperations, first_id: int, topics: dict[str, int]) -> None:
        self.rows: Final = len(whole)
        self.ids: Final = np.arange(first_id, first_id + self.rows)
        self.call: Final = whole.first("call")
        self.time: Final = whole.first("time")
        self.session: Final = whole.first("session")
        self.operation: Final = whole.first("operation")
        self.kind: Final = whole.first("kind")
        self.timeout_ms: Final = whole.first("timeout_ms")
        self.min_bytes: Final = whole.first("min_bytes")
        self.item_counts: Final = whole.counts
        self.topic: Final = topics_of(whole.chunk.names, topics)[whole.first("name")]
        """The topic of each operation's first item, as numbered in `topics`; 0: a signal's key."""
        self._whole: Final = whole
        self._batches: dict[int, dict[str, Any]] = {}

    def batches(self, timeouts_ms: Column, min_bytes: Column) -> list[OperationBatch | None]:
        """By kind; None for kinds without operations."""
        there = set(np.flatnonzero(np.bincount(self.kind)).tolist())
        kinds = range(max(codes.KINDS) + 1)
        return [self._batch(kind, timeouts_ms, min_bytes) if kind in there else None for kind in kinds]

    def _batch(self, kind: int, timeouts_ms: Column, min_bytes: Column) -> OperationBatch:
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
        chunk = self._whole.chunk
        single = len(chunk) == self.rows
        items = rows if rows is None or single else np.flatnonzero(np.repeat(self.kind == kind, self.item_counts))
        names_of_items = chunk.columns["name"]
        places, used = pd.factorize(names_of_items if items is None else names_of_items.take(items), sort=True)
        names = [chunk.names[place] for place in used.tolist()]
        is_key = [kind == codes.SIGNAL or (kind == codes.COMPOSITE and name[1] == NO_PARTITION) for name in names]
        if kind == codes.COMPOSITE:
            # Only these have both: the keys come after the partitions.
            order = np.argsort(is_key, kind="stable")
            places = np.argsort(order).astype(places.dtype)[places]
        fixed: dict[str, Any] = {
            "item_indexes": listed(places, None),
            "partitions": [name for name, has_key in zip(names, is_key, strict=True) if not has_key],
            "keys": [name[0] for name, has_key in zip(names, is_key, strict=True) if has_key],
        }
        if not single:
            fixed["item_counts"] = listed(self.item_counts, rows)
        for column in FIXED_COLUMNS:
            if column.name in chunk.columns:
                of_operations = column.level == OPERATION
                values = self._whole.first(column.name) if of_operations else chunk.columns[column.name]
                shown = values != 0 if column.type_name == BOOL else values
                fixed[column.batch_name] = listed(shown, rows if of_operations else items)
        return fixed


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


EVENT_COLUMNS: Final = {
    name: name if name == "flags" else f"{name}s" for name in DEFAULTS[EVENTS] if name not in ("row", "copy")
}
"""Columns of a chunk, and their names in an `EventBatch`."""


def event_batch(chunk: RowChunk) -> EventBatch:
    columns = chunk.columns
    sets: list[ReplicaSets | None] = []
    if chunk.details:
        sets = [None] * len(chunk)
        for row, detail in zip(chunk.detail_rows.tolist(), chunk.details, strict=True):
            sets[row] = replica_sets(detail)
    given = {field: listed(columns[name], None) for name, field in EVENT_COLUMNS.items() if name in columns}
    return EventBatch(
        columns["type"].tolist(),
        partitions=chunk.names,
        keys=[topic for topic, _ in chunk.names],
        item_indexes=listed(columns["name"], None),
        replica_sets=sets,
        **given,
    )


def replica_sets(detail: Sequence[Any]) -> ReplicaSets | None:
    """The replica sets of an event, in the order of `arrow_chunks.SETS`; None if it has none.

    Archives have all lists of such an event, rows of a stream those that were given.
    """
    replicas, in_sync, proposed, leader_id, minimum = detail
    if all(value is None for value in detail):
        return None
    return ReplicaSets(
        replicas=replicas or [],
        in_sync=in_sync or [],
        proposed=proposed or [],
        leader_id=-1 if leader_id is None else leader_id,
        min_in_sync_replicas=-1 if minimum is None else minimum,
    )
