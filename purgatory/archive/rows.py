"""From engine calls to rows of the archive's tables: what a call was given and what it gave, as Arrow record batches.

    registration_rows   a batch and its receipt
    outcome_rows        completions
    event_rows          a slice of a batch of events and its receipt
    single_row          one of the other calls, or what happened to the archive itself

Each has the schema of its table (`purgatory.archive.schema`). Where there are many small batches, gather them first in
`RegistrationRows`, `OutcomeRows`, `EventRows` or `SingleRows`: making Arrow arrays costs as much for one row as for
hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from purgatory.archive.calls import CallStamp, Registrant, Row
from purgatory.archive.event_rows import EventRows
from purgatory.archive.outcome_rows import OutcomeRows
from purgatory.archive.packing import Chunk
from purgatory.archive.pieces import Numbers, extra_at, stamp_at
from purgatory.archive.registration_rows import RegistrationRows
from purgatory.archive.schema import SCHEMAS
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, RegisterReceipt
from purgatory.engine.completions import Completions

__all__ = [
    "EventRows",
    "OutcomeRows",
    "RegistrationRows",
    "SingleRows",
    "event_rows",
    "outcome_rows",
    "registration_rows",
    "single_row",
]


def registration_rows(
    stamp: CallStamp,
    registrant: Registrant,
    kind: int,
    batch: OperationBatch,
    receipt: RegisterReceipt,
    timeout_ms_default: int,
) -> pa.RecordBatch:
    """What was registered and what was refused, one row for each item; nothing of what was known already."""
    rows = RegistrationRows()
    rows.add_batch(stamp, registrant, kind, batch, receipt, timeout_ms_default)
    return rows.take()


def outcome_rows(stamp: CallStamp, registrant: Registrant, completions: Completions) -> pa.RecordBatch:
    """What has ended, one row for each item."""
    rows = OutcomeRows()
    rows.add_completions(stamp, registrant, completions)
    return rows.take()


def event_rows(stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> pa.RecordBatch:
    """The events from `start` to `receipt.next_index`, one row each."""
    rows = EventRows()
    rows.add_slice(stamp, batch, start, receipt)
    return rows.take()


def single_row(table: str, stamp: CallStamp, values: Row) -> pa.RecordBatch:
    """One of the other calls, or a marker: `values` are its own columns, of `call_values` or `marker_values`."""
    rows = SingleRows(table)
    rows.add_row(stamp, values)
    return rows.take()


class SingleRows:
    """Gathers rows that come one by one: calls or markers."""

    def __init__(self, table: str) -> None:
        self._schema: Final = SCHEMAS[table]
        self._rows: Final[list[Row]] = []

    @property
    def rows(self) -> int:
        """Gathered so far."""
        return len(self._rows)

    def add_row(self, stamp: CallStamp, values: Row) -> None:
        """One row: of `call_values` or `marker_values`."""
        run_id, call_number, time_ms, at_ms = stamp
        self._rows.append({"run_id": run_id, "call_number": call_number, "time_ms": time_ms, "at": at_ms} | values)

    def add(self, chunk: Chunk, numbers: Numbers, starts: Sequence[int]) -> None:
        """The rows of a chunk, whose numbers these are, that begin there."""
        for start in starts:
            self.add_row(stamp_at(chunk, numbers, start), extra_at(chunk, numbers, start))

    def take(self) -> pa.RecordBatch:
        """All that was gathered. There must be some."""
        columns = [pa.array([row[field.name] for row in self._rows], field.type) for field in self._schema]
        self._rows.clear()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
