"""Calls every RPC of some services with fuzzed requests, many at a time, over one channel.

Streams are opened, fed, read or left unread, half-closed, aborted, and opened again under the same session. Unary calls
are sometimes cancelled, or sent as bytes that cannot be decoded. Every status is counted and checked.
"""

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.random_messages import RandomMessages, broken_bytes
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import advance_request

SERVICE: Final = wire.DESCRIPTOR.services_by_name["PurgatoryService"]
NO_ROOM: Final[int] = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]

BROKEN: Final = 0.03
"""Share of messages that are sent as invalid bytes."""

WEIGHTS: Final = {"Wait": 2, "Session": 2, "Register": 3, "StreamResults": 1, "Advance": 3, "AdvanceStream": 2}
"""Relative frequency of each RPC; others: 1."""


NEVER: Final = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "ABORTED"})
FINDINGS_MAX: Final = 30
ALIKE_MAX: Final = 2
"""Maximum of findings kept per kind."""


def to_bytes(message: Message | bytes) -> bytes:
    """The serializer of all calls; bytes are sent unchanged."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def shown(request: Message | bytes) -> str:
    """A request on one line, shortened, for a finding."""
    text = repr(request) if isinstance(request, bytes) else text_format.MessageToString(request, as_one_line=True)
    return f"{text[:1_500]}{'...' if len(text) > 1_500 else ''}"


class Tally:
    """Counts of a run. A request is one message sent on an RPC; `bytes` and `http` count attempts at the ports."""

    def __init__(self) -> None:
        self.requests: Final[Counter[tuple[str, str]]] = Counter()
        self.items: Final[Counter[str]] = Counter()
        """Items of batches: accepted, refused, applied."""
        self.findings: Final[list[str]] = []
        self._kinds: Final[Counter[str]] = Counter()

    @property
    def total(self) -> int:
        return self.requests.total()

    def count(self, rpc: str, status: str, times: int = 1) -> None:
        if times:
            self.requests[rpc, status] += times

    def judge(self, rpc: str, status: str, details: str, request: Message | bytes) -> None:
        """Judge one request by its status; a status that is never allowed is a finding."""
        self.count(rpc, status)
        if status in NEVER:
            self.find(f"{rpc}: {status}: {details[:300]} for {shown(request)}")

    def find(self, what: str) -> None:
        """Record a finding. The first few of each kind are kept."""
        kind = re.sub(r"[0-9]+", "0", what.partition(" for ")[0])[:400]
        self._kinds[kind] += 1
        if self._kinds[kind] <= ALIKE_MAX and len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)


class Method:
    def __init__(self, channel: grpc.aio.Channel, service: ServiceDescriptor, descriptor: MethodDescriptor) -> None:
        self.name: Final[str] = descriptor.name
        self.request_type: Final = GetMessageClass(descriptor.input_type)
        self.many_in: Final = descriptor.client_streaming
        self.many_out: Final = descriptor.server_streaming
        self.waits: Final = descriptor.name in {"Wait", "Watch"}
        make: Any = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, True): channel.stream_stream,
        }[self.many_in, self.many_out]
        self.call: Final[Callable[..., Any]] = make(
            f"/{service.full_name}/{descriptor.name}",
            request_serializer=to_bytes,
            response_deserializer=GetMessageClass(descriptor.output_type).FromString,
        )


class FuzzingCaller:
    """Fuzzes some services over a channel, using the contract's descriptors."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        messages: RandomMessages,
        tally: Tally,
        services: Sequence[ServiceDescriptor] = (SERVICE,),
    ) -> None:
        self.messages: Final = messages
        self.rng: Final[random.Random] = messages.rng
        self.tally: Final = tally
        self._methods: Final = {
            f"{service.name}.{descriptor.name}" if service is not SERVICE else descriptor.name: Method(
                channel, service, descriptor
            )
            for service in services
            for descriptor in service.methods
        }
        self._weights: Final = [WEIGHTS.get(name, 1) for name in self._methods]

    async def run(self, requests: int, callers: int = 24) -> None:
        """Send at least `requests` requests, with `callers` tasks."""
        goal = self.tally.total + requests
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._call_on(goal))

    async def _call_on(self, goal: int) -> None:
        while self.tally.total < goal:
            [(name, method)] = self.rng.choices(list(self._methods.items()), self._weights)
            if method.many_in:
                await self._two_way(name, method)
            elif method.many_out:
                await self._server_stream(name, method)
            else:
                await self._unary(name, method)

    def _request(self, method: Method) -> Message | bytes:
        """A message for a method, or invalid bytes in its place."""
        rng = self.rng
        request: Message = self.messages.message(method.request_type)
        if isinstance(request, wire.AdvanceRequest) and rng.random() < 0.1:
            listed = self.messages.partitions
            names = [listed.popleft() for _ in range(min(200, len(listed)))]
            removed = event_pb2.PartitionRemoved()  # or every request would fail at their limit
            request = advance_request(
                *[event_pb2.Event(topic_partition=name, partition_removed=removed) for name in names]
            )
        if isinstance(request, wire.RegisterRequest) and rng.random() < 0.9:
            request.ClearField("callback_url")  # refused: these daemons allow no callback hosts
        if "incarnation" in request.DESCRIPTOR.fields_by_name and rng.random() < 0.9:
            request.ClearField("incarnation")  # a random one belongs to no session
        if isinstance(request, wire.SessionRequest) and request.HasField("open") and rng.random() < 0.9:
            request = wire.SessionRequest(heartbeat=wire.Heartbeat())
        if isinstance(request, wire.GetOperationRequest | wire.CancelRequest) and self.messages.pending:
            self._aim(request)
        return broken_bytes(rng, request.SerializeToString()) if rng.random() < BROKEN else request

    def _aim(self, request: wire.GetOperationRequest | wire.CancelRequest) -> None:
        """Half of the time, name an operation that was recently pending."""
        session_id, operation_id = self.messages.pending.pop()
        if isinstance(request, wire.GetOperationRequest) and self.rng.random() < 0.5:
            request.session_id, request.operation_id = session_id, operation_id
        elif isinstance(request, wire.CancelRequest) and request.session_id and self.rng.random() < 0.5:
            request.session_id = session_id
            request.operation_ids.append(operation_id)

    async def _unary(self, name: str, method: Method) -> None:
        request = self._request(method)
        timeout_s = self.rng.choice((0.005, 0.05, 0.5)) if method.waits else PATIENCE_S
        call = method.call(request, timeout=timeout_s)
        if self.rng.random() < 0.02:
            await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.01)))
            call.cancel()
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            self._judge(name, error.code().name, error.details(), request, may_wait=method.waits)
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            self.tally.count(name, "CANCELLED")
        else:
            self.tally.count(name, "OK")
            self._note_answer(answer, "")

    async def _server_stream(self, name: str, method: Method) -> None:
        request = self._request(method)
        call = method.call(request, timeout=PATIENCE_S)
        session_id = request.session_id if isinstance(request, wire.StreamResultsRequest) else ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.rng.choice((0.01, 0.03, 0.1))):
                await self._read(call, session_id)
        await self._end(name, call, request, 1)

    async def _two_way(self, name: str, method: Method) -> None:
        rng = self.rng
        session_id = self.messages.session_id()
        call = method.call(timeout=PATIENCE_S)
        reader = asyncio.create_task(self._read(call, session_id)) if rng.random() < 0.9 else None
        sent = 0
        request: Message | bytes = b""
        try:
            for place in range(rng.choice((1, 2, 10, 30))):
                request = self._request(method)
                if place == 0 and method.name == "Session" and rng.random() < 0.95:
                    request = wire.SessionRequest(open=self._opening(session_id))
                sent += 1
                await _write(call, to_bytes(request))
                if rng.random() < 0.05:
                    await asyncio.sleep(0.002)
            if rng.random() < 0.7:
                await call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            pass  # the stream has ended; its status is judged below
        if reader is not None:
            await asyncio.wait([reader], timeout=rng.choice((0.005, 0.05, 0.3)))
        await self._end(name, call, request, sent)
        if reader is not None:
            await asyncio.wait([reader])

    def _opening(self, session_id: str) -> wire.OpenSession:
        rng = self.rng
        last_sequence = self.messages.sequences.get(session_id, 0) if rng.random() < 0.9 else self.messages.sequence()
        return wire.OpenSession(session_id=session_id, last_sequence=last_sequence, columns=rng.random() < 0.5)

    async def _read(self, call: Any, session_id: str) -> None:  # noqa: ANN401 - the stubs' calls have no common type
        """Read until the stream ends for any reason; its status is judged elsewhere."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (answer := await _read_one(call)) is not grpc.aio.EOF:
                self._note_answer(answer, session_id)

    async def _end(self, name: str, call: Any, request: Message | bytes, sent: int) -> None:  # noqa: ANN401
        """Abort a stream if it has not ended, and judge its status, which belongs to its last message."""
        if not call.done():
            call.cancel()
        code = await call.code()
        self.tally.count(name, "OK", sent - 1)
        status = "OK" if code is grpc.StatusCode.CANCELLED else code.name
        self._judge(name, status, await call.details(), request, may_wait=False)

    def _judge(self, name: str, status: str, details: str | None, request: Message | bytes, *, may_wait: bool) -> None:
        if status == "DEADLINE_EXCEEDED" and not may_wait:
            self.tally.find(f"{name}: no answer in {PATIENCE_S} s for {shown(request)}")
        self.tally.judge(name, status, details or "", request)

    def _note_answer(self, answer: Message, session_id: str) -> None:
        self.messages.learn_from(answer, session_id)
        items = self.tally.items
        receipt = getattr(answer, "receipt", None)
        if isinstance(receipt, wire.Receipt | wire.AdvanceReceipt):
            items["refused for want of room"] += sum(refusal.code == NO_ROOM for refusal in receipt.refusals)
        if isinstance(receipt, wire.Receipt):
            items["registrations accepted"] += receipt.accepted
            items["registrations known already"] += receipt.already_known
            items["registrations refused"] += len(receipt.refusals)
            items["batches refused"] += receipt.HasField("batch_refusal")
        elif isinstance(receipt, wire.AdvanceReceipt):
            items["events refused"] += len(receipt.refusals)
            items["events applied"] += len(receipt.ended) - len(receipt.refusals)
            items["operations ended by events"] += receipt.ended_total


async def _write(call: Any, data: bytes) -> None:  # noqa: ANN401 - the stubs' calls have no common type
    """Write one message. The call's own `write` would hide the status with which the stream has ended."""
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(data)


async def _read_one(call: Any) -> Any:  # noqa: ANN401 - a message or EOF, as gRPC's own
    """Read one message. A cancelled call reads as ended; only a cancellation of this task is raised."""
    read: Awaitable[Any] = call.read()
    try:
        return await read
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if call.cancelled() and (task is None or not task.cancelling()):
            return grpc.aio.EOF
        raise
