"""Rows of `outcomes` from the completions that the engine gave."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.archive.gathering import Calls, CallStamp, Registrant, Words, finish, numbers
from purgatory.archive.registration_rows import spread
from purgatory.archive.schema import KIND_WORDS, OUTCOME_WORDS, OUTCOMES, SCHEMAS
from purgatory.engine.codes import FETCH
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
WORDS: Final = {"kind": KIND_WORDS, "outcome": OUTCOME_WORDS}


class OutcomeRows:
    """Gathers completions; `take` makes rows of them. They must not change any more."""

    def __init__(self) -> None:
        self.rows = 0
        """Gathered so far."""
        self._calls: Final = Calls()
        self._completions: Final[list[Completions]] = []

    def add(self, stamp: CallStamp, registrant: Registrant, completions: Completions) -> None:
        """What a call ended of one registrant's."""
        self.rows += len(completions.item_partitions)
        self._calls.add(stamp, registrant)
        self._completions.append(completions)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        parts, rows = self._completions, self.rows
        counts = [len(part.item_partitions) for part in parts]
        columns = self._calls.take(counts)
        of_operations = {name: self._column(name, field) for name, field in OPERATION_COLUMNS}
        columns["item"], operation_of = spread(of_operations["item_count"], rows)
        for name, column in of_operations.items():
            spread_out = column if operation_of is None else column.take(operation_of)
            words = WORDS.get(name)
            columns[name] = spread_out if words is None else pa.DictionaryArray.from_arrays(spread_out, pa.array(words))
        for name, field in ITEM_COLUMNS:
            columns[name] = self._column(name, field)
        columns["topic"], columns["partition"] = self._names()
        columns |= self._fetched(columns["kind"])
        parts.clear()
        self.rows = 0
        return finish(OUTCOMES, columns)

    def _column(self, name: str, field: str) -> pa.Array:
        """One column of all parts."""
        arrow_type = pa.int32() if name in WORDS else SCHEMAS[OUTCOMES].field(name).type
        flat: list[Any] = list(chain.from_iterable([getattr(part, field) for part in self._completions]))
        absent_below_zero = name in ABSENT_BELOW_ZERO
        if flat.count(flat[0]) == len(flat):
            if absent_below_zero and flat[0] < 0:
                return pa.nulls(len(flat), arrow_type)
            return pa.repeat(pa.scalar(flat[0], arrow_type), len(flat))
        values = numbers(flat, arrow_type)
        return pa.array(values, arrow_type, mask=values < 0 if absent_below_zero else None)

    def _names(self) -> tuple[pa.Array, pa.Array]:
        """The columns `topic` and `partition`: each name costs one look-up."""
        known = _Known()
        names = chain.from_iterable([part.item_partitions for part in self._completions])
        places = np.fromiter(map(known.__getitem__, names), dtype=np.int64, count=self.rows)
        words = Words()
        topics = np.array([words[topic] for topic, _ in known], dtype=np.int32)
        partitions = np.array([partition for _, partition in known], dtype=np.int32)
        return words.column(topics[places]), pa.array(partitions[places])

    def _fetched(self, kinds: pa.DictionaryArray) -> dict[str, pa.Array]:
        """The columns that only fetches have."""
        schema = SCHEMAS[OUTCOMES]
        fetched: list[FetchedPartition] = list(chain.from_iterable([part.fetched for part in self._completions]))
        if not fetched:
            return {name: pa.nulls(self.rows, schema.field(name).type) for name in FETCH_COLUMNS}
        is_fetch = kinds.indices.to_numpy(zero_copy_only=False) == FETCH
        columns: dict[str, pa.Array] = {}
        for name in FETCH_COLUMNS:
            arrow_type = schema.field(name).type
            values = np.zeros(self.rows, dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = [getattr(part, name) for part in fetched]
            columns[name] = pa.array(values, arrow_type, mask=None if is_fetch.all() else ~is_fetch)
        return columns


class _Known(dict[tuple[str, int], int]):
    """Names by the place of their first mention: looking one up enters it."""

    def __missing__(self, name: tuple[str, int]) -> int:
        place = self[name] = len(self)
        return place
