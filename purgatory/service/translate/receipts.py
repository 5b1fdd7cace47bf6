"""Batches of either shape from the wire, and the receipts that answer them. Pure functions."""

from collections.abc import Sequence

from purgatory.engine.batches import EventsReceipt, Refusal
from purgatory.service.rpc.statuses import unreadable_batch
from purgatory.service.translate.events import IncomingEvents, events_from_columns, events_from_rows
from purgatory.service.translate.operations import OperationRun, runs_from_columns, runs_from_rows
from purgatory.service.translate.results import event_refusals, operation_refusal, operation_refusals
from purgatory.v1 import purgatory_service_pb2 as wire


class BatchReceipt:
    """What became of a batch of registrations: counts, and the refusals with their operation ids."""

    def __init__(self) -> None:
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        self.refused: list[tuple[Refusal, int]] = []


def runs_of(
    batch: wire.RegisterBatch, operations_max: int, timeout_ms_default: int
) -> tuple[list[OperationRun], list[tuple[Refusal, int]]]:
    """A batch as runs of one kind, and the refusals found on the way, with their ids. Raises `BatchRefused`."""
    if _shape_of(batch, "operation_id", "operations", operations_max) == "columns":
        return runs_from_columns(batch.columns), []
    return runs_from_rows(batch.rows.operations, timeout_ms_default)


def ids_of(batch: wire.RegisterBatch, most: int) -> Sequence[int]:
    """The operation ids of a batch that may not be readable otherwise. Of more than `most` only their number holds."""
    if batch.WhichOneof("shape") == "columns":
        return batch.columns.operation_id
    rows = batch.rows.operations
    return range(len(rows)) if len(rows) > most else [row.operation_id for row in rows]


def events_of(request: wire.AdvanceRequest | wire.AdvanceStreamRequest, events_max: int) -> IncomingEvents:
    """A batch of events. Raises `BatchRefused`."""
    if _shape_of(request, "type", "events", events_max) == "columns":
        return events_from_columns(request.columns)
    return events_from_rows(request.rows.events)


def _shape_of(
    batch: wire.RegisterBatch | wire.AdvanceRequest | wire.AdvanceStreamRequest, column: str, rows: str, most: int
) -> str:
    """`columns` or `rows`, of which there are at most `most`, going by the field of that name."""
    shape: str | None = batch.WhichOneof("shape")
    if shape is None:
        raise unreadable_batch("shape", "is not set: set rows or columns")
    field = column if shape == "columns" else rows
    count = len(getattr(getattr(batch, shape), field))
    if count > most:
        raise unreadable_batch(f"{shape}.{field}", f"has {count} values, the most in one batch is {most}")
    return shape


def receipt(batch_id: int, registered: BatchReceipt, durability: int) -> wire.Receipt:
    """The receipt of a batch of registrations. `durability`: what an acceptance guarantees."""
    return wire.Receipt(
        batch_id=batch_id,
        highest_operation_id=registered.highest_operation_id,
        accepted=registered.accepted,
        already_known=registered.already_known,
        refusals=operation_refusals(registered.refused),
        durability=durability,
    )


def refused_receipt(batch_id: int, highest_operation_id: int, refusal: Refusal) -> wire.Receipt:
    """The receipt of a batch that was refused as a whole."""
    return wire.Receipt(
        batch_id=batch_id,
        highest_operation_id=highest_operation_id,
        batch_refusal=operation_refusal(refusal, 0),
    )


def advance_receipt(events: IncomingEvents, done: EventsReceipt) -> wire.AdvanceReceipt:
    return wire.AdvanceReceipt(
        ended=done.ended,
        ended_total=sum(done.ended),
        unchanged=done.unchanged,
        refusals=event_refusals([events.explain(refusal) for refusal in done.refusals]),
    )
