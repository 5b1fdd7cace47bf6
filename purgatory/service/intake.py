"""Batches from the wire through the host and back: registrations, cancels and events in, their receipts out."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.errors import InvalidBatch
from purgatory.service.host import BatchRefused, Host
from purgatory.service.refusals import invalid_argument
from purgatory.service.sessions import Session
from purgatory.service.translate_events import IncomingEvents, events_from_columns, events_from_rows
from purgatory.service.translate_operations import OperationRun, runs_from_columns, runs_from_rows
from purgatory.service.translate_results import event_refusals, operation_refusal, operation_refusals
from purgatory.v1 import purgatory_service_pb2 as wire


def register(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    """Registers a batch; each operation is accepted, known or refused.

    Raises `InvalidBatch` and `BatchRefused` where the batch as a whole cannot be served; nothing was registered then.
    """
    runs, refused = _runs_of(host, batch)
    registered = host.register(session, runs, refused)
    return wire.Receipt(
        batch_id=batch.batch_id,
        highest_operation_id=registered.highest_operation_id,
        accepted=registered.accepted,
        already_known=registered.already_known,
        refusals=operation_refusals(registered.refused),
    )


def register_or_refuse(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    """The same for a stream: a batch that cannot be served as a whole has a receipt too, and the stream goes on."""
    try:
        return register(host, session, batch)
    except InvalidBatch as error:
        refusal = Refusal(0, codes.INVALID_ARGUMENT, error.field, error.message)
    except BatchRefused as error:
        refusal = error.refusal
    return wire.Receipt(
        batch_id=batch.batch_id,
        highest_operation_id=session.owner.highest_operation_id,
        batch_refusal=operation_refusal(refusal, 0),
    )


def _runs_of(host: Host, batch: wire.RegisterBatch) -> tuple[list[OperationRun], list[tuple[Refusal, int]]]:
    shape = batch.WhichOneof("shape")
    if shape is None:
        raise InvalidBatch("shape", "is not set: set rows or columns")
    if shape == "columns":
        _check_size(host, "columns.operation_id", len(batch.columns.operation_id))
        return runs_from_columns(batch.columns), []
    _check_size(host, "rows.operations", len(batch.rows.operations))
    return runs_from_rows(batch.rows.operations, host.engine.limits.timeout_ms_default)


def _check_size(host: Host, field: str, count: int) -> None:
    most = host.limits.operations_per_batch_max
    if count > most:
        raise InvalidBatch(field, f"has {count} operations, the most in one batch is {most}")


def cancel(host: Host, session: Session, operation_ids: Iterable[int]) -> tuple[list[int], list[int]]:
    """Cancels operations of a session: those cancelled now, and those that were not pending."""
    ids = list(operation_ids)
    cancelled: list[int] = []
    not_pending: list[int] = []
    for operation_id, now in zip(ids, host.cancel(session, ids), strict=True):
        (cancelled if now else not_pending).append(operation_id)
    return cancelled, not_pending


async def advance(host: Host, request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
    """Applies a batch of events; each is applied or refused. Refuses a batch that cannot be read as a whole."""
    events = _events_of(host, request)
    try:
        receipt = await host.apply(events.batch)
    except InvalidBatch as error:
        raise invalid_argument(f"columns.{error.field}", error.message) from None
    return wire.AdvanceReceipt(
        ended=receipt.ended,
        ended_total=sum(receipt.ended),
        unchanged=receipt.unchanged,
        refusals=event_refusals([events.explain(refusal) for refusal in receipt.refusals]),
    )


def _events_of(host: Host, request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> IncomingEvents:
    shape = request.WhichOneof("shape")
    if shape is None:
        raise invalid_argument("shape", "is not set: set rows or columns")
    field, count = (
        ("columns.type", len(request.columns.type)) if shape == "columns" else ("rows.events", len(request.rows.events))
    )
    most = host.limits.events_per_batch_max
    if count > most:
        raise invalid_argument(field, f"has {count} events, the most in one batch is {most}")
    return events_from_columns(request.columns) if shape == "columns" else events_from_rows(request.rows.events)
