"""Rows of `outcomes` from the completions that the engine gave."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.archive.gathering import (
    Calls,
    CallStamp,
    Columns,
    Names,
    Registrant,
    arrow,
    constant,
    finish,
    plain,
    spread,
    worded,
)
from purgatory.archive.schema import KIND_WORDS, OUTCOME_WORDS, OUTCOMES, SCHEMAS
from purgatory.engine.codes import FETCH
from purgatory.engine.completions import Completions, FetchedPartition
from purgatory.engine.packed_columns import condensed

__all__ = ["OutcomeRows"]

OPERATION_COLUMNS: Final = (
    ("operation_id", "operation_ids"),
    ("kind", "kinds"),
    ("outcome", "outcomes"),
    ("waited_ms", "waited_ms"),
    ("lateness_ms", "lateness_ms"),
    ("item_count", "item_counts"),
)
ITEM_COLUMNS: Final = (
    ("error_code", "error_codes"),
    ("required_offset", "required_offsets"),
    ("reached_offset", "reached_offsets"),
    ("log_start_offset", "log_start_offsets"),
    ("estimated_remaining_ms", "estimated_remaining_ms"),
)
"""(column, field of `Completions`)."""

FETCH_COLUMNS: Final = (
    "available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset",
)  # fmt: skip
REMAINING: Final = "estimated_remaining_ms"
"""Only what has expired has it, and a pace; elsewhere completions say -1."""
WORDS: Final = {"kind": KIND_WORDS, "outcome": OUTCOME_WORDS}


class OutcomeRows:
    """Gathers completions; `take` makes rows of them."""

    def __init__(self) -> None:
        self.rows = 0
        """Gathered so far."""
        self._calls: Final = Calls()
        self._operations: Final = Columns()
        self._items: Final = Columns()
        self._names: Final = Names()
        self._paces: Final[list[bytes]] = []
        self._fetched: Final[list[FetchedPartition]] = []

    def add(self, stamp: CallStamp, registrant: Registrant, completions: Completions) -> None:
        """What a call ended of one registrant's."""
        rows = len(completions.item_partitions)
        self.rows += rows
        self._calls.add(stamp, rows, registrant)
        of_operations = {name: condensed(getattr(completions, field)) for name, field in OPERATION_COLUMNS}
        self._operations.add_packed(len(completions), of_operations)
        self._items.add_packed(rows, {name: condensed(getattr(completions, field)) for name, field in ITEM_COLUMNS})
        self._names.add(completions.item_partitions, rows)
        self._paces.append(bytes(completions.paces_per_second))
        self._fetched.extend(completions.fetched)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        rows, types = self.rows, {field.name: field.type for field in SCHEMAS[OUTCOMES]}
        columns = self._calls.take()
        columns["item"], operation_of = spread(self._operations.column("item_count", pa.int64()), rows)
        for name, _ in OPERATION_COLUMNS:
            words = WORDS.get(name)
            column = self._operations.column(name, types[name] if words is None else pa.int32())
            spread_out = column if operation_of is None else column.take(operation_of)
            columns[name] = spread_out if words is None else worded(spread_out, words)
        for name, _ in ITEM_COLUMNS:
            columns[name] = self._items.column(name, types[name])
        columns[REMAINING] = null_below_zero(columns[REMAINING])
        paces = np.frombuffer(b"".join(self._paces), np.float64)
        columns["pace_per_second"] = null_below_zero(arrow(paces, None, pa.float64()))
        columns["topic"], columns["partition"] = self._names.take()
        columns |= self._take_fetched(columns["kind"], rows)
        for gathered in (self._operations, self._items, self._paces, self._fetched):
            gathered.clear()
        self.rows = 0
        return finish(OUTCOMES, columns)

    def _take_fetched(self, kinds: pa.DictionaryArray, rows: int) -> dict[str, pa.Array]:
        """The columns that only fetches have."""
        schema = SCHEMAS[OUTCOMES]
        if not self._fetched:
            return {name: constant(None, schema.field(name).type, rows) for name in FETCH_COLUMNS}
        is_fetch = plain(kinds.indices, np.dtype(np.int32)) == FETCH
        columns: dict[str, pa.Array] = {}
        for name in FETCH_COLUMNS:
            arrow_type = schema.field(name).type
            values = np.zeros(rows, dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = [getattr(part, name) for part in self._fetched]
            columns[name] = arrow(values, None if is_fetch.all() else ~is_fetch, arrow_type)
        return columns


def null_below_zero(column: pa.Array) -> pa.Array:
    """The column with null for what is absent, which completions give as -1."""
    values = plain(column, np.dtype(column.type.to_pandas_dtype()))
    absent = values < 0
    return constant(None, column.type, len(column)) if absent.all() else arrow(values, absent, column.type)
