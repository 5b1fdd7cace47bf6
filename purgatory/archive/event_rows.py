"""Rows of `events` from the pieces of the calls that applied them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from purgatory.archive.event_pieces import SETS, event_pieces
from purgatory.archive.gathering import Gathered, arrow, constant, finish, worded
from purgatory.archive.pieces import CallStamp
from purgatory.archive.schema import EVENT_WORDS, EVENTS, SCHEMAS
from purgatory.engine.batches import EventBatch, EventsReceipt
from purgatory.engine.packed_columns import EVENT_COLUMNS, Piece

__all__ = ["EventRows"]


class EventRows(Gathered):
    """Gathers pieces; `take` makes rows of them."""

    def __init__(self) -> None:
        super().__init__(EVENT_COLUMNS)
        self._sets: list[tuple[int, tuple[Any, ...]]] = []
        """The rows that have replica sets, and these."""

    def add_slice(self, stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """The events from `start` to `receipt.next_index`, and what they did."""
        for piece in event_pieces(self._writer, batch, start, receipt):
            self.add(stamp, piece)

    def add(self, stamp: CallStamp, piece: Piece) -> None:
        """One more piece."""
        self._sets += [(row, sets) for row, sets in enumerate(piece.sets, self.rows) if sets is not None]
        super().add(stamp, piece)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        rows = self.rows
        counts = np.array(self._calls.counts)
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
