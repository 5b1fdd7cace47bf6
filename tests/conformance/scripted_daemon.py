"""A daemon that follows a script: it keeps sessions like the real one, but what ends, breaks or is refused is up to the
test case.

It serves what clients use to wait: `Session`, or `Register`, `StreamResults`, `Acknowledge` and `Cancel`, and
`CloseSession`. Each case reads what the client sent from the attributes.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from purgatory.v1 import operation_pb2, purgatory_service_pb2_grpc, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.strangers.cutting_proxy import CuttingProxy

DEADLINE_S: Final = 30.0
"""For anything that a client has to do. It usually takes milliseconds."""
UNLIMITED_BYTES: Final = 64 << 20
NOWHERE: Final = "127.0.0.1:1"


class CaseFailed(AssertionError):
    """The client did not do what the case expects."""


@dataclass(frozen=True)
class Opening:
    """How the client opened the session, and how it was answered."""

    session_id: str
    last_sequence: int
    incarnation: str
    resumed: bool


@dataclass(frozen=True)
class Registered:
    """An operation as it arrived."""

    operation_id: int
    timeout_ms: int
    topic: str
    at: float


@dataclass
class ScriptedSession:
    """A session as the daemon knows it. Results are numbered from 1."""

    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    operations: dict[int, Registered] = field(default_factory=dict)
    results: list[result_pb2.Result] = field(default_factory=list)
    acknowledged: int = 0

    @property
    def highest_id(self) -> int:
        return max(self.operations, default=0)

    def unacknowledged(self) -> wire.ResultBatch:
        rows = wire.ResultRows(results=self.results[self.acknowledged :])
        return wire.ResultBatch(first_sequence=self.acknowledged + 1, rows=rows)


Outgoing = dict[str, Any] | grpc.StatusCode
"""A message as the field that it sets, or the status that ends the stream."""


class ScriptedDaemon(purgatory_service_pb2_grpc.PurgatoryServiceServicer):
    """Use it in `async with`. `address` leads to it through a proxy that can cut connections."""

    def __init__(
        self,
        *,
        bytes_stated: int = UNLIMITED_BYTES,
        bytes_enforced: int = UNLIMITED_BYTES,
        heartbeat_interval_ms: int = 10_000,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        # The script.
        self.bytes_stated: Final = bytes_stated
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.sends_heartbeats = True
        self.answers_openings = True
        self.resumes_whatever = False
        self.openings_refused: grpc.StatusCode | None = None
        self.batches_refused: grpc.StatusCode | None = None
        self.batches_lost = 0
        # What has happened.
        self.attempts = 0
        self.openings: list[Opening] = []
        self.batches: list[list[Registered]] = []
        self.sessions: dict[str, ScriptedSession] = {}
        self.cancelled: list[str] = []
        """By the topic that the wait was for."""
        self.closed: list[str] = []
        self.heartbeats = 0
        self.is_unary = False
        self.authorizations: set[str] = set()
        self._streams: dict[str, asyncio.Queue[Outgoing]] = {}
        self._changed: Final = asyncio.Event()
        self._target = NOWHERE
        self._proxy: Final = CuttingProxy(NOWHERE)
        self._credentials: Final = credentials
        self._server: Final = grpc.aio.server(options=[("grpc.max_receive_message_length", bytes_enforced)])

    async def __aenter__(self) -> ScriptedDaemon:
        purgatory_service_pb2_grpc.add_PurgatoryServiceServicer_to_server(self, self._server)
        if self._credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", self._credentials)
        await self._server.start()
        self._target = self._proxy.target = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._proxy.close()
        await self._server.stop(0)

    @property
    def address(self) -> str:
        return self._proxy.address

    # For the cases

    async def until(self, condition: Callable[[], object], expected: str) -> None:
        """Wait for something that the client has to do. Raises CaseFailed when it does not."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise CaseFailed(f"expected: {expected}; after {DEADLINE_S:.0f} s: {self}") from None

    async def registered(self, count: int) -> list[Registered]:
        """Wait until this many operations are registered in the session; return them in the order of arrival."""
        await self.until(lambda: len(self.operations()) >= count, f"{count} registered operations")
        return self.operations()

    async def opened(self, count: int) -> None:
        """Wait until the client has opened a stream this many times."""
        await self.until(lambda: len(self.openings) >= count, f"{count} openings")

    def operations(self) -> list[Registered]:
        return [operation for session in self.sessions.values() for operation in session.operations.values()]

    def complete(self, *topics: str, padding_bytes: int = 0) -> None:
        """Satisfy the waits for these topics (none given: all). Results are sent now, or when the client connects."""
        padding = result_pb2.PartitionResult(stale_reason="-" * padding_bytes)
        for session_id, session in self.sessions.items():
            rows = [
                result_pb2.Result(
                    operation_id=one.operation_id, outcome=result_pb2.OUTCOME_SATISFIED, partitions=[padding]
                )
                for one in session.operations.values()
                if one.topic in topics or not topics
            ]
            first = len(session.results) + 1
            session.results += rows
            batch = wire.ResultBatch(first_sequence=first, rows=wire.ResultRows(results=rows))
            self._send(session_id, {"results": batch})

    def repeat_results(self) -> None:
        """Send all results so far again, from number 1."""
        for session_id, session in self.sessions.items():
            batch = wire.ResultBatch(first_sequence=1, rows=wire.ResultRows(results=session.results))
            self._send(session_id, {"results": batch})

    def go_away(self, reason: wire.GoingAway.Reason) -> None:
        """Send `going_away`, and end the streams."""
        for session_id in list(self._streams):
            self._send(session_id, {"going_away": wire.GoingAway(reason=reason)})
        self.end_streams(grpc.StatusCode.OK)

    def end_streams(self, status: grpc.StatusCode) -> None:
        for session_id in list(self._streams):
            self._send(session_id, status)

    def cut(self, *, unreachable: bool = False) -> None:
        """Reset all connections. `unreachable`: new ones fail until `restore`."""
        if unreachable:
            self._proxy.target = NOWHERE
        self._proxy.cut(0, DEADLINE_S)

    def restore(self) -> None:
        self._proxy.target = self._target

    def forget(self) -> None:
        """Forget all sessions, as a restart without a journal does."""
        self.sessions.clear()

    def __str__(self) -> str:
        sizes = [len(batch) for batch in self.batches]
        return (
            f"{self.attempts} attempts, openings {self.openings}, batches of {sizes} operations, cancelled "
            f"{self.cancelled}, closed {self.closed}"
        )

    # Sessions

    def _send(self, session_id: str, message: Outgoing) -> None:
        if (stream := self._streams.get(session_id)) is not None:
            stream.put_nowait(message)

    def _note(self) -> None:
        self._changed.set()

    async def _authorize(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self.authorizations.add(metadata.get("authorization", ""))

    async def _serve(
        self, opening: wire.OpenSession | wire.StreamResultsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """What the daemon sends on a stream, from `opened` to its end."""
        await self._authorize(context)
        self.attempts += 1
        self._note()
        if self.openings_refused is not None:
            await context.abort(self.openings_refused, "refused by the script")
        if not self.answers_openings:
            await asyncio.Event().wait()
        session_id = opening.session_id
        opened, session = self._open(opening)
        stream = self._streams[session_id] = asyncio.Queue()
        stream.put_nowait({"opened": opened})
        if len(session.results) > session.acknowledged:
            stream.put_nowait({"results": session.unacknowledged()})
        self._note()
        try:
            while True:
                message = await self._next(stream)
                if isinstance(message, grpc.StatusCode):
                    if message is not grpc.StatusCode.OK:
                        await context.abort(message, "ended by the script")
                    return
                yield message
        finally:
            if self._streams.get(session_id) is stream:
                del self._streams[session_id]

    async def _next(self, stream: asyncio.Queue[Outgoing]) -> Outgoing:
        while True:
            try:
                async with asyncio.timeout(self.heartbeat_interval_ms / 1_000):
                    return await stream.get()
            except TimeoutError:
                if self.sends_heartbeats:
                    return {"heartbeat": wire.Heartbeat()}

    def _open(
        self, opening: wire.OpenSession | wire.StreamResultsRequest
    ) -> tuple[wire.SessionOpened, ScriptedSession]:
        session = self.sessions.setdefault(opening.session_id, ScriptedSession())
        is_known = bool(session.operations) and opening.incarnation in {"", session.incarnation}
        if is_known:
            session.acknowledged = max(session.acknowledged, opening.last_sequence)
        resumed = is_known or self.resumes_whatever
        self.openings.append(
            Opening(opening.session_id, opening.last_sequence, opening.incarnation, resumed),
        )
        opened = wire.SessionOpened(
            resumed=resumed,
            highest_operation_id=session.highest_id,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            session_ttl_ms=60_000,
            operations_per_batch_max=100_000,
            unacknowledged_results_max=100_000,
            timeout_ms_default=30_000,
            incarnation=session.incarnation,
            message_bytes_max=self.bytes_stated,
            pending=len(session.operations) - len(session.results),
        )
        return opened, session

    def _register(self, session: ScriptedSession, batch: wire.RegisterBatch) -> wire.Receipt:
        arrived = list(operations_of(batch))
        self.batches.append(arrived)
        receipt = wire.Receipt(batch_id=batch.batch_id)
        if self.batches_refused is not None:
            receipt.batch_refusal.code = self.batches_refused.value[0]
            receipt.batch_refusal.message = "refused by the script"
        else:
            new = [operation for operation in arrived if operation.operation_id > session.highest_id]
            session.operations |= {operation.operation_id: operation for operation in new}
            receipt.accepted, receipt.already_known = len(new), len(arrived) - len(new)
        receipt.highest_operation_id = session.highest_id
        self._note()
        return receipt

    def _cancel(self, session_id: str, operation_ids: Sequence[int]) -> wire.CancelReceipt:
        known = self.sessions.get(session_id, ScriptedSession()).operations
        self.cancelled += [known[one].topic for one in operation_ids if one in known]
        self._note()
        return wire.CancelReceipt(
            cancelled_operation_ids=[one for one in operation_ids if one in known],
            not_pending_operation_ids=[one for one in operation_ids if one not in known],
        )

    def _acknowledge(self, session: ScriptedSession, sequence: int) -> None:
        session.acknowledged = max(session.acknowledged, sequence)
        self._note()

    # The service

    async def Session(  # noqa: N802 - the name of the call
        self,
        request_iterator: AsyncIterator[wire.SessionRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[wire.SessionResponse]:
        opening = (await anext(request_iterator)).open
        reading = asyncio.create_task(self._read(opening.session_id, request_iterator))
        try:
            async for message in self._serve(opening, context):
                yield wire.SessionResponse(**message)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await reading

    async def _read(self, session_id: str, requests: AsyncIterator[wire.SessionRequest]) -> None:
        async for request in requests:
            session = self.sessions.get(session_id)
            which = request.WhichOneof("message")
            if session is None or which == "heartbeat":
                self.heartbeats += which == "heartbeat"
                self._note()
            elif which == "register" and self.batches_lost:
                self.batches_lost -= 1
                self._note()
            elif which == "register":
                self._send(session_id, {"receipt": self._register(session, request.register)})
            elif which == "cancel":
                self._send(session_id, {"cancelled": self._cancel(session_id, request.cancel.operation_ids)})
            elif which == "acknowledge":
                self._acknowledge(session, request.acknowledge.sequence)

    async def StreamResults(  # noqa: N802 - the name of the call
        self, request: wire.StreamResultsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.StreamResultsResponse]:
        self.is_unary = True
        async for message in self._serve(request, context):
            yield wire.StreamResultsResponse(**message)

    async def _known(
        self,
        request: wire.RegisterRequest | wire.AcknowledgeRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> ScriptedSession:
        await self._authorize(context)
        session = self.sessions.get(request.session_id)
        if session is None or request.incarnation not in {"", session.incarnation}:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"session {request.session_id} is not known")
        assert session is not None, "abort raises"
        return session

    async def Register(  # noqa: N802 - the name of the call
        self, request: wire.RegisterRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.RegisterResponse:
        session = await self._known(request, context)
        if self.batches_lost:
            self.batches_lost -= 1
            self._note()
            await asyncio.Event().wait()
        receipt = self._register(session, request.batch)
        if receipt.HasField("batch_refusal"):
            status = status_pb2.Status(code=receipt.batch_refusal.code, message=receipt.batch_refusal.message)
            advice = error_details_pb2.RetryInfo()
            advice.retry_delay.FromMilliseconds(50)
            status.details.add().Pack(advice)
            await context.abort_with_status(rpc_status.to_status(status))
        return wire.RegisterResponse(receipt=receipt, incarnation=session.incarnation)

    async def Acknowledge(  # noqa: N802 - the name of the call
        self, request: wire.AcknowledgeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.AcknowledgeResponse:
        self._acknowledge(await self._known(request, context), request.sequence)
        return wire.AcknowledgeResponse()

    async def Cancel(  # noqa: N802 - the name of the call
        self, request: wire.CancelRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.CancelResponse:
        await self._authorize(context)
        done = self._cancel(request.session_id, request.operation_ids)
        return wire.CancelResponse(
            cancelled=len(done.cancelled_operation_ids), not_pending_operation_ids=done.not_pending_operation_ids
        )

    async def CloseSession(  # noqa: N802 - the name of the call
        self, request: wire.CloseSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> wire.CloseSessionResponse:
        await self._authorize(context)
        self.closed.append(request.session_id)
        session = self.sessions.pop(request.session_id, None)
        self._send(request.session_id, grpc.StatusCode.OK)
        self._note()
        if session is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"session {request.session_id} is not known")
        return wire.CloseSessionResponse()


def operations_of(batch: wire.RegisterBatch) -> Iterator[Registered]:
    """The operations of a batch in either shape."""
    now = time.monotonic()
    if batch.WhichOneof("shape") == "rows":
        for row in batch.rows.operations:
            yield _registered(row, now)
        return
    columns: operation_pb2.OperationColumns = batch.columns
    count = len(columns.operation_id)
    timeouts = full(columns.timeout_ms, count)
    starts = accumulate(full(columns.item_count or [1], count), initial=0)
    for operation_id, timeout_ms, item in zip(columns.operation_id, timeouts, starts, strict=False):
        index = columns.item_index[item] if columns.item_index else 0
        yield Registered(operation_id, timeout_ms, columns.partitions[index].topic, now)


def full(column: Sequence[int], count: int) -> list[int]:
    """A column in which one value may stand for all."""
    return list(column) * (count if len(column) == 1 else 1)


def _registered(row: operation_pb2.Operation, now: float) -> Registered:
    return Registered(row.operation_id, row.timeout_ms, row.produce.partitions[0].topic_partition.topic, now)
