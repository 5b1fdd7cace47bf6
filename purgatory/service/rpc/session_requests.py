"""What arrives on a session stream: registrations, cancels and acknowledgements."""

from collections.abc import Iterable
from functools import partial

from purgatory.service.host import Host
from purgatory.service.rpc.handlers import Requests
from purgatory.service.rpc.statuses import BatchRefused, invalid_argument
from purgatory.service.sessions.result_stream import ResultStream
from purgatory.service.sessions.session import Session
from purgatory.service.translate.batch_size import size_of
from purgatory.service.translate.receipts import ids_of, receipt, refused_receipt, runs_of
from purgatory.v1 import purgatory_service_pb2 as wire


def register(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    """Registers a batch; each operation is accepted, known or refused. Raises `BatchRefused`."""
    operations_max = host.settings.limits.operations_per_batch_max
    try:
        host.admission.check_memory(session.account, *size_of(batch))
        runs, refused = runs_of(batch, operations_max, host.engine.limits.timeout_ms_default)
        return receipt(batch.batch_id, host.register(session, runs, refused), host.journal.durability)
    except BatchRefused:
        session.refused_ids.add(ids_of(batch, operations_max), session.owner.highest_operation_id, operations_max)
        raise


def register_or_refuse(host: Host, session: Session, batch: wire.RegisterBatch) -> wire.Receipt:
    """`register` for a stream: a batch that is refused as a whole gets a receipt too, and the stream goes on."""
    try:
        return register(host, session, batch)
    except BatchRefused as error:
        return refused_receipt(batch.batch_id, session.owner.highest_operation_id, error.refusal)


def cancel(host: Host, session: Session, operation_ids: Iterable[int]) -> tuple[list[int], list[int]]:
    """Cancels operations of a session; returns the ids that were cancelled, and those that were not pending."""
    ids = list(operation_ids)
    cancelled: list[int] = []
    not_pending: list[int] = []
    for operation_id, now in zip(ids, host.cancel(session, ids), strict=True):
        (cancelled if now else not_pending).append(operation_id)
    return cancelled, not_pending


async def serve_requests(host: Host, requests: Requests, stream: ResultStream) -> None:
    """Serves a session stream's messages until the stream ends; any exception here ends it."""
    try:
        stream.waiting_for_peer()
        while (request := await requests.read()) is not None:
            stream.message_received(host.clock.now_ms())
            await stream.wait_for_space()
            if stream.closing:
                return
            _serve(host, request, stream)
            del request  # a batch may be megabytes: it is not kept while the next one is awaited
            stream.waiting_for_peer()
        stream.half_closed()
    except Exception as error:  # noqa: BLE001 - the writer raises it in the call, where it becomes a status
        stream.fail(error)


def _serve(host: Host, request: wire.SessionRequest, stream: ResultStream) -> None:
    session = stream.session
    message = request.WhichOneof("message")
    if message == "register":
        receipt = register_or_refuse(host, session, request.register)
        answer = wire.SessionResponse(receipt=receipt)
        if receipt.HasField("batch_refusal"):
            stream.send(answer)  # nothing has changed, so there is nothing to wait for
        else:
            _answer(host, stream, answer)
    elif message == "acknowledge":
        host.acknowledge(session, request.acknowledge.sequence)
    elif message == "cancel":
        cancelled, not_pending = cancel(host, session, request.cancel.operation_ids)
        done = wire.CancelReceipt(cancelled_operation_ids=cancelled, not_pending_operation_ids=not_pending)
        _answer(host, stream, wire.SessionResponse(cancelled=done))
    elif message == "open":
        raise invalid_argument("open", "must come once, as the first message of a session stream")
    elif message is None:
        raise invalid_argument("message", "is not set: set one of register, cancel, acknowledge, heartbeat")


def _answer(host: Host, stream: ResultStream, answer: wire.SessionResponse) -> None:
    """Sends an answer to a change once the change is durable."""
    stream.reserve()
    host.journal.when_durable(partial(stream.send_reserved, answer))
