"""Requests on a session stream: registrations, cancels and acknowledgements."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from purgatory import sizes
from purgatory.service.errors import BatchRejected, invalid_argument, not_found
from purgatory.service.fair_queue import Turn, next_loop_turn
from purgatory.service.host import Host
from purgatory.service.registration import Registration
from purgatory.service.rpc.handlers import Requests
from purgatory.service.sessions.outbox import Hold
from purgatory.service.sessions.result_stream import ResultStream
from purgatory.service.sessions.session import Session
from purgatory.service.translate import batch_limits
from purgatory.service.translate.operations import RegistrationPart, ids_of, registration_parts
from purgatory.service.translate.parts import size_of
from purgatory.service.translate.results import operation_refusal, operation_refusals
from purgatory.v1 import purgatory_service_pb2 as wire


async def register(
    host: Host, session: Session, batch: wire.RegisterBatch, turn: Turn = next_loop_turn
) -> wire.Receipt:
    """Register a batch in parts, each after the first in its own `turn`. Each operation is accepted, known or refused.

    Batches of one session are registered one after another, even if they arrive in different calls.

    Raises:
        BatchRejected: Nothing was registered.
        RpcError: The session was dropped during the registration.
    """
    try:
        with host.holds.of("Register"):
            host.gate.check_batch(session, *size_of(batch))
            parts = registration_parts(batch, host.engine.limits.timeout_ms_default)
            part = next(parts)
            receipt = wire.Receipt(batch_id=batch.batch_id, durability=host.journal.durability)
            # The usual case, without a lock: there is no await between the check and the end of the registration.
            if part.is_last and not session.registering.is_taken:
                _add_part(receipt, host.registration(session), part)
                return receipt
        async with session.registering:
            # While this call waited for its turn, the session may have been closed, and others may have used up the
            # memory.
            _check_kept(session)
            host.gate.check_batch(session, *size_of(batch))
            await _add_parts(host, session, part, parts, receipt, turn)
    except BatchRejected:
        await _note_refused_ids(host, session, batch, turn)
        raise
    return receipt


async def _note_refused_ids(host: Host, session: Session, batch: wire.RegisterBatch, turn: Turn) -> None:
    """Record the ids of a batch that was refused as a whole, in slices if there are many. No other batch of the session
    is registered during this time.
    """
    highest, refused_ids = session.owner.highest_operation_id, session.refused_ids
    count, _ = size_of(batch)
    is_sliced = count > sizes.REFUSED_IDS_PER_SLICE
    if count > batch_limits.OPERATIONS_MAX or (is_sliced and session.registering.is_taken):
        # Too many to read; or another batch could raise the highest id before all of them are recorded.
        # Cautious: some of these ids could be registered later, but none of them may ever count as known.
        refused_ids.add_all_above(highest)
        return
    if not is_sliced:
        refused_ids.add(ids_of(batch, 0, count), highest)
        return
    start = 0
    async with session.registering:  # nothing holds the lock, so it is acquired without running other tasks
        try:
            while start < count:
                stop = start + sizes.REFUSED_IDS_PER_SLICE
                with host.holds.of("Register"):
                    refused_ids.add(ids_of(batch, start, stop), highest)
                start = stop
                await turn()
        except asyncio.CancelledError:
            # The remaining ids at once: an id that is not recorded would later count as registered before.
            refused_ids.add(ids_of(batch, start, count), highest)
            raise


async def register_or_refuse(
    host: Host, session: Session, batch: wire.RegisterBatch, turn: Turn = next_loop_turn
) -> wire.Receipt:
    """`register` for a stream: a batch that is refused as a whole gets a receipt too, and the stream continues."""
    try:
        return await register(host, session, batch, turn)
    except BatchRejected as error:
        return wire.Receipt(
            batch_id=batch.batch_id,
            highest_operation_id=session.owner.highest_operation_id,
            batch_refusal=operation_refusal(error.refusal, 0),
        )


async def _add_parts(
    host: Host,
    session: Session,
    part: RegistrationPart,
    parts: Iterator[RegistrationPart],
    receipt: wire.Receipt,
    turn: Turn,
) -> None:
    watched = host.holds.of("Register")
    registration = host.registration(session)
    while True:
        with watched:
            _add_part(receipt, registration, part)
            if part.is_last:
                return
            registration.remember_ids(part.runs, part.refused)
        await turn()
        _check_kept(session)
        with watched:
            part = next(parts)


def _add_part(receipt: wire.Receipt, registration: Registration, part: RegistrationPart) -> None:
    registered = registration.register(part.runs, part.refused)
    receipt.highest_operation_id = registered.highest_operation_id
    receipt.accepted += registered.accepted
    receipt.already_known += registered.already_known
    if registered.refused:
        receipt.refusals.extend(operation_refusals(registered.refused, len(receipt.refusals)))


def _check_kept(session: Session) -> None:
    if session.dropped:
        raise not_found("session", session.session_id)


async def cancel(
    host: Host, session: Session, operation_ids: Sequence[int], turn: Turn = next_loop_turn
) -> tuple[list[int], list[int]]:
    """Cancel operations of a session in slices. Return the ids that were cancelled, and those that were not pending."""
    watched = host.holds.of("Cancel")
    cancelled: list[int] = []
    not_pending: list[int] = []
    start = 0
    while True:
        with watched:
            ids = list(operation_ids[start : start + sizes.CANCELS_PER_SLICE])
            answers = host.cancel(session, ids)
            for operation_id, was_pending in zip(ids, answers, strict=False):
                (cancelled if was_pending else not_pending).append(operation_id)
            # Not the number of ids: a slice that was full has answered only some of them.
            start += len(answers)
            if start >= len(operation_ids):
                return cancelled, not_pending
        await turn()
        _check_kept(session)


async def extend(
    host: Host, session: Session, operation_ids: Sequence[int], timeout_ms: int, turn: Turn = next_loop_turn
) -> list[int]:
    """Extend operations of a session in slices. Return the ids that were not pending."""
    watched = host.holds.of("Extend")
    not_pending: list[int] = []
    for start in range(0, len(operation_ids), sizes.CANCELS_PER_SLICE):
        if start:
            await turn()
            _check_kept(session)
        with watched:
            ids = list(operation_ids[start : start + sizes.CANCELS_PER_SLICE])
            pending = host.extend(session, ids, timeout_ms)
            if any(pending) and isinstance(session.stream, ResultStream):
                found = list(itertools.compress(ids, pending))
                host.journal.when_durable(partial(session.stream.extended, found, timeout_ms))
            not_pending += [one for one, was_pending in zip(ids, pending, strict=True) if not was_pending]
    return not_pending


async def serve_requests(host: Host, requests: Requests, stream: ResultStream, turn: Turn) -> None:
    """Serve the messages of a session stream until it ends. Any exception here ends the stream."""
    try:
        stream.waiting_for_peer()
        while (request := await requests.read()) is not None:
            stream.message_received(host.time.now_ms())
            await stream.wait_for_space()
            # The stream ended while this task waited for space: a receipt could not be sent any more.
            if stream.closing:
                return
            await _serve(host, request, stream, turn)
            del request  # a batch may be megabytes: do not keep it while waiting for the next one
            stream.waiting_for_peer()
        stream.half_closed()
    except Exception as error:  # noqa: BLE001 - the writer raises it in the call, which turns it into a status
        stream.fail(error)


async def _serve(host: Host, request: wire.SessionRequest, stream: ResultStream, turn: Turn) -> None:
    session = stream.session
    message = request.WhichOneof("message")
    if message == "register":
        await _serve_batch(host, request.register, stream, turn)
    elif message == "acknowledge":
        host.acknowledge(session, request.acknowledge.sequence)
    elif message == "cancel":
        cancelled, not_pending = await cancel(host, session, request.cancel.operation_ids, turn)
        done = wire.CancelReceipt(cancelled_operation_ids=cancelled, not_pending_operation_ids=not_pending)
        # Now, although the message is sent later: while it waits for the disk, its place must not be given to another
        # one.
        stream.reserve()
        host.journal.when_durable(partial(stream.send_reserved, wire.SessionResponse(cancelled=done)))
    elif message == "open":
        raise invalid_argument("open", "must come once, as the first message of a session stream")
    elif message is None:
        raise invalid_argument("message", "is not set: set one of register, cancel, acknowledge, heartbeat")


async def _serve_batch(host: Host, batch: wire.RegisterBatch, stream: ResultStream, turn: Turn) -> None:
    """Register a batch and send its receipt once that is durable. Its results are held back until then."""
    hold = stream.session.outbox.hold_for_receipt()
    try:
        receipt = await register_or_refuse(host, stream.session, batch, turn)
    # Also for a cancellation: with a hold that is never released, the session would never get another result.
    except BaseException:
        stream.session.release_results(hold)
        raise
    stream.reserve()
    send = partial(_send_receipt, stream, hold, receipt)
    if receipt.HasField("batch_refusal"):
        send()  # nothing has changed, so there is nothing to wait for
    else:
        host.journal.when_durable(send)


def _send_receipt(stream: ResultStream, hold: Hold, receipt: wire.Receipt) -> None:
    stream.send_reserved(wire.SessionResponse(receipt=receipt))
    stream.session.release_results(hold)
