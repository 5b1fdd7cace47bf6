"""What arrives on a session stream: registrations, cancels and acknowledgements."""

from functools import partial

from purgatory.service.host import Host
from purgatory.service.rpc.handlers import Requests
from purgatory.service.rpc.intake import cancel, register_or_refuse
from purgatory.service.rpc.statuses import invalid_argument
from purgatory.service.sessions.result_stream import ResultStream
from purgatory.v1 import purgatory_service_pb2 as wire


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
