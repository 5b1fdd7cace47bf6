"""A daemon that follows a script: it keeps sessions like the real one, but the test case decides what ends or breaks.

It serves `Session`, `Register`, `StreamResults`, `Acknowledge`, `Cancel` and `CloseSession`.
"""
# ruff: noqa: N802 - methods have the names of the calls

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from purgatory.v1 import operation_pb2, purgatory_service_pb2_grpc, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.proxy import FaultyProxy

DEADLINE_S: Final = 30.0
"""For anything that a client has to do. It usually takes milliseconds."""
UNLIMITED_BYTES: Final = 64 << 20
NOWHERE: Final = "127.0.0.1:1"

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Opening: TypeAlias = wire.OpenSession | wire.StreamResultsRequest
Outgoing: TypeAlias = dict[str, Any] | grpc.StatusCode
"""A message as the field that it sets, or the status that ends the stream."""


T = TypeVar("T", bound=Message)
LATER: Final = 99
"""No value of any enumeration."""
LATER_FIELD: Final = b"\xfa\x3e\x03new"
"""A field with the number 1,007."""


class CaseFailed(AssertionError):
    """The client did not do what the case expects."""


class Registered(NamedTuple):
    """An operation as it arrived."""

    operation_id: int
    timeout_ms: int
    topic: str


@dataclass
class ScriptedSession:
    """A session as the daemon knows it. Results are numbered from 1."""

    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    operations: dict[int, Registered] = field(default_factory=dict)
    results: list[result_pb2.Result] = field(default_factory=list)
    acknowledged: int = 0
    foreign_ids: int = 0
    as_columns: bool = False
    """Whether a message with a single result has it in columns."""

    @property
    def highest_id(self) -> int:
        return max(self.operations, default=self.foreign_ids)

    def results_after(self, sequence: int) -> dict[str, Any]:
        rows = wire.ResultRows(results=self.results[sequence:])
        if self.as_columns and len(rows.results) == 1:
            [row] = rows.results
            columns = result_pb2.ResultColumns(
                kind=row.kind, operation_id=[row.operation_id], outcome=[row.outcome], item_count=[0]
            )
            return {"results": wire.ResultBatch(first_sequence=sequence + 1, columns=columns)}
        return {"results": wire.ResultBatch(first_sequence=sequence + 1, rows=rows)}


class ScriptedDaemon(purgatory_service_pb2_grpc.PurgatoryServiceServicer):
    """Use it in `async with`. `address` leads to it through a proxy that can cut connections."""

    def __init__(self, bytes_enforced: int, credentials: grpc.ServerCredentials | None) -> None:
        # The script.
        self.message_bytes_max = UNLIMITED_BYTES
        """The limit that the daemon states; it enforces `bytes_enforced`."""
        self.is_later = False
        """Whether messages are those of a later daemon: all with unknown fields, some of unknown kinds."""
        self.heartbeat_interval_ms = 10_000
        self.sends_heartbeats = True
        self.answers_openings = True
        self.claims_to_resume = False
        self.foreign_ids = 0
        """Another client has registered operations up to this id in the session."""
        self.openings_refused: grpc.StatusCode | None = None
        self.batches_refused: grpc.StatusCode | None = None
        self.batches_lost = 0
        self.cancels_lost = 0
        # The record.
        self.attempts = 0
        self.openings: list[Opening] = []
        self.batches: list[int] = []
        self.sessions: dict[str, ScriptedSession] = {}
        self.cancelled: set[str] = set()
        self.closed: list[str] = []
        self.heartbeats = 0
        self.is_unary = False
        self.authorizations: set[str] = set()
        self._streams: dict[str, asyncio.Queue[Outgoing]] = {}
        self._changed: Final = asyncio.Event()
        self._target = NOWHERE
        self._proxy: Final = FaultyProxy(NOWHERE)
        self._bytes_enforced: Final = bytes_enforced
        self._credentials: Final = credentials

    async def __aenter__(self) -> ScriptedDaemon:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", self._bytes_enforced)])
        purgatory_service_pb2_grpc.add_PurgatoryServiceServicer_to_server(self, self._server)
        if self._credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", self._credentials)
        await self._server.start()
        await self._proxy.__aenter__()
        self._target = self._proxy.target = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._proxy.__aexit__()
        await self._server.stop(0)

    # For the cases

    def facts(self) -> dict[str, object]:
        """Facts about the run so far, for the script and for messages."""
        first, last = (self.openings or [wire.OpenSession()])[0], (self.openings or [wire.OpenSession()])[-1]
        incarnations = {session_id: session.incarnation for session_id, session in self.sessions.items()}
        resumes = last.session_id == first.session_id and last.incarnation == incarnations.get(last.session_id)
        return {
            "attempts": self.attempts,
            "openings": len(self.openings),
            "resumed_from": last.last_sequence if resumes else None,
            "operations": len(self.operations),
            "ids": [one.operation_id for one in self.operations],
            "batches": len(self.batches),
            "batches_lost": self.batches_lost,
            "acknowledged": [session.acknowledged for session in self.sessions.values()],
            "cancelled": len(self.cancelled),
            "cancels_lost": self.cancels_lost,
            "closed": [session_id == first.session_id for session_id in self.closed],
            # A client that calls StreamResults sends none.
            "heartbeats": math.inf if self.is_unary else self.heartbeats,
            "tokens": sorted(self.authorizations),
        }

    @property
    def address(self) -> str:
        return self._proxy.address

    @property
    def operations(self) -> list[Registered]:
        """In the order of arrival."""
        return [operation for session in self.sessions.values() for operation in session.operations.values()]

    async def until(self, condition: Callable[[], object], expected: str) -> None:
        """Wait for something that the client has to do. Raises CaseFailed when it does not."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise CaseFailed(f"expected: {expected}; after {DEADLINE_S:.0f} s: {self.facts()}") from None

    async def registered(self, count: int) -> list[Registered]:
        """Wait until this many operations are registered, and return them."""
        await self.until(lambda: len(self.operations) >= count, f"{count} registered operations")
        return self.operations

    def complete(self, *topics: str, padding_bytes: int = 0, outcome: int = result_pb2.OUTCOME_SATISFIED) -> None:
        """End the waits for these topics (none given: all). Results are sent now, or when the client connects."""
        padding = result_pb2.PartitionResult(stale_reason="-" * padding_bytes)
        for session_id, session in self.sessions.items():
            ended = len(session.results)
            for one in session.operations.values():
                if one.topic in topics or not topics:
                    result = result_pb2.Result(operation_id=one.operation_id, outcome=outcome, partitions=[padding])
                    if self.is_later:
                        result.MergeFrom(result_pb2.Result(kind=LATER))
                    session.results.append(result)
            self._send(session_id, session.results_after(ended))

    def extend(self, topic: str, timeout_ms: int) -> None:
        """Report that the wait for this topic was extended, as after a call of Extend by any caller."""
        for session_id, session in self.sessions.items():
            ids = [one.operation_id for one in session.operations.values() if one.topic == topic]
            extended = wire.OperationsExtended(operation_ids=ids, timeout_ms=timeout_ms)
            self._send(session_id, {"extended": extended})

    def repeat_results(self) -> None:
        """Send all results again, from number 1."""
        for session_id, session in self.sessions.items():
            self._send(session_id, session.results_after(0))

    def end_streams(self, status: grpc.StatusCode, reason: str = "") -> None:
        """End the streams with a status, and before that with `going_away` if there is a reason."""
        for session_id in list(self._streams):
            if reason:
                self._send(session_id, {"going_away": wire.GoingAway(reason=reason)})
            self._send(session_id, status)

    def cut(self, *, unreachable: bool = False) -> None:
        """Reset all connections. `unreachable`: new ones fail until `restore`."""
        if unreachable:
            self._proxy.target = NOWHERE
        self._proxy.drop_all()

    def restore(self) -> None:
        self._proxy.target = self._target

    def forget(self) -> None:
        """Forget all sessions, as a restart without a journal does."""
        self.sessions.clear()

    # Streams

    def _send(self, session_id: str, message: Outgoing) -> None:
        if (stream := self._streams.get(session_id)) is not None:
            stream.put_nowait(message)

    def _authorize(self, context: Context) -> None:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self.authorizations.add(metadata.get("authorization", ""))

    async def _serve(self, opening: Opening, context: Context) -> AsyncIterator[dict[str, Any]]:
        """The daemon's messages on a stream, from `opened` to its end."""
        self._authorize(context)
        self.attempts += 1
        self._changed.set()
        if self.openings_refused is not None:
            await context.abort(self.openings_refused, "refused by the script")
        if not self.answers_openings:
            await asyncio.Event().wait()
        stream = self._streams[opening.session_id] = self._open(opening)
        self._changed.set()
        while not isinstance(message := await self._next(stream), grpc.StatusCode):
            yield message
        if self._streams.get(opening.session_id) is stream:
            del self._streams[opening.session_id]
        if message is not grpc.StatusCode.OK:
            await context.abort(message, "ended by the script")

    async def _next(self, stream: asyncio.Queue[Outgoing]) -> Outgoing:
        while True:
            try:
                async with asyncio.timeout(self.heartbeat_interval_ms / 1_000):
                    return await stream.get()
            except TimeoutError:
                if self.sends_heartbeats:
                    return {"heartbeat": wire.Heartbeat()}

    def _open(self, opening: Opening) -> asyncio.Queue[Outgoing]:
        self.openings.append(opening)
        session = self.sessions.setdefault(opening.session_id, ScriptedSession(foreign_ids=self.foreign_ids))
        session.as_columns = self.is_later and isinstance(opening, wire.OpenSession) and opening.columns
        resumed = session.highest_id > 0 and opening.incarnation in {"", session.incarnation}
        if resumed:
            session.acknowledged = max(session.acknowledged, opening.last_sequence)
        opened = wire.SessionOpened(
            resumed=resumed or self.claims_to_resume,
            highest_operation_id=session.highest_id,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            operations_per_batch_max=100_000,
            unacknowledged_results_max=100_000,
            timeout_ms_default=30_000,
            incarnation=session.incarnation,
            message_bytes_max=self.message_bytes_max,
        )
        stream: asyncio.Queue[Outgoing] = asyncio.Queue()
        stream.put_nowait({"opened": opened})
        if len(session.results) > session.acknowledged:
            stream.put_nowait(session.results_after(session.acknowledged))
        return stream

    async def Session(
        self, request_iterator: AsyncIterator[wire.SessionRequest], context: Context
    ) -> AsyncIterator[wire.SessionResponse]:
        opening = (await anext(request_iterator)).open
        reading = asyncio.create_task(self._read(opening.session_id, request_iterator))
        try:
            async for message in self._serve(opening, context):
                for response in self._responses(wire.SessionResponse(**message)):
                    yield response
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self, session_id: str, requests: AsyncIterator[wire.SessionRequest]) -> None:
        async for request in requests:
            session = self.sessions.get(session_id, ScriptedSession())
            which = request.WhichOneof("message")
            if which == "register" and (receipt := self._register(session, request.register)):
                self._send(session_id, {"receipt": receipt})
            elif which == "cancel" and (cancelled := self._cancel(session, request.cancel.operation_ids)):
                self._send(session_id, {"cancelled": cancelled})
            elif which == "acknowledge":
                session.acknowledged = max(session.acknowledged, request.acknowledge.sequence)
            self.heartbeats += which == "heartbeat"
            self._changed.set()

    async def StreamResults(
        self, request: wire.StreamResultsRequest, context: Context
    ) -> AsyncIterator[wire.StreamResultsResponse]:
        self.is_unary = True
        async for message in self._serve(request, context):
            for response in self._responses(wire.StreamResultsResponse(**message)):
                yield response

    def _responses(self, response: T) -> Iterator[T]:
        """A message as it is sent: that of a later daemon is followed by one of an unknown kind."""
        if self.is_later:
            add_later_fields(response)
        yield response
        if self.is_later:
            yield type(response).FromString(LATER_FIELD)

    # Shared by streams and calls

    def _register(self, session: ScriptedSession, batch: wire.RegisterBatch) -> wire.Receipt | None:
        """None: the batch is lost."""
        if self.batches_lost:
            self.batches_lost -= 1
            return None
        arrived = list(operations_of(batch))
        self.batches.append(len(arrived))
        receipt = wire.Receipt(batch_id=batch.batch_id)
        if self.batches_refused is None:
            new = [operation for operation in arrived if operation.operation_id > session.highest_id]
            session.operations |= {operation.operation_id: operation for operation in new}
            receipt.accepted, receipt.already_known = len(new), len(arrived) - len(new)
        else:
            receipt.batch_refusal.code = self.batches_refused.value[0]
            receipt.batch_refusal.message = "refused by the script"
        receipt.highest_operation_id = session.highest_id
        return receipt

    def _cancel(self, session: ScriptedSession, operation_ids: Sequence[int]) -> wire.CancelReceipt | None:
        """None: the cancel is lost."""
        if self.cancels_lost:
            self.cancels_lost -= 1
            return None
        known = [one for one in operation_ids if one in session.operations]
        self.cancelled |= {session.operations[one].topic for one in known}
        unknown = set(operation_ids) - set(known)
        return wire.CancelReceipt(cancelled_operation_ids=known, not_pending_operation_ids=unknown)

    # Calls

    async def _find(self, request: wire.RegisterRequest | wire.AcknowledgeRequest, context: Context) -> ScriptedSession:
        self._authorize(context)
        session = self.sessions.get(request.session_id)
        if session is None or request.incarnation not in {"", session.incarnation}:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"session {request.session_id} is not known")
        assert session is not None, "abort raises"
        return session

    async def Register(self, request: wire.RegisterRequest, context: Context) -> wire.RegisterResponse:
        session = await self._find(request, context)
        receipt = self._register(session, request.batch)
        self._changed.set()
        if receipt is None:
            await asyncio.Event().wait()
        elif receipt.HasField("batch_refusal"):
            status = status_pb2.Status(code=receipt.batch_refusal.code, message=receipt.batch_refusal.message)
            status.details.add().Pack(error_details_pb2.RetryInfo())
            await context.abort_with_status(rpc_status.to_status(status))
        return wire.RegisterResponse(receipt=receipt, incarnation=session.incarnation)

    async def Acknowledge(self, request: wire.AcknowledgeRequest, context: Context) -> wire.AcknowledgeResponse:
        session = await self._find(request, context)
        session.acknowledged = max(session.acknowledged, request.sequence)
        self._changed.set()
        return wire.AcknowledgeResponse()

    async def Cancel(self, request: wire.CancelRequest, context: Context) -> wire.CancelResponse:
        self._authorize(context)
        receipt = self._cancel(self.sessions.get(request.session_id, ScriptedSession()), request.operation_ids)
        self._changed.set()
        if receipt is None:
            await asyncio.Event().wait()
        assert receipt is not None, "waits for ever"
        return wire.CancelResponse(not_pending_operation_ids=receipt.not_pending_operation_ids)

    async def CloseSession(self, request: wire.CloseSessionRequest, context: Context) -> wire.CloseSessionResponse:
        self._authorize(context)
        self.closed.append(request.session_id)
        self._send(request.session_id, grpc.StatusCode.OK)
        if self.sessions.pop(request.session_id, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"session {request.session_id} is not known")
        return wire.CloseSessionResponse()


def add_later_fields(message: Message) -> None:
    """Add an unknown field to a message and to all that are in it."""
    for known, value in message.ListFields():
        if known.message_type is not None:
            for one in value if known.is_repeated else [value]:
                add_later_fields(one)
    message.MergeFromString(LATER_FIELD)


def operations_of(batch: wire.RegisterBatch) -> Iterator[Registered]:
    """The operations of a batch in either shape."""
    for row in batch.rows.operations:
        yield Registered(row.operation_id, row.timeout_ms, row.produce.partitions[0].topic_partition.topic)
    columns: operation_pb2.OperationColumns = batch.columns
    count = len(columns.operation_id)
    timeouts = full(columns.timeout_ms, count)
    starts = accumulate(full(columns.item_count or [1], count), initial=0)
    for operation_id, timeout_ms, item in zip(columns.operation_id, timeouts, starts, strict=False):
        index = columns.item_index[item] if columns.item_index else 0
        yield Registered(operation_id, timeout_ms, columns.partitions[index].topic)


def full(column: Sequence[int], count: int) -> list[int]:
    """A column in which one value may represent all."""
    return list(column) * (count if len(column) == 1 else 1)
