"""Rows of `outcomes` from the pieces of the calls that ended something."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.archive.arrow_columns import arrow, constant, finish, plain, spread, worded
from purgatory.archive.calls import CallStamp, Registrant
from purgatory.archive.gathering import Gathered
from purgatory.archive.packing import FETCH_COLUMNS
from purgatory.archive.schema import KIND_WORDS, OUTCOME_WORDS, OUTCOMES, SCHEMAS
from purgatory.engine.codes import FETCH
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.packed_columns import COMPLETION_COLUMNS

__all__ = ["OutcomeRows"]

REMAINING: Final = "estimated_remaining_ms"
"""Only what has expired has it, and a pace; elsewhere completions say -1."""
WORDS: Final = {"kind": KIND_WORDS, "outcome": OUTCOME_WORDS}


class OutcomeRows(Gathered):
    """Gathers pieces; `take` makes rows of them."""

    def __init__(self) -> None:
        super().__init__(COMPLETION_COLUMNS)
        self._paces: list[tuple[int, int, bytes]] = []
        """Of each piece that has some: its first row, its rows, and their paces."""
        self._fetched: list[tuple[int, ...]] = []

    def add_completions(self, stamp: CallStamp, registrant: Registrant, completions: Completions) -> None:
        """What a call ended of one registrant's."""
        self._packer.begin_call(stamp)
        self._packer.add_completions(registrant, completions)

    def _add_extra(self, extra: tuple[bytes, list[tuple[int, ...]]], first_row: int, rows: int) -> None:
        paces, fetched = extra
        if paces:
            self._paces.append((first_row, rows, paces))
        self._fetched += fetched

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        self._unpack()
        rows, types = self.rows, {field.name: field.type for field in SCHEMAS[OUTCOMES]}
        columns = self._calls.take()
        columns["item"], operation_of = spread(self._operations.column("item_count", pa.int64()), rows)
        for name in COMPLETION_COLUMNS.of_operations:
            words = WORDS.get(name)
            column = self._operations.column(name, types[name] if words is None else pa.int32())
            spread_out = column if operation_of is None else column.take(operation_of)
            columns[name] = spread_out if words is None else worded(spread_out, words)
        for name in COMPLETION_COLUMNS.of_rows:
            columns[name] = self._rows.column(name, types[name])
        columns[REMAINING] = null_below_zero(columns[REMAINING])
        columns["pace_per_second"] = self._take_paces()
        columns["topic"], columns["partition"] = self._names.take()
        columns |= self._take_fetched(columns["kind"], rows)
        self.clear()
        return finish(OUTCOMES, columns)

    def _take_paces(self) -> pa.Array:
        """The column of paces, null where absent."""
        given, self._paces = self._paces, []
        if not given:
            return constant(None, pa.float64(), self.rows)
        values = np.full(self.rows, -1.0)
        for first_row, rows, paces in given:
            values[first_row : first_row + rows] = np.frombuffer(paces)
        return null_below_zero(arrow(values, None, pa.float64()))

    def _take_fetched(self, kinds: pa.DictionaryArray, rows: int) -> dict[str, pa.Array]:
        """The columns that only fetches have."""
        schema = SCHEMAS[OUTCOMES]
        fetched, self._fetched = self._fetched, []
        if not fetched:
            return {name: constant(None, schema.field(name).type, rows) for name in FETCH_COLUMNS}
        is_fetch = plain(kinds.indices, np.dtype(np.int32)) == FETCH
        columns: dict[str, pa.Array] = {}
        for place, name in enumerate(FETCH_COLUMNS):
            arrow_type = schema.field(name).type
            values = np.zeros(rows, dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = [part[place] for part in fetched]
            columns[name] = arrow(values, None if is_fetch.all() else ~is_fetch, arrow_type)
        return columns


def null_below_zero(column: pa.Array) -> pa.Array:
    """The column with null for what is absent, which completions give as -1."""
    values = plain(column, np.dtype(column.type.to_pandas_dtype()))
    absent = values < 0
    return constant(None, column.type, len(column)) if absent.all() else arrow(values, absent, column.type)
