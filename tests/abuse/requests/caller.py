"""Calls every RPC of some services with fuzzed requests, many at a time, over one channel.

To gRPC each call is a stream in both directions, so one kind of call serves all methods. Calls are sent as bytes that
may not decode, read or left unread, half-closed, cut, and opened again under the same session. Every status is judged.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.random_messages import RandomMessages, broken_bytes
from tests.kit.eventually import PATIENCE_S

SERVICE: Final = wire.DESCRIPTOR.services_by_name["PurgatoryService"]
BROKEN: Final = 0.3
BROKEN_IN_STREAMS: Final = 0.03
"""Shares of messages that are sent with changed bytes. In streams they are rare: most of them end the stream."""
WEIGHTS: Final = {"Wait": 2, "Session": 2, "Register": 3, "Advance": 3, "AdvanceStream": 2}
"""Relative frequency of each RPC; others: 1."""
WAITING: Final = ("Wait", "GetSourceEnds")
"""Unary calls that need not be answered soon."""
NEVER: Final = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "ABORTED", "DEADLINE_EXCEEDED"})
"""Calls have a deadline of `PATIENCE_S`; calls that may wait are cut long before it."""
ITEMS: Final = ("accepted", "already_known", "refusals", "ended", "ended_total")
"""Numbers and lists of receipts."""
FINDINGS_MAX: Final = 30
ALIKE_MAX: Final = 2
"""Maximum of findings kept per kind."""


class Tally:
    """Counts of a run. A request is one message sent on an RPC."""

    def __init__(self) -> None:
        self.requests: Final[Counter[tuple[str, str]]] = Counter()
        """Counts by RPC and status."""
        self.items: Final[Counter[str]] = Counter()
        """Sums of the fields `ITEMS` of receipts."""
        self.findings: Final[list[str]] = []
        self._kinds: Final[Counter[str]] = Counter()

    @property
    def total(self) -> int:
        return self.requests.total()

    def find(self, what: str) -> None:
        """Record a finding. The first few of each kind are kept."""
        kind = re.sub(r"[0-9]+", "0", what.partition(" for ")[0])[:400]
        self._kinds[kind] += 1
        if self._kinds[kind] <= ALIKE_MAX and len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)

    def add_receipt(self, answer: Message) -> None:
        receipt: Any = getattr(answer, "receipt", None)
        for name in ITEMS if receipt is not None else ():
            value = getattr(receipt, name, 0)
            self.items[name] += value if isinstance(value, int) else len(value)


class FuzzingCaller:
    """Fuzzes some services over a channel, using the contract's descriptors."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        messages: RandomMessages,
        tally: Tally,
        services: Sequence[ServiceDescriptor] = (SERVICE,),
    ) -> None:
        self._messages: Final = messages
        self._tally: Final = tally
        self._methods: Final[list[MethodDescriptor]] = [method for service in services for method in service.methods]
        self._weights: Final = [WEIGHTS.get(method.name, 1) for method in self._methods]
        self._start: Final[dict[str, Callable[..., Any]]] = {
            method.full_name: channel.stream_stream(
                f"/{method.containing_service.full_name}/{method.name}",
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            for method in self._methods
        }

    async def run(self, requests: int, tasks: int = 24) -> None:
        """Send at least `requests` requests, with `tasks` calls at a time."""
        goal = self._tally.total + requests

        async def call_on() -> None:
            while self._tally.total < goal:
                [method] = self._messages.rng.choices(self._methods, self._weights)
                await self._call(method)

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(call_on())

    async def _call(self, method: MethodDescriptor) -> None:
        """Send messages, read answers for a while, and judge the status, which belongs to the last message."""
        rng, session_id = self._messages.rng, self._messages.session_id()
        call = self._start[method.full_name](timeout=PATIENCE_S)
        reader = asyncio.create_task(self._read(call, session_id))
        request: Message | bytes = b""
        sent = 0
        # If the stream has ended, its status is judged below.
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            for place in range(rng.choice((1, 2, 10, 30)) if method.client_streaming else 1):
                request, sent = self._request(method, session_id, is_first=place == 0), sent + 1
                await _write(call, request if isinstance(request, bytes) else request.SerializeToString())
            if not method.client_streaming or rng.random() < 0.7:
                await call.done_writing()
        may_wait = method.server_streaming or method.name in WAITING
        is_cut = may_wait or rng.random() < 0.02
        await asyncio.wait([reader], timeout=rng.choice((0.005, 0.05, 0.3)) if is_cut else None)
        if not reader.done():
            call.cancel()
        status = (await call.code()).name
        await asyncio.wait([reader])
        self._tally.requests[method.name, "OK"] += sent - 1
        self._tally.requests[method.name, status] += 1
        if status in NEVER:
            shown = " ".join(str(request).split())[:1_500]
            self._tally.find(f"{method.name}: {status}: {(await call.details())[:300]} for {shown}")

    def _request(self, method: MethodDescriptor, session_id: str, *, is_first: bool) -> Message | bytes:
        messages, rng = self._messages, self._messages.rng
        request: Message = messages.message(GetMessageClass(method.input_type))
        if isinstance(request, wire.SessionRequest) and rng.random() < 0.95:
            if is_first:
                last, columns = messages.sequences.get(session_id, 0), rng.random() < 0.5
                opening = wire.OpenSession(session_id=session_id, last_sequence=last, columns=columns)
                request = wire.SessionRequest(open=opening)
            elif request.HasField("open"):
                request = wire.SessionRequest(heartbeat=wire.Heartbeat())
        share = BROKEN_IN_STREAMS if method.client_streaming else BROKEN
        return broken_bytes(rng, request.SerializeToString()) if rng.random() < share else request

    async def _read(self, call: Any, session_id: str) -> None:  # noqa: ANN401 - the stubs' calls have no common type
        """Read until the stream ends; some begin late. A call that is cut cancels this task."""
        if self._messages.rng.random() < 0.1:
            await asyncio.sleep(0.05)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (answer := await call.read()) is not grpc.aio.EOF:
                self._messages.learn_from(answer, session_id)
                self._tally.add_receipt(answer)


async def _write(call: Any, data: bytes) -> None:  # noqa: ANN401 - the stubs' calls have no common type
    """Write one message. The call's own `write` would hide the status with which the stream has ended."""
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(data)
