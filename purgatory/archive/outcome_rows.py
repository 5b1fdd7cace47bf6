"""Rows of `outcomes` from the completions that the engine gave."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.archive.gathering import (
    Calls,
    CallStamp,
    Column,
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
from purgatory.engine.codes import EXPIRED, FETCH
from purgatory.engine.completions import Completions, FetchedPartition

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
    ("pace_per_second", "paces_per_second"),
)
"""(column, field of `Completions`)."""

FETCH_COLUMNS: Final = (
    "available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset",
)  # fmt: skip
ABSENT_BELOW_ZERO: Final = frozenset({"estimated_remaining_ms", "pace_per_second"})
"""Only what has expired has them; elsewhere completions say -1."""
ABSENT: Final = (-1,)
WORDS: Final = {"kind": KIND_WORDS, "outcome": OUTCOME_WORDS}


class OutcomeRows:
    """Gathers completions; `take` makes rows of them."""

    def __init__(self) -> None:
        self.rows = 0
        """Gathered so far."""
        schema = SCHEMAS[OUTCOMES]
        types = {name: pa.int32() if name in WORDS else schema.field(name).type for name in schema.names}
        self._calls: Final = Calls()
        self._of_operations: Final = [(name, field, Column(types[name])) for name, field in OPERATION_COLUMNS]
        self._of_items: Final = [(name, field, Column(types[name])) for name, field in ITEM_COLUMNS]
        self._names: Final = Names()
        self._fetched: Final[list[FetchedPartition]] = []

    def add(self, stamp: CallStamp, registrant: Registrant, completions: Completions) -> None:
        """What a call ended of one registrant's."""
        operations, rows = len(completions), len(completions.item_partitions)
        self.rows += rows
        self._calls.add(stamp, rows, registrant)
        for _, field, column in self._of_operations:
            column.add(getattr(completions, field), operations)
        none_expired = EXPIRED not in completions.outcomes
        for name, field, column in self._of_items:
            is_absent = none_expired and name in ABSENT_BELOW_ZERO
            column.add(ABSENT if is_absent else getattr(completions, field), rows)
        self._names.add(completions.item_partitions)
        self._fetched.extend(completions.fetched)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        rows = self.rows
        columns = self._calls.take()
        of_operations = {name: column.take() for name, _, column in self._of_operations}
        columns["item"], operation_of = spread(of_operations["item_count"], rows)
        for name, array in of_operations.items():
            spread_out = array if operation_of is None else array.take(operation_of)
            words = WORDS.get(name)
            columns[name] = spread_out if words is None else worded(spread_out, words)
        for name, _, column in self._of_items:
            columns[name] = null_below_zero(column.take()) if name in ABSENT_BELOW_ZERO else column.take()
        columns["topic"], columns["partition"] = self._names.take()
        columns |= self._take_fetched(columns["kind"], rows)
        self.rows = 0
        return finish(OUTCOMES, columns)

    def _take_fetched(self, kinds: pa.DictionaryArray, rows: int) -> dict[str, pa.Array]:
        """The columns that only fetches have."""
        schema, fetched = SCHEMAS[OUTCOMES], self._fetched
        if not fetched:
            return {name: constant(None, schema.field(name).type, rows) for name in FETCH_COLUMNS}
        is_fetch = plain(kinds.indices, np.dtype(np.int32)) == FETCH
        columns: dict[str, pa.Array] = {}
        for name in FETCH_COLUMNS:
            arrow_type = schema.field(name).type
            values = np.zeros(rows, dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = [getattr(part, name) for part in fetched]
            columns[name] = arrow(values, None if is_fetch.all() else ~is_fetch, arrow_type)
        fetched.clear()
        return columns


def null_below_zero(column: pa.Array) -> pa.Array:
    """The column with null for what is absent, which completions give as -1."""
    values = plain(column, np.dtype(column.type.to_pandas_dtype()))
    absent = values < 0
    return constant(None, column.type, len(column)) if absent.all() else arrow(values, absent, column.type)
