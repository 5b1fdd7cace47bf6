"""Detached sessions: registers batches in a session, and collects its results while no client is connected to it.

Registering is a unary call, repeated until the daemon answers. To collect, the session's stream is opened and
half-closed at once; the daemon then ends the stream when all pending operations have ended and their results have been
sent. Acknowledgements must therefore be separate calls.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, cast

import grpc.aio

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client.argument_checks import checked
from purgatory_client.batches import Entry
from purgatory_client.errors import NotFound, ProtocolError, PurgatoryClientError, SessionTakenOver, Unavailable
from purgatory_client.results import ResultColumns
from purgatory_client.session.backoff import Retry
from purgatory_client.wire.decode_results import ResultsArrived, refusal_error
from purgatory_client.wire.encode_waits import fill_with_entry

CALL_TIMEOUT: Final = 30.0
"""Timeout of one attempt, in seconds."""
SILENCE_MAX: Final = 30.0
"""Seconds without a message, including heartbeats, after which a connection is replaced."""

Call = grpc.aio.StreamStreamCall[wire.SessionRequest, wire.SessionResponse]


@dataclass(frozen=True, slots=True)
class Registered:
    """The effect of registering a batch.

    Attributes:
        accepted: The number of operations that were registered.
        already_known: The number of operations whose ids the daemon knew before; they were skipped.
        refusals: The errors of refused operations by operation id. Each of these operations also ends with a result.
        incarnation: A random name for this incarnation of the session. It changes when the session is created again.
    """

    accepted: int
    already_known: int
    refusals: dict[int, PurgatoryClientError]
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """The effect of closing a session.

    Attributes:
        cancelled: The number of pending operations that were cancelled; they have no results.
        results_dropped: The number of unacknowledged results that were dropped.
    """

    cancelled: int
    results_dropped: int


async def register(
    stub: PurgatoryServiceStub, session_id: str, batch: Entry, give_up_after: float | None, incarnation: str
) -> Registered:
    """Register the batch, whose ids begin with `batch.operation_id`. With `incarnation`, only in that incarnation."""
    request = checked(wire.RegisterRequest, session_id=session_id, incarnation=incarnation)
    request.batch.batch_id = 1
    fill_with_entry(request.batch.columns, batch)
    retry = Retry(give_up_after)
    while True:
        try:
            response = await stub.Register(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            # Safe to repeat: ids that the daemon knows are counted as `already_known` and skipped.
            await retry.pause(error)
        else:
            receipt = response.receipt
            refusals = {refusal.operation_id: refusal_error(refusal) for refusal in receipt.refusals}
            return Registered(receipt.accepted, receipt.already_known, refusals, response.incarnation)


@dataclass(frozen=True, slots=True)
class Collected:
    """A batch of collected results.

    Attributes:
        operation_ids: The ids of the operations in the session.
        results: Their results, in the same order.
    """

    operation_ids: list[int]
    results: ResultColumns


class Collector:
    """Collects the results of one incarnation of a session: the given one, or else the first one found.

    `give_up_after`: seconds without a connection; None: never.
    """

    def __init__(self, session_id: str, give_up_after: float | None, incarnation: str) -> None:
        self._session_id: Final = session_id
        self._give_up_after: Final = give_up_after
        self._incarnation = incarnation
        self._call: Call | None = None
        self._used = 0
        """The sequence number of the last result that was returned to the caller."""
        self._acknowledged = 0

    async def next(self, stub: PurgatoryServiceStub) -> Collected | None:
        """Acknowledge the previously returned results and return the next ones. None: no operation is pending any more.

        A request for more results shows that the caller has used the previous ones, so the daemon may drop them only
        then.
        """
        retry = Retry(self._give_up_after)
        while True:
            try:
                await self._acknowledge(stub)
                async with asyncio.timeout(SILENCE_MAX):
                    call = self._call or await self._open(stub)
                return await self._read(call)
            # Repeating loses nothing: the stream is opened with `_used`, after which the daemon sends again.
            except (grpc.aio.AioRpcError, TimeoutError, Unavailable) as error:
                # Results that were read but not returned are sent again: the next opening reports `_used`.
                self._leave()
                await retry.pause(error)
            except BaseException:
                self._leave()
                raise

    async def _acknowledge(self, stub: PurgatoryServiceStub) -> None:
        if self._used > self._acknowledged:
            request = wire.AcknowledgeRequest(
                session_id=self._session_id, sequence=self._used, incarnation=self._incarnation
            )
            await stub.Acknowledge(request, timeout=SILENCE_MAX)
            self._acknowledged = self._used

    async def _open(self, stub: PurgatoryServiceStub) -> Call:
        call: Call = stub.Session()
        self._call = call
        opening = checked(wire.OpenSession, session_id=self._session_id, incarnation=self._incarnation, columns=True)
        opening.last_sequence = self._used
        await call.write(wire.SessionRequest(open=opening))
        # Half-closed at once: this makes the daemon end the stream when nothing is pending any more.
        await call.done_writing()
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise Unavailable("the daemon did not open the session")
        opened = cast("wire.SessionResponse", answer).opened
        # Before anything is read: a session that was created again counts from 1, and its results would be taken for
        # repeats.
        if not opened.resumed:
            raise NotFound(
                f"session {self._session_id!r} has no operations"
                if self._incarnation in ("", opened.incarnation)
                else f"session {self._session_id!r} was created again: incarnation {self._incarnation} has ended, and "
                "its results are gone"
            )
        self._incarnation = opened.incarnation
        return call

    async def _read(self, call: Call) -> Collected | None:
        """Read the next results. None: the daemon has ended the stream, because no operation is pending."""
        while True:
            # In grpc.aio a cancelled read cancels its call. So after a timeout this call cannot be read again: `next`
            # opens another one.
            async with asyncio.timeout(SILENCE_MAX):
                answer = await call.read()
            if answer is grpc.aio.EOF:
                self._leave()
                return None
            message = cast("wire.SessionResponse", answer)
            if message.HasField("going_away"):
                if message.going_away.reason == wire.GoingAway.REASON_TAKEN_OVER:
                    raise SessionTakenOver(f"another client opened the session {self._session_id}")
                raise Unavailable("the daemon is shutting down")
            if message.HasField("results"):
                return self._take(message.results)

    def _take(self, batch: wire.ResultBatch) -> Collected:
        arrived = ResultsArrived(batch.columns)
        # The first batch may begin anywhere: earlier results were acknowledged by another caller.
        if self._used and batch.first_sequence != self._used + 1:
            raise ProtocolError(f"expected result {self._used + 1} next, received {batch.first_sequence}")
        self._used = batch.first_sequence + len(arrived.operation_ids) - 1
        return Collected(arrived.operation_ids, arrived.columns)

    def _leave(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
