"""Rows of `events` from the batches that were applied and the receipts of their slices."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.archive.gathering import (
    NAMELESS,
    Calls,
    CallStamp,
    Columns,
    Names,
    arrow,
    constant,
    finish,
    keys_as_names,
    worded,
)
from purgatory.archive.schema import ACCEPTED, EVENT_WORDS, EVENTS, SCHEMAS
from purgatory.engine.batches import EventBatch, EventsReceipt, PartitionName, ReplicaSets
from purgatory.engine.codes import EVENT_NAMES, KEY_SIGNALLED
from purgatory.engine.columns import value_at

__all__ = ["EventRows"]

COLUMNS: Final = (
    ("offset", "offsets"),
    ("leader_epoch", "leader_epochs"),
    ("replica_id", "replica_ids"),
    ("byte_position", "byte_positions"),
    ("segment_base_offset", "segment_base_offsets"),
    ("log_start_offset", "log_start_offsets"),
    ("flags", "flags"),
)
"""(column, field of `EventBatch`)."""

SETS: Final = ("replicas", "in_sync", "proposed")
SETS_NUMBERS: Final = ("leader_id", "min_in_sync_replicas")


class EventRows:
    """Gathers slices of batches of events; `take` makes rows of them."""

    def __init__(self) -> None:
        self.rows = 0
        """Gathered so far."""
        self._calls: Final = Calls()
        self._columns: Final = Columns()
        self._names: Final = Names()
        self._sets: Final[list[tuple[int, list[ReplicaSets | None]]]] = []
        """Of the slices that have any: their first row, and the sets of each row."""

    def add(self, stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """The events from `start` to `receipt.next_index`, and what they did."""
        stop = receipt.next_index
        count = stop - start
        types = batch.types[start:stop]
        codes = [ACCEPTED]
        if receipt.refusals:
            code_of = {refusal.index: refusal.code for refusal in receipt.refusals}
            codes = [code_of.get(row, ACCEPTED) for row in range(start, stop)]
            types = [event_type if event_type in EVENT_NAMES else 0 for event_type in types]
        if batch.replica_sets:
            self._sets.append((self.rows, batch.replica_sets[start:stop]))
        self.rows += count
        self._calls.add(stamp, count)
        columns = {name: _sliced(getattr(batch, field), start, stop) for name, field in COLUMNS}
        self._columns.add(count, {"type": types, "refusal_code": codes, "ended": receipt.ended, **columns})
        self._add_names(batch, types, start, receipt)

    def _add_names(self, batch: EventBatch, types: list[int], start: int, receipt: EventsReceipt) -> None:
        """The dictionary of partitions and that of keys as one; where an event points outside its own, no name."""
        stop = receipt.next_index
        if not receipt.refusals and not batch.keys:
            self._names.add_indexes(batch.partitions, _sliced(batch.item_indexes, start, stop), stop - start)
            return
        partitions = len(batch.partitions)
        names: list[PartitionName] = [*batch.partitions, *keys_as_names(batch.keys)]
        places: list[int] = []
        for row, event_type in enumerate(types, start):
            place = value_at(batch.item_indexes, row, 0)
            first, length = (partitions, len(batch.keys)) if event_type == KEY_SIGNALLED else (0, partitions)
            places.append(first + place if 0 <= place < length else NAMELESS)
        self._names.add_indexes(names, places, stop - start)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        rows = self.rows
        counts = np.array(self._calls.counts)
        starts = np.cumsum(counts) - counts
        columns = self._calls.take()
        columns["row"] = arrow((np.arange(rows) - np.repeat(starts, counts)).astype(np.int32), None, pa.int32())
        columns["type"] = worded(self._columns.column("type", pa.int32()), EVENT_WORDS)
        for name in ("refusal_code", "ended", *(name for name, _ in COLUMNS)):
            columns[name] = self._columns.column(name, SCHEMAS[EVENTS].field(name).type)
        columns["topic"], columns["partition"] = self._names.take()
        columns |= self._take_sets(rows)
        self._columns.clear()
        self.rows = 0
        return finish(EVENTS, columns)

    def _take_sets(self, rows: int) -> dict[str, pa.Array]:
        schema = SCHEMAS[EVENTS]
        names = SETS + SETS_NUMBERS
        if not any(sets is not None for _, part in self._sets for sets in part):
            self._sets.clear()
            return {name: constant(None, schema.field(name).type, rows) for name in names}
        columns: dict[str, list[Any]] = {name: [None] * rows for name in names}
        for first, part in self._sets:
            for row, sets in enumerate(part, first):
                if sets is not None:
                    for name in names:
                        columns[name][row] = getattr(sets, name)
        self._sets.clear()
        return {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}


def _sliced(values: list[int], start: int, stop: int) -> list[int]:
    """The values of some rows of a column, which may also have one for all, or none."""
    return values[start:stop] if len(values) > 1 else values
