"""Events and their receipts: `Advance` and `AdvanceStream`."""

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial

from purgatory import sizes
from purgatory.service.access.account import Account
from purgatory.service.access.audit import NAME
from purgatory.service.access.authorization_filter import filter_events
from purgatory.service.access.roles import ADVANCE
from purgatory.service.errors import BatchRejected, from_refusal
from purgatory.service.host import Host
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.handlers import Requests
from purgatory.service.translate.events import IncomingEvents, event_parts
from purgatory.service.translate.results import event_refusals
from purgatory.service.translate.shards import Request
from purgatory.v1 import purgatory_service_pb2 as wire


async def advance(host: Host, request: Request, call: Call) -> wire.AdvanceReceipt:
    """Apply a batch of events in order, in parts and bounded slices.

    Each event is applied or refused. Other tasks run between slices, and events of other calls may be interleaved.
    Events of one caller keep their order. If the call is cancelled, a prefix of the batch has been applied.

    Raises:
        RpcError: The batch cannot be decoded, or no events are accepted at the moment.
    """
    account, receipt, shards = call.account, wire.AdvanceReceipt(), host.sessions.shards
    are_several = shards.are_several
    try:
        # Before the first part is applied: a batch that cannot be read must change nothing.
        if are_several:
            shards.check_events(request)
        parts = event_parts(request)
        host.gate.check_events()
        while True:
            next_part = partial(_next_part, host, parts, account, request, receipt)
            events = await host.apply(next_part, account, call.turn)
            _add_to_receipt(receipt, events)
            if are_several:
                for index, decided in shards.decided(events, host.engine.snapshots.keys):
                    receipt.decided_index.append(index)
                    receipt.decided.append(decided)
            if events.is_last:
                return receipt
            await call.turn()
    except BatchRejected as error:
        raise from_refusal(error.refusal, "") from None


def _next_part(
    host: Host, parts: Iterator[IncomingEvents], account: Account, request: Request, receipt: wire.AdvanceReceipt
) -> IncomingEvents:
    events = next(parts)
    if ADVANCE not in account.grants.everywhere and (denied := filter_events(account, events.batch)):
        first = next(iter(denied.values())).message
        host.sessions.accounts.audit.refused(NAME, account.principal, role=ADVANCE, name=first, count=len(denied))
        events.refusals.update(denied)
    host.sessions.shards.prepare(events, request, receipt.decided, host.engine.snapshots.keys)
    return events


def _add_to_receipt(receipt: wire.AdvanceReceipt, events: IncomingEvents) -> None:
    done = events.done
    receipt.ended.extend(done.ended_by_event)
    receipt.ended_total += done.ended
    receipt.unchanged += done.unchanged
    if done.refusals:
        receipt.refusals.extend(event_refusals(list(map(events.explain, done.refusals)), len(receipt.refusals)))


async def advance_durably(host: Host, request: Request, call: Call) -> wire.AdvanceReceipt:
    """Apply a batch of events; return its receipt once the changes are durable."""
    receipt = await advance(host, request, call)
    await host.journal.durable()
    await asyncio.sleep(0)  # lets results be written first: the callers that wait for them have waited longer
    return receipt


async def serve_events(host: Host, requests: Requests, call: Call) -> None:
    """Apply the batches of a stream, and answer each in order."""
    if host.journal.keeps:
        await _serve_pipelined(host, requests, call)
        return
    while (request := await requests.read()) is not None:
        answer = wire.AdvanceStreamResponse(receipt=await advance_durably(host, request, call))
        del request  # a batch may be megabytes: do not keep it while waiting for the next one
        await call.context.write(answer)


async def _serve_pipelined(host: Host, requests: Requests, call: Call) -> None:
    """With a journal: apply the next batches while answers wait to be durable, so that one commit serves many."""
    writing: deque[asyncio.Task[None]] = deque()
    try:
        while (request := await requests.read()) is not None:
            answer = wire.AdvanceStreamResponse(receipt=await advance(host, request, call))
            del request  # as above
            # Answers wait for their predecessor and not for a lock, so their order does not depend on when each becomes
            # durable.
            previous = writing[-1] if writing else None
            writing.append(asyncio.create_task(_write_after(host, previous, answer, call)))
            # Then no further batch is read: a slow disk must not let one stream collect answers without bound.
            if len(writing) > sizes.EVENT_ANSWERS_PENDING_MAX:
                await writing.popleft()
        while writing:
            await writing.popleft()
    finally:
        await asyncio.gather(*writing, return_exceptions=True)  # if one failed, the rest fail the same way


async def _write_after(
    host: Host, previous: asyncio.Task[None] | None, answer: wire.AdvanceStreamResponse, call: Call
) -> None:
    """Write an answer once it is durable and the previous answer is written."""
    await host.journal.durable()
    if previous is not None:
        await previous
    await call.context.write(answer)
