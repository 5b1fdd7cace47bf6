"""Decoding of batches, as rows or columns, and encoding of their receipts. Pure functions."""

from collections.abc import Iterator, Sequence

from purgatory.engine.batches import Refusal
from purgatory.service.errors import unreadable_batch
from purgatory.service.settings import LimitsSettings
from purgatory.service.translate.events import IncomingEvents, events_from_columns, events_from_rows
from purgatory.service.translate.operations import RegistrationPart, parts_from_columns, parts_from_rows
from purgatory.service.translate.results import event_refusals, operation_refusal, operation_refusals
from purgatory.v1 import purgatory_service_pb2 as wire


class BatchReceipt:
    """The outcome of a batch of registrations: counts, and the refusals with their operation ids."""

    def __init__(self) -> None:
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        self.refused: list[tuple[Refusal, int]] = []


def registration_parts(
    batch: wire.RegisterBatch, limits: LimitsSettings, timeout_ms_default: int
) -> Iterator[RegistrationPart]:
    """Split a batch of registrations into parts, each translated on demand.

    Raises:
        BatchRejected: The batch is unreadable. Raised at once, not by the iterator.
    """
    if _shape_of(batch, "operation_id", "operations", limits.operations_per_batch_max) == "columns":
        return parts_from_columns(batch.columns, limits.items_per_batch_max)
    return parts_from_rows(batch.rows.operations, timeout_ms_default)


def ids_of(batch: wire.RegisterBatch, start: int, stop: int) -> Sequence[int]:
    """The operation ids in a range of a batch that may be unreadable otherwise."""
    if batch.WhichOneof("shape") == "rows":
        return [row.operation_id for row in batch.rows.operations[start:stop]]
    return batch.columns.operation_id[start:stop]


def event_parts(
    request: wire.AdvanceRequest | wire.AdvanceStreamRequest, limits: LimitsSettings
) -> Iterator[IncomingEvents]:
    """Split a batch of events into parts, each translated on demand.

    Raises:
        BatchRejected: The batch is unreadable. Raised at once, not by the iterator.
    """
    if _shape_of(request, "type", "events", limits.events_per_batch_max) == "columns":
        return events_from_columns(request.columns, limits.items_per_batch_max)
    return events_from_rows(request.rows.events)


def _shape_of(
    batch: wire.RegisterBatch | wire.AdvanceRequest | wire.AdvanceStreamRequest, column: str, rows: str, most: int
) -> str:
    """Return `columns` or `rows`, after checking that the field `column` or `rows` has at most `most` values."""
    shape: str | None = batch.WhichOneof("shape")
    if shape is None:
        raise unreadable_batch("shape", "is not set: set rows or columns")
    field = column if shape == "columns" else rows
    count = len(getattr(getattr(batch, shape), field))
    if count > most:
        raise unreadable_batch(f"{shape}.{field}", f"has {count} values; at most {most} are allowed in one batch")
    return shape


def add_to_receipt(receipt: wire.Receipt, registered: BatchReceipt) -> None:
    """Add the outcome of a part of a batch of registrations."""
    receipt.highest_operation_id = registered.highest_operation_id
    receipt.accepted += registered.accepted
    receipt.already_known += registered.already_known
    receipt.refusals.extend(operation_refusals(registered.refused, len(receipt.refusals)))


def refused_receipt(batch_id: int, highest_operation_id: int, refusal: Refusal) -> wire.Receipt:
    """The receipt of a batch that was refused as a whole."""
    return wire.Receipt(
        batch_id=batch_id,
        highest_operation_id=highest_operation_id,
        batch_refusal=operation_refusal(refusal, 0),
    )


def add_to_advance_receipt(receipt: wire.AdvanceReceipt, events: IncomingEvents) -> None:
    """Add the outcome of a part of a batch of events."""
    done = events.done
    receipt.ended.extend(done.ended)
    receipt.ended_total += sum(done.ended)
    receipt.unchanged += done.unchanged
    refusals = [events.explain(refusal) for refusal in done.refusals]
    receipt.refusals.extend(event_refusals(refusals, len(receipt.refusals)))
