"""Registrations, cancels and events from the wire to the host, and their receipts back."""

from collections.abc import Iterable

from purgatory.service.host import Host
from purgatory.service.rpc.statuses import BatchRefused, from_refusal
from purgatory.service.sessions.session import Session
from purgatory.service.translate.receipts import advance_receipt, events_of, receipt, refused_receipt, runs_of
from purgatory.v1 import purgatory_service_pb2 as wire


def register(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    """Registers a batch; each operation is accepted, known or refused. Raises `BatchRefused`."""
    runs, refused = runs_of(batch, host.settings.limits.operations_per_batch_max, host.engine.limits.timeout_ms_default)
    return receipt(batch.batch_id, host.register(session, runs, refused), host.journal.durability)


def register_or_refuse(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    """`register` for a stream: a batch that is refused as a whole gets a receipt too, and the stream goes on."""
    try:
        return register(host, session, batch)
    except BatchRefused as error:
        return refused_receipt(batch.batch_id, session.owner.highest_operation_id, error.refusal)


def cancel(host: Host, session: Session, operation_ids: Iterable[int]) -> tuple[list[int], list[int]]:
    """Cancels operations of a session; gives the ids that were cancelled, and those that were not pending."""
    ids = list(operation_ids)
    cancelled: list[int] = []
    not_pending: list[int] = []
    for operation_id, now in zip(ids, host.cancel(session, ids), strict=True):
        (cancelled if now else not_pending).append(operation_id)
    return cancelled, not_pending


async def advance(host: Host, request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
    """Applies a batch of events; each is applied or refused. Raises `CallRefused` for an unreadable batch."""
    try:
        events = events_of(request, host.settings.limits.events_per_batch_max)
        return advance_receipt(events, await host.apply(events.batch))
    except BatchRefused as error:
        raise from_refusal(error.refusal, "") from None
