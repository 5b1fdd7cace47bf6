"""A real host and a real gRPC server on a free port, and the caller's side of a session stream."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Self

import grpc
import pytest

from purgatory.clock import Clock, SystemClock
from purgatory.engine.batches import EventBatch, Receipt, Refusal
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extension import Core
from purgatory.extensions.fleet.extension import FleetExtension
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.extensions.webhooks.extension import WebhooksExtension
from purgatory.service.access.access import Access
from purgatory.service.access.account import Account
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Called, Completed, Listener
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc.call import Identify
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.handlers import Method, add_to_server, service_methods
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.settings import AccessSettings, HostSettings
from purgatory.service.translate.events import IncomingEvents
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import high_watermark


def check_counts(status: wire.GetStatusResponse) -> None:
    """Check that registered = ended + pending, for each kind."""
    for kind in status.kinds:
        ended = kind.satisfied + kind.failed + kind.expired + kind.cancelled + kind.shutting_down
        assert kind.registered == ended + kind.pending, f"the counts do not agree: {kind}"


class RecordingListener(Listener):
    def __init__(self) -> None:
        self.outcomes: Counter[int] = Counter()
        self.accepted = 0
        self.refusals: Counter[int] = Counter()
        self.refused_calls: Counter[str] = Counter()
        """Counts by reason."""
        self.lags: list[float] = []
        self.reaper_failures = 0

    def called(self, event: Called) -> None:
        self.accepted += event.receipt.accepted

    def refused(self, refusals: Sequence[Refusal]) -> None:
        self.refusals.update(refusal.code for refusal in refusals)

    def call_refused(self, reason: str) -> None:
        self.refused_calls[reason] += 1

    def completed(self, event: Completed) -> None:
        self.outcomes.update(event.completions.outcomes)

    def loop_lag_ms(self, ms: float) -> None:
        self.lags.append(ms)

    def reaper_failed(self) -> None:
        self.reaper_failures += 1


HOOKS: Final = [name for name in vars(Listener) if not name.startswith("_") and name != "hook_failed"]


def with_faults(listener: Listener) -> Listener:
    """A listener of the same name that does the same as this one and then raises, in each of its hooks."""

    def faulty(hook: str) -> Callable[..., None]:
        def raises(_self: Listener, *event: object) -> None:
            getattr(listener, hook)(*event)
            raise RuntimeError(f"a fault in {hook}")

        return raises

    made: Listener = type(type(listener).__name__, (Listener,), {hook: faulty(hook) for hook in HOOKS})()
    return made


class DaemonChannel:
    def __init__(self, address: str) -> None:
        self.address = address
        # Without the bandwidth probe, flow control stops a stream that is not read after some 64 KiB.
        # A subchannel pool of its own means a separate connection: without principals, each connection is a caller.
        own = ("grpc.use_local_subchannel_pool", 1)
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.http2.bdp_probe", 0), own])
        self.stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def status(self) -> wire.GetStatusResponse:
        """Return GetStatus, after checking the identity of each kind."""
        status: wire.GetStatusResponse = await self.stub.GetStatus(wire.GetStatusRequest())
        check_counts(status)
        return status

    async def pending(self) -> int:
        return sum(kind.pending for kind in (await self.status()).kinds)


class ServedHost(DaemonChannel):
    def __init__(self, host: Host, port: int, clock: Clock | None = None) -> None:
        super().__init__(f"127.0.0.1:{port}")
        self.host = host
        self.clock = clock

    async def high_watermark(self, topic: str, offset: int, partition: int = 0) -> wire.AdvanceReceipt:
        return await self.advance(high_watermark(topic, offset, partition))

    async def advance(self, *events: event_pb2.Event) -> wire.AdvanceReceipt:
        answer: wire.AdvanceResponse = await self.stub.Advance(
            wire.AdvanceRequest(rows=event_pb2.EventRows(events=events))
        )
        return answer.receipt

    def raw(self, method: str) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        return self.channel.unary_unary(f"/purgatory.v1.PurgatoryService/{method}")


@asynccontextmanager
async def serving(
    settings: HostSettings | None = None,
    engine_limits: EngineLimits | None = None,
    clock: Clock | None = None,
    listener: Listener | None = None,
    options: list[tuple[str, Any]] | None = None,
) -> AsyncIterator[ServedHost]:
    """Serve a new host until the block ends."""
    clock = clock or SystemClock()
    engine = Engine(engine_limits or EngineLimits(), clock.now_ms())
    host = Host(engine, clock, settings or HostSettings(), *([listener] if listener else []))
    server, port = await start_server(host, options)
    served = ServedHost(host, port, clock)
    try:
        yield served
    finally:
        await served.channel.close()
        await server.stop(0)
        await host.stop()


def all_methods(host: Host) -> dict[str, Method]:
    """The methods of a daemon that has the extensions `webhooks` and `fleet`, and no log."""
    access = Access(AccessSettings(), host.sessions.accounts, lambda _context: "")
    core = Core(ALL_SETTINGS(), host, Metrics(), access, None, 0)
    webhooks = WebhooksExtension(core)
    added = {**webhooks.calls(), **FleetExtension(core).calls()}
    return service_methods(PurgatoryServicer(host, webhooks.callbacks), added)


async def start_server(
    host: Host,
    options: list[tuple[str, Any]] | None = None,
    identify: Identify | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[grpc.aio.Server, int]:
    """Start a host, and a server for it on a free port. Callers are anonymous unless `identify` is given.

    `now_s` is the clock for the rate of calls.
    """
    server = grpc.aio.server(options=options)
    advice = host.gate.next_expiry_ms
    gate = CallGate(
        host.fair_queue, host.settings.limits, host.listeners, now_s, advice, host.shares, host.note_refused_events
    )
    ask = identify or (lambda _method: lambda _context: host.sessions.accounts.nobody)
    add_to_server(all_methods(host), server, gate, ask)
    port = server.add_insecure_port("127.0.0.1:0")
    host.start()
    await server.start()
    return server, port


@contextmanager
def refused(code: grpc.StatusCode, match: str | None = None) -> Iterator[pytest.ExceptionInfo[grpc.aio.AioRpcError]]:
    """Check that the call in the block ends with this status, and a message that matches."""
    with pytest.raises(grpc.aio.AioRpcError, match=match) as raised:
        yield raised
    assert raised.value.code() == code


class Peer:
    def __init__(self, served: DaemonChannel, session_id: str) -> None:
        self._call = served.stub.Session()
        self._session_id = session_id
        self.opened = wire.SessionOpened()

    async def open(self, last_sequence: int = 0, *, columns: bool = False, incarnation: str = "") -> Peer:
        opening = wire.OpenSession(
            session_id=self._session_id, last_sequence=last_sequence, columns=columns, incarnation=incarnation
        )
        await self.send(open=opening)
        answer = await self.read()
        assert answer.HasField("opened"), answer
        self.opened = answer.opened
        return self

    async def send(self, **message: Any) -> None:  # noqa: ANN401 - any field of SessionRequest
        await self._call.write(wire.SessionRequest(**message))

    async def register(self, *operations: operation_pb2.Operation, batch_id: int = 1) -> None:
        rows = operation_pb2.OperationRows(operations=operations)
        await self.send(register=wire.RegisterBatch(batch_id=batch_id, rows=rows))

    async def registered(self, *operations: operation_pb2.Operation, batch_id: int = 1) -> wire.Receipt:
        await self.register(*operations, batch_id=batch_id)
        return await self.receipt()

    async def acknowledge(self, sequence: int) -> None:
        await self.send(acknowledge=wire.AcknowledgeResults(sequence=sequence))

    async def read(self) -> wire.SessionResponse:
        """Return the next message that is not a heartbeat."""
        while True:
            message = await asyncio.wait_for(self._call.read(), PATIENCE_S)
            assert message is not grpc.aio.EOF, "the stream has ended"
            assert isinstance(message, wire.SessionResponse)
            if not message.HasField("heartbeat"):
                return message

    async def receipt(self) -> wire.Receipt:
        message = await self.read()
        assert message.HasField("receipt"), message
        return message.receipt

    async def results(self) -> wire.ResultBatch:
        message = await self.read()
        assert message.HasField("results"), message
        return message.results

    async def read_raw(self) -> Any:  # noqa: ANN401 - a message or EOF, as gRPC's own
        """Return the next message of any kind, or EOF."""
        return await asyncio.wait_for(self._call.read(), PATIENCE_S)

    async def half_close(self) -> None:
        await self._call.done_writing()

    async def code(self) -> grpc.StatusCode:
        """Return the status that the stream ends with; unread messages, which precede the status, are skipped."""
        try:
            while await self.read_raw() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await asyncio.wait_for(self._call.code(), PATIENCE_S)
        return code

    async def details(self) -> str:
        details: str = await asyncio.wait_for(self._call.details(), PATIENCE_S)
        return details

    def cancel(self) -> None:
        self._call.cancel()


async def apply_events(host: Host, batch: EventBatch, account: Account | None = None) -> Receipt:
    """Apply a batch of one part, as `Advance` does."""
    host.gate.check_events()
    return (await host.apply(lambda: IncomingEvents(batch, {}), account)).done
