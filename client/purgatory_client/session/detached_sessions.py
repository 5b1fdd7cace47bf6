"""Sessions of others: registers batches in them, and collects their results once nobody is connected to them.

Registering is a unary call, repeated until the daemon has answered. To collect, the session's stream is opened and
half-closed at once; the daemon then ends it by itself when everything pending has ended and been sent. So
acknowledgements have to be calls of their own.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, cast

import grpc.aio

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client.batches import WaitBatch
from purgatory_client.errors import NotFound, ProtocolError, PurgatoryClientError, SessionTakenOver, Unavailable
from purgatory_client.results import ResultColumns
from purgatory_client.session.backoff import Retry
from purgatory_client.wire.decode_results import ResultsArrived, refusal_error
from purgatory_client.wire.encode_waits import fill_with_many

CALL_TIMEOUT: Final = 30.0
"""Seconds that an attempt may take."""
NEVER_LOST: Final = -1.0
SILENCE_MAX: Final = 30.0
"""Seconds without a message, heartbeats included, after which a connection is replaced."""

Call = grpc.aio.StreamStreamCall[wire.SessionRequest, wire.SessionResponse]


@dataclass(frozen=True, slots=True)
class Registered:
    """What became of a batch.

    Attributes:
        accepted: How many operations were registered.
        already_known: How many have an id that the daemon knew before; nothing was done for them.
        refusals: The errors of refused operations by operation id; each of these also ends as a result.
        incarnation: Random name of this life of the session. It changes when the session is created again.
    """

    accepted: int
    already_known: int
    refusals: dict[int, PurgatoryClientError]
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """What ended with a session.

    Attributes:
        cancelled: Operations that were pending; they have no results.
        results_dropped: Results that nobody had acknowledged.
    """

    cancelled: int
    results_dropped: int


async def register(
    stub: PurgatoryServiceStub, session_id: str, batch: WaitBatch, give_up_after: float | None, incarnation: str
) -> Registered:
    """Register the batch, whose ids begin with `batch.operation_id`; with `incarnation`, only in that one."""
    request = wire.RegisterRequest(session_id=session_id, incarnation=incarnation)
    request.batch.batch_id = 1
    fill_with_many(request.batch.columns, batch, batch.pending_positions(), NEVER_LOST, 0.0)
    retry = Retry(give_up_after)
    while True:
        try:
            response = await stub.Register(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            await retry.pause(error)
        else:
            receipt = response.receipt
            refusals = {refusal.operation_id: refusal_error(refusal) for refusal in receipt.refusals}
            return Registered(receipt.accepted, receipt.already_known, refusals, response.incarnation)


@dataclass(frozen=True, slots=True)
class Collected:
    """A batch of collected results.

    Attributes:
        operation_ids: The session's ids of the operations.
        results: Their results, in the same order.
    """

    operation_ids: list[int]
    results: ResultColumns


class Collector:
    """The results of one incarnation of a session: the one given, or else the first one met.

    `give_up_after`: seconds without a connection; None: never.
    """

    def __init__(self, session_id: str, give_up_after: float | None, incarnation: str) -> None:
        self._session_id: Final = session_id
        self._give_up_after: Final = give_up_after
        self._incarnation = incarnation
        self._call: Call | None = None
        self._used = 0
        """The sequence number of the last result that the caller got."""
        self._acknowledged = 0

    async def next(self, stub: PurgatoryServiceStub) -> Collected | None:
        """Acknowledge the results before and return the next ones; None: nothing is pending any more.

        Asking for more shows that those before have been used: only then may the daemon forget them.
        """
        retry = Retry(self._give_up_after)
        while True:
            try:
                await self._acknowledge(stub)
                async with asyncio.timeout(SILENCE_MAX):
                    call = self._call or await self._open(stub)
                return await self._read(call)
            except (grpc.aio.AioRpcError, TimeoutError, Unavailable) as error:
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
        opening = wire.OpenSession(
            session_id=self._session_id, last_sequence=self._used, columns=True, incarnation=self._incarnation
        )
        await call.write(wire.SessionRequest(open=opening))
        await call.done_writing()
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise Unavailable("the daemon did not open the session")
        opened = cast("wire.SessionResponse", answer).opened
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
        """The next results; None: the daemon has ended the stream, as nothing is pending."""
        while True:
            async with asyncio.timeout(SILENCE_MAX):
                answer = await call.read()
            if answer is grpc.aio.EOF:
                self._leave()
                return None
            message = cast("wire.SessionResponse", answer)
            if message.HasField("going_away"):
                if message.going_away.reason == wire.GoingAway.REASON_TAKEN_OVER:
                    raise SessionTakenOver(f"another client opened the session {self._session_id}")
                raise Unavailable("the daemon shuts down")
            if message.HasField("results"):
                return self._take(message.results)

    def _take(self, batch: wire.ResultBatch) -> Collected:
        arrived = ResultsArrived(batch.columns)
        if self._used and batch.first_sequence != self._used + 1:
            raise ProtocolError(f"expected result {self._used + 1} next, received {batch.first_sequence}")
        self._used = batch.first_sequence + len(arrived.operation_ids) - 1
        return Collected(arrived.operation_ids, arrived.columns)

    def _leave(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
