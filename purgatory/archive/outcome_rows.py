"""Rows of `outcomes` from the completions that the engine gave."""

from __future__ import annotations

from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.archive.gathering import (
    Calls,
    CallStamp,
    Registrant,
    arrow,
    constant,
    finish,
    plain,
    spread,
    topic_and_partition,
    worded,
)
from purgatory.archive.schema import KIND_WORDS, OUTCOME_WORDS, OUTCOMES, SCHEMAS
from purgatory.engine.codes import FETCH
from purgatory.engine.completions import Completions

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
WORDS: Final = {"kind": KIND_WORDS, "outcome": OUTCOME_WORDS}


class OutcomeRows:
    """Gathers completions; `take` makes rows of them."""

    def __init__(self) -> None:
        self.rows = 0
        """Gathered so far."""
        self._calls: Final = Calls()
        self._completions: Final[list[Completions]] = []

    def add(self, stamp: CallStamp, registrant: Registrant, completions: Completions) -> None:
        """What a call ended of one registrant's."""
        rows = len(completions.item_partitions)
        self.rows += rows
        self._calls.add(stamp, rows, registrant)
        self._completions.append(completions)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        rows = self.rows
        columns = self._calls.take()
        of_operations = {name: self._joined(name, field) for name, field in OPERATION_COLUMNS}
        columns["item"], operation_of = spread(of_operations["item_count"], rows)
        for name, array in of_operations.items():
            spread_out = array if operation_of is None else array.take(operation_of)
            words = WORDS.get(name)
            columns[name] = spread_out if words is None else worded(spread_out, words)
        for name, field in ITEM_COLUMNS:
            column = self._joined(name, field)
            columns[name] = null_below_zero(column) if name in ABSENT_BELOW_ZERO else column
        names = chain.from_iterable(completions.item_partitions for completions in self._completions)
        columns["topic"], columns["partition"] = topic_and_partition(list(names))
        columns |= self._take_fetched(columns["kind"], rows)
        self._completions.clear()
        self.rows = 0
        return finish(OUTCOMES, columns)

    def _joined(self, name: str, field: str) -> pa.Array:
        """A column of all completions, from their buffers."""
        arrow_type = pa.int32() if name in WORDS else SCHEMAS[OUTCOMES].field(name).type
        given = np.float64 if arrow_type == pa.float64() else np.int64
        values = np.frombuffer(b"".join([getattr(completions, field) for completions in self._completions]), given)
        return arrow(values.astype(arrow_type.to_pandas_dtype(), copy=False), None, arrow_type)

    def _take_fetched(self, kinds: pa.DictionaryArray, rows: int) -> dict[str, pa.Array]:
        """The columns that only fetches have."""
        schema = SCHEMAS[OUTCOMES]
        fetched = list(chain.from_iterable(completions.fetched for completions in self._completions))
        if not fetched:
            return {name: constant(None, schema.field(name).type, rows) for name in FETCH_COLUMNS}
        is_fetch = plain(kinds.indices, np.dtype(np.int32)) == FETCH
        columns: dict[str, pa.Array] = {}
        for name in FETCH_COLUMNS:
            arrow_type = schema.field(name).type
            values = np.zeros(rows, dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = [getattr(part, name) for part in fetched]
            columns[name] = arrow(values, None if is_fetch.all() else ~is_fetch, arrow_type)
        return columns


def null_below_zero(column: pa.Array) -> pa.Array:
    """The column with null for what is absent, which completions give as -1."""
    values = plain(column, np.dtype(column.type.to_pandas_dtype()))
    absent = values < 0
    return constant(None, column.type, len(column)) if absent.all() else arrow(values, absent, column.type)
