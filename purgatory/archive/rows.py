"""From engine calls to rows of the archive's tables: what a call was given and what it gave, as Arrow record batches.

    registration_rows   a batch and its receipt
    outcome_rows        completions
    event_rows          a slice of a batch of events and its receipt
    call_row            one of the other calls
    marker_row          what happened to the archive itself

Each has the schema of its table (`purgatory.archive.schema`). Where there are many small batches, gather them first in
`RegistrationRows`, `OutcomeRows`, `EventRows` or `SingleRows`: making Arrow arrays costs as much for one row as for
hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from purgatory.archive.event_rows import EventRows
from purgatory.archive.outcome_rows import OutcomeRows
from purgatory.archive.pieces import CallStamp, Registrant, Row, call_values, marker_values
from purgatory.archive.registration_rows import RegistrationRows
from purgatory.archive.schema import CALLS, MARKERS, SCHEMAS
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, RegisterReceipt
from purgatory.engine.completions import Completions

__all__ = [
    "EventRows",
    "OutcomeRows",
    "RegistrationRows",
    "SingleRows",
    "call_row",
    "event_rows",
    "marker_row",
    "outcome_rows",
    "registration_rows",
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


def call_row(
    stamp: CallStamp,
    call: str,
    *,
    session_number: int | None = None,
    operation_ids: Sequence[int] | None = None,
    topic: str | None = None,
    partition: int | None = None,
    ended: int,
) -> pa.RecordBatch:
    """One of schema.CALL_NAMES. For CANCEL_KEY the topic is the key and the partition NO_PARTITION."""
    values = call_values(
        call,
        session_number=session_number,
        operation_ids=operation_ids,
        topic=topic,
        partition=partition,
        ended=ended,
    )
    rows = SingleRows(CALLS)
    rows.add(stamp, values)
    return rows.take()


def marker_row(
    stamp: CallStamp,
    marker: str,
    *,
    table: str | None = None,
    rows: int | None = None,
    last_call_number: int | None = None,
    detail: str | None = None,
) -> pa.RecordBatch:
    """One of schema.MARKER_NAMES."""
    gathered = SingleRows(MARKERS)
    gathered.add(stamp, marker_values(marker, table=table, rows=rows, last_call_number=last_call_number, detail=detail))
    return gathered.take()


class SingleRows:
    """Gathers rows that come one by one: calls or markers."""

    def __init__(self, table: str) -> None:
        self._schema: Final = SCHEMAS[table]
        self._rows: Final[list[Row]] = []

    @property
    def rows(self) -> int:
        """Gathered so far."""
        return len(self._rows)

    def add(self, stamp: CallStamp, values: Row) -> None:
        """One row: of `call_values` or `marker_values`."""
        common = {
            "run_id": stamp.run_id,
            "call_number": stamp.call_number,
            "time_ms": stamp.time_ms,
            "at": stamp.at_ms,
        }
        self._rows.append(common | values)

    def take(self) -> pa.RecordBatch:
        """All that was gathered. There must be some."""
        columns = [pa.array([row[field.name] for row in self._rows], field.type) for field in self._schema]
        self._rows.clear()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
