"""Collects the results of a session that another client has left: a batch at a time, acknowledged once it is used.

The session's stream is opened and half-closed at once; the daemon then ends it by itself when everything pending has
ended and been sent. So acknowledgements have to be calls of their own.
"""

import asyncio
from dataclasses import dataclass
from typing import Final, cast

import grpc.aio

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client.errors import NotFound, ProtocolError, SessionTakenOver, Unavailable
from purgatory_client.results import ResultColumns
from purgatory_client.session.retry import Retry
from purgatory_client.wire.decode_results import ResultsArrived

SILENCE_MAX: Final = 30.0
"""Seconds without a message, heartbeats included, after which a connection is replaced."""

Call = grpc.aio.StreamStreamCall[wire.SessionRequest, wire.SessionResponse]


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
    """The results of one session. `give_up_after`: seconds without a connection; None: never."""

    def __init__(self, session_id: str, give_up_after: float | None) -> None:
        self._session_id: Final = session_id
        self._give_up_after: Final = give_up_after
        self._call: Call | None = None
        self._used = 0
        """The sequence number up to which the caller has had results."""
        self._acknowledged = 0

    async def next(self, stub: PurgatoryServiceStub) -> Collected | None:
        """Acknowledge the results before and return the next ones; None: nothing is pending any more.

        The caller asking for more is what tells that those before are used: only then may the daemon forget them.
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
            request = wire.AcknowledgeRequest(session_id=self._session_id, sequence=self._used)
            await stub.Acknowledge(request, timeout=SILENCE_MAX)
            self._acknowledged = self._used

    async def _open(self, stub: PurgatoryServiceStub) -> Call:
        call: Call = stub.Session()
        self._call = call
        opening = wire.OpenSession(session_id=self._session_id, last_sequence=self._used, columns=True)
        await call.write(wire.SessionRequest(open=opening))
        await call.done_writing()
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise Unavailable("the daemon did not open the session")
        first = cast("wire.SessionResponse", answer)
        if not first.opened.resumed:
            raise NotFound(f"the daemon knows no operation of the session {self._session_id!r}")
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
            raise ProtocolError(f"result {self._used + 1} was to come next, not {batch.first_sequence}")
        self._used = batch.first_sequence + len(arrived.operation_ids) - 1
        return Collected(arrived.operation_ids, arrived.columns)

    def _leave(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
