"""Rows of `events` from the pieces of the calls that applied them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from purgatory.archive.arrow_columns import arrow, constant, finish, worded
from purgatory.archive.calls import CallStamp
from purgatory.archive.gathering import Gathered
from purgatory.archive.packing import SETS
from purgatory.archive.schema import EVENT_WORDS, EVENTS, SCHEMAS
from purgatory.engine.batches import EventBatch, EventsReceipt
from purgatory.engine.snapshot.packed_columns import EVENT_COLUMNS

__all__ = ["EventRows"]


class EventRows(Gathered):
    """Gathers pieces; `take` makes rows of them."""

    def __init__(self) -> None:
        super().__init__(EVENT_COLUMNS)
        self._sets: list[tuple[int, tuple[Any, ...]]] = []
        """The rows that have replica sets, and these."""

    def add_slice(self, stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """The events from `start` to `receipt.next_index`, and what they did."""
        self._packer.begin_call(stamp)
        self._packer.add_slice(batch, start, receipt)

    def _add_extra(self, extra: list[tuple[Any, ...] | None], first_row: int, rows: int) -> None:
        assert len(extra) == rows, f"{len(extra)} replica sets of {rows} events"
        self._sets += [(row, sets) for row, sets in enumerate(extra, first_row) if sets is not None]

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        self._unpack()
        rows, counts = self.rows, self._calls.counts
        starts = np.cumsum(counts) - counts
        columns = self._calls.take()
        columns["row"] = arrow((np.arange(rows) - np.repeat(starts, counts)).astype(np.int32), None, pa.int32())
        columns["type"] = worded(self._rows.column("type", pa.int32()), EVENT_WORDS)
        for name in EVENT_COLUMNS.of_rows[1:]:
            columns[name] = self._rows.column(name, SCHEMAS[EVENTS].field(name).type)
        columns["topic"], columns["partition"] = self._names.take()
        columns |= self._take_sets(rows)
        self.clear()
        return finish(EVENTS, columns)

    def _take_sets(self, rows: int) -> dict[str, pa.Array]:
        schema = SCHEMAS[EVENTS]
        given, self._sets = self._sets, []
        if not given:
            return {name: constant(None, schema.field(name).type, rows) for name in SETS}
        columns: dict[str, list[Any]] = {name: [None] * rows for name in SETS}
        for row, sets in given:
            for name, value in zip(SETS, sets, strict=True):
                columns[name][row] = value
        return {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
