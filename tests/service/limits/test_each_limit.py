"""Each limit in the settings, one below it, at it and one above it: acceptance, and the details of the refusal. A limit
that a policy sets for a principal refuses it in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pydantic import ValidationError

from purgatory.engine import codes
from purgatory.service.access.account import Account, OwnShares
from purgatory.service.access.roles import ALL
from purgatory.service.budget.shares import CALL_BYTES
from purgatory.service.errors import RETRY_AFTER_MS
from purgatory.service.fair_queue import REGISTRATIONS, Waiter
from purgatory.service.host import make_host
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.settings import MEMORY_BYTES_MIN, EngineLimitsSettings, LimitsSettings, Settings, SharesSettings
from purgatory.service.translate.parts import size_of
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2, source_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import high_watermark, produce, produce_columns, register_batch, signal
from tests.kit.served_host import ServedHost, start_server

LIMIT: Final = 4
HELD_MS: Final = 40_000
"""Timeout of held waits, a whole number of buckets on each wheel."""
NEVER: Final = None
AT_THE_NEXT_EXPIRY: Final = HELD_MS
EXHAUSTED: Final = codes.RESOURCE_EXHAUSTED
INVALID: Final = codes.INVALID_ARGUMENT


class Told(NamedTuple):
    """A refusal as its caller receives it: the code, the exceeded limit or invalid field, and the retry delay."""

    code: int
    subject: str
    retry_ms: int | None = NEVER


class Driven(NamedTuple):
    """A served host with one limit set, and a clock that does not advance."""

    served: ServedHost
    clock: ManualClock
    caller: Account
    streams: list[grpc.aio.StreamStreamCall[Any, Any]]
    """Streams that stay open to the end."""


async def told(call: Awaitable[object]) -> Told | None:
    """The refusal of the call, if it is refused."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return read(error)
    return None


def read(error: grpc.aio.AioRpcError) -> Told:
    """Parse the status of a refused call."""
    status = rpc_status.from_call(error)
    assert status is not None, error
    subject, retry_ms = "", NEVER
    for detail in status.details:
        quota, advice = error_details_pb2.QuotaFailure(), error_details_pb2.RetryInfo()
        request = error_details_pb2.BadRequest()
        if detail.Unpack(quota):
            subject = quota.violations[0].subject
        elif detail.Unpack(request):
            subject = request.field_violations[0].field
        elif detail.Unpack(advice):
            retry_ms = advice.retry_delay.ToMilliseconds()
    return Told(status.code, subject, retry_ms)


async def wait(driven: Driven, operation: operation_pb2.Operation) -> Told | None:
    """Return the refusal of a call of Wait; None if it waits or has been answered."""
    engine, pending = driven.served.host.engine, driven.served.host.engine.pending
    call: asyncio.Task[object] = asyncio.ensure_future(driven.served.stub.Wait(wire.WaitRequest(operation=operation)))
    await eventually(lambda: call.done() or engine.pending > pending, "the wait is taken or refused")
    if call.done():
        return await told(call)
    call.cancel()
    await eventually(lambda: engine.pending == pending, "the wait is cancelled")
    return None


async def register(driven: Driven, batch: wire.RegisterBatch, session_id: str = "s") -> wire.RegisterResponse:
    request = wire.RegisterRequest(session_id=session_id, batch=batch)
    answer: wire.RegisterResponse = await driven.served.stub.Register(request)
    return answer


async def hold(driven: Driven, count: int) -> None:
    """Keep this many operations of one partition pending."""
    if count:
        receipt = (await register(driven, produce_columns(range(1, count + 1), timeout_ms=HELD_MS))).receipt
        assert receipt.accepted == count


@asynccontextmanager
async def holding_waits(driven: Driven, count: int) -> AsyncIterator[None]:
    """Keep this many calls of Wait waiting."""
    host = driven.served.host
    request = wire.WaitRequest(operation=produce(1, "held", 9, timeout_ms=HELD_MS))
    waits = [asyncio.ensure_future(driven.served.stub.Wait(request)) for _ in range(count)]
    await eventually(lambda: host.engine.pending == count, "the calls wait")
    yield
    for call in waits:
        call.cancel()
    await eventually(lambda: host.fair_queue.calls == 0, "no call is in flight")


def produce_many(count: int) -> operation_pb2.Operation:
    """A wait for this many partitions."""
    operation = produce(0, "orders", 9, timeout_ms=HELD_MS)
    for partition in range(1, count):
        item = operation.produce.partitions.add(required_offset=9)
        item.topic_partition.topic, item.topic_partition.partition = "orders", partition
    return operation


# One function per limit. `amount` is the amount in use after the last step.


async def pending_operations(driven: Driven, amount: int) -> Told | None:
    await hold(driven, amount - 1)
    return await wait(driven, produce(0, "orders", 9, timeout_ms=HELD_MS))


async def pending_items(driven: Driven, amount: int) -> Told | None:
    await hold(driven, amount - 2)
    return await wait(driven, produce_many(2))


async def partitions(driven: Driven, amount: int) -> Told | None:
    await driven.served.advance(*(high_watermark("orders", 1, number) for number in range(amount - 1)))
    return await wait(driven, produce(0, "payments", 9, timeout_ms=HELD_MS))


async def signal_keys(driven: Driven, amount: int) -> Told | None:
    rows = [signal(number, f"key-{number}", HELD_MS) for number in range(1, amount)]
    await register(driven, register_batch(*rows))
    return await wait(driven, signal(0, "another", HELD_MS))


async def signal_values(driven: Driven, amount: int) -> Told | None:
    signalled = event_pb2.KeySignalled(key="job", value=b"x" * amount)
    receipt = await driven.served.advance(event_pb2.Event(key_signalled=signalled))
    return Told(receipt.refusals[0].code, receipt.refusals[0].field) if receipt.refusals else None


async def items_per_operation(driven: Driven, amount: int) -> Told | None:
    return await wait(driven, produce_many(amount))


async def timeout(driven: Driven, amount: int) -> Told | None:
    return await wait(driven, produce(0, "orders", 9, timeout_ms=amount))


async def topic_length(driven: Driven, amount: int) -> Told | None:
    return await wait(driven, produce(0, "t" * amount, 9, timeout_ms=HELD_MS))


async def operations_per_batch(driven: Driven, amount: int) -> Told | None:
    return await told(register(driven, produce_columns(range(1, amount + 1))))


async def events_per_batch(driven: Driven, amount: int) -> Told | None:
    return await told(driven.served.advance(*(high_watermark("orders", offset) for offset in range(amount))))


async def items_per_batch(driven: Driven, amount: int) -> Told | None:
    """The items are split between two operations, so that no other column has as many values."""
    columns = produce_columns(range(1, 3)).columns
    columns.item_count.extend([1, amount - 1])
    del columns.partitions[:]
    columns.partitions.extend(operation_pb2.TopicPartition(topic="orders", partition=one) for one in range(amount - 1))
    columns.item_index.extend([0, *range(amount - 1)])
    return await told(register(driven, wire.RegisterBatch(columns=columns)))


async def memory_bytes(driven: Driven, amount: int) -> Told | None:
    """Fill the memory with results until the batch's own worst case reaches the amount."""
    batch, host = produce_columns(range(1, 11)), driven.served.host
    await register(driven, produce_columns(range(1, 2), "other"))
    budget = host.shares.budget
    await eventually(lambda: host.fair_queue.calls == 0, "the call before has ended")
    held = host.shares.held_bytes(driven.caller) if driven.caller.principal else budget.held_bytes() + CALL_BYTES
    driven.caller.hold_results(amount - held - budget.operations_bytes(*size_of(batch)))
    return await told(register(driven, batch))


async def unary_waits(driven: Driven, amount: int) -> Told | None:
    async with holding_waits(driven, amount - 1):
        return await wait(driven, produce(0, "orders", 9, timeout_ms=HELD_MS))


async def calls(driven: Driven, amount: int) -> Told | None:
    async with holding_waits(driven, amount - 1):
        return await told(driven.served.stub.GetStatus(wire.GetStatusRequest()))


async def calls_queued(driven: Driven, amount: int) -> Told | None:
    """Calls of this caller wait in its queue, and never get a turn."""
    async with holding_waits(driven, 1):
        (caller,) = driven.served.host.fair_queue._callers.values()
        line = caller.waiters[REGISTRATIONS]
        line.extend(Waiter(asyncio.get_running_loop().create_future(), 0, True) for _ in range(amount - 1))
        try:
            return await told(driven.served.stub.GetStatus(wire.GetStatusRequest()))
        finally:
            line.clear()


async def calls_per_second(driven: Driven, amount: int) -> Told | None:
    said = [await told(driven.served.stub.GetStatus(wire.GetStatusRequest())) for _ in range(amount)]
    assert not any(said[:-1])
    return said[-1]


async def sessions(driven: Driven, amount: int) -> Told | None:
    for number in range(amount - 1):
        await register(driven, produce_columns(range(1, 2)), f"session-{number}")
    return await told(register(driven, produce_columns(range(1, 2)), "one more"))


async def sources(driven: Driven, amount: int) -> Told | None:
    for _ in range(amount - 1):
        await _attach(driven)
    return await told(_attach(driven))


async def _attach(driven: Driven) -> None:
    stream = driven.served.stub.AttachSource()
    hello = source_pb2.SourceHello(name="a", topic_prefixes=["orders"])
    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
    if await stream.read() is grpc.aio.EOF:
        await stream
    driven.streams.append(stream)


async def unacknowledged_results(driven: Driven, amount: int) -> Told | None:
    await driven.served.high_watermark("orders", 9)
    for number in range(1, amount):
        assert (await register(driven, produce_columns(range(number, number + 1)))).receipt.accepted == 1
    receipt = (await register(driven, produce_columns(range(amount, amount + 1)))).receipt
    return Told(receipt.refusals[0].code, receipt.refusals[0].field) if receipt.refusals else None


async def timeout_default(driven: Driven, amount: int) -> Told | None:
    """The settings themselves are refused."""
    try:
        LimitsSettings(timeout_ms_max=LIMIT, timeout_ms_default=amount)
    except ValidationError as error:
        return Told(INVALID, "timeout_ms_default" if "timeout_ms_default" in str(error) else "")
    return None


class LimitRow(NamedTuple):
    """A limit: the function that reaches it, and the refusal above it."""

    drive: Callable[[Driven, int], Coroutine[Any, Any, Told | None]]
    told: Told
    limit: int = LIMIT


PRODUCE: Final = "operation.produce.partitions"
SERVICE: Final = "purgatory.service"
OPERATIONS: Final = f"{SERVICE}.translate.batch_limits.OPERATIONS_MAX"
UNARY_WAITS: Final = f"{SERVICE}.budget.shares.UNARY_WAITS_MAX"
CALLS: Final = f"{SERVICE}.rpc.call_gate.CALLS_MAX"
CALLS_PER_CALLER: Final = f"{SERVICE}.rpc.call_gate.CALLS_PER_CALLER_MAX"
CALLS_PER_CONNECTION: Final = f"{SERVICE}.rpc.grpc_options.CALLS_PER_CONNECTION_MAX"
TABLE: Final = {
    "pending_operations_max": LimitRow(
        pending_operations, Told(EXHAUSTED, "operation.operation_id", AT_THE_NEXT_EXPIRY)
    ),
    "pending_items_max": LimitRow(pending_items, Told(EXHAUSTED, PRODUCE, AT_THE_NEXT_EXPIRY)),
    "partitions_max": LimitRow(partitions, Told(EXHAUSTED, PRODUCE, NEVER)),
    "signal_keys_max": LimitRow(signal_keys, Told(EXHAUSTED, "operation.signal.keys", AT_THE_NEXT_EXPIRY)),
    "signal_values_bytes_max": LimitRow(signal_values, Told(EXHAUSTED, "key_signalled.value")),
    "items_per_operation_max": LimitRow(items_per_operation, Told(INVALID, PRODUCE)),
    "timeout_ms_max": LimitRow(timeout, Told(INVALID, "operation.timeout_ms"), limit=30_000),
    "timeout_ms_default": LimitRow(timeout_default, Told(INVALID, "timeout_ms_default")),
    "topic_length_max": LimitRow(topic_length, Told(INVALID, f"{PRODUCE}[0].topic_partition"), limit=8),
    OPERATIONS: LimitRow(operations_per_batch, Told(INVALID, "batch.columns.operation_id")),
    f"{SERVICE}.translate.batch_limits.EVENTS_MAX": LimitRow(events_per_batch, Told(INVALID, "rows.events")),
    f"{SERVICE}.translate.batch_limits.ITEMS_MAX": LimitRow(items_per_batch, Told(INVALID, "batch.columns.item_index")),
    "memory_bytes_max": LimitRow(memory_bytes, Told(EXHAUSTED, "batch.memory", RETRY_AFTER_MS), limit=MEMORY_BYTES_MIN),
    UNARY_WAITS: LimitRow(unary_waits, Told(EXHAUSTED, "unary_waits", AT_THE_NEXT_EXPIRY)),
    CALLS: LimitRow(calls, Told(EXHAUSTED, "calls", AT_THE_NEXT_EXPIRY)),
    CALLS_PER_CALLER: LimitRow(calls, Told(EXHAUSTED, "calls_per_caller", AT_THE_NEXT_EXPIRY)),
    CALLS_PER_CONNECTION: LimitRow(calls, Told(EXHAUSTED, "calls_per_connection", AT_THE_NEXT_EXPIRY)),
    f"{SERVICE}.rpc.call_gate.CALLS_QUEUED_PER_CALLER_MAX": LimitRow(
        calls_queued, Told(EXHAUSTED, "calls_queued_per_caller", 1)
    ),
    "calls_per_second_max": LimitRow(calls_per_second, Told(EXHAUSTED, "calls_per_second", 251)),
    "sessions_max": LimitRow(sessions, Told(EXHAUSTED, "sessions", 600_000)),
    f"{SERVICE}.sources.source_links.SOURCES_MAX": LimitRow(sources, Told(EXHAUSTED, "sources")),
    "unacknowledged_results_max": LimitRow(unacknowledged_results, Told(EXHAUSTED, "")),
}
"""Rows by name of the setting, or by the full name of the constant."""


OWN: Final = {name: own for name in TABLE if (own := name.rpartition(".")[2].lower()) in OwnShares.model_fields}
"""Rows of limits that a policy can set for a principal, and their names there."""


@asynccontextmanager
async def driving(
    limits: Mapping[str, int], principal: str = "", own: OwnShares | None = None
) -> AsyncIterator[Driven]:
    """Serve the daemon's own host with these limits. The only caller has no share of them, but those in its policy."""
    set_limits = {name: value for name, value in limits.items() if "." not in name}
    settings = Settings(limits=LimitsSettings(**set_limits), shares=SharesSettings(times_free=0))
    clock = ManualClock()
    with ExitStack() as constants:
        for name in limits.keys() - set_limits.keys():
            constants.enter_context(mock.patch(name, limits[name]))
        host = make_host(settings, Metrics(), clock, 0)
        accounts = host.shares.accounts
        accounts.use_policy(lambda _: ALL, lambda _: own or OwnShares())
        caller = accounts.of(principal)
        server, port = await start_server(host, identify=lambda _: lambda _: caller, now_s=lambda: 100.0)
        served = ServedHost(host, port)
        try:
            yield Driven(served, clock, caller, [])
        finally:
            await served.channel.close()
            await server.stop(0)
            await host.stop()


def test_every_limit_is_in_the_table() -> None:
    assert {name for name in TABLE if "." not in name} == set(LimitsSettings.model_fields)
    assert set(EngineLimitsSettings.model_fields) < set(TABLE)
    assert {*OWN.values(), "times_free"} == set(OwnShares.model_fields)


@pytest.mark.parametrize("beyond", [-1, 0, 1], ids=["below", "at", "above"])
@pytest.mark.parametrize("name", TABLE)
async def test_each_limit_holds_to_the_one(name: str, beyond: int) -> None:
    """One above it, the refusal has the code, subject and retry delay of the table."""
    row = TABLE[name]
    limits = {name: row.limit} | ({"timeout_ms_default": 1} if name == "timeout_ms_max" else {})
    if name == "timeout_ms_default":
        limits = {}
    async with driving(limits) as driven:
        said = await row.drive(driven, row.limit + beyond)
    assert said == (row.told if beyond > 0 else None)


@pytest.mark.parametrize("beyond", [0, 1], ids=["at", "above"])
@pytest.mark.parametrize("name", OWN)
async def test_limit_of_a_principal_holds_to_the_one(name: str, beyond: int) -> None:
    """Above it, the code and the subject are those of the limit for all."""
    row = TABLE[name]
    async with driving({}, "ann", OwnShares.model_validate({OWN[name]: row.limit})) as driven:
        said = await row.drive(driven, row.limit + beyond)
    assert (None if said is None else said[:2]) == (row.told[:2] if beyond else None)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.told.retry_ms == AT_THE_NEXT_EXPIRY])
async def test_whoever_comes_again_when_told_is_served(name: str) -> None:
    """One millisecond before the end of the retry delay there is still no space."""
    by_calls = name in (UNARY_WAITS, CALLS, CALLS_PER_CALLER, CALLS_PER_CONNECTION)
    async with driving({name: LIMIT}) as driven, holding_waits(driven, LIMIT if by_calls else 0):
        if name == "signal_keys_max":
            rows = [signal(number, f"key-{number}", HELD_MS) for number in range(1, LIMIT + 1)]
            await register(driven, register_batch(*rows))
        elif not by_calls:
            await hold(driven, LIMIT)
        operation = signal(0, "another", 0) if name == "signal_keys_max" else produce(0, "orders", 9, 0)
        assert (await wait(driven, operation)) == TABLE[name].told
        for jump_ms in (HELD_MS - 1, 1):
            assert await wait(driven, operation) is not None
            driven.clock.jump(jump_ms)
            driven.served.host.reaper.turn()
        await eventually(lambda: driven.served.host.fair_queue.calls == 0, "calls that have their answer have ended")
        assert await wait(driven, operation) is None


async def test_session_that_reads_nothing_is_refused_until_it_acknowledges() -> None:
    """Refused registrations are results too. Only the session itself can make room, so there is no advice."""
    async with driving({"unacknowledged_results_max": 1, OPERATIONS: 2}) as driven:
        await driven.served.high_watermark("orders", 9)
        for number in range(1, 4):
            await register(driven, produce_columns(range(number, number + 1)))
        said = await told(register(driven, produce_columns(range(4, 5))))
        await driven.served.stub.Acknowledge(wire.AcknowledgeRequest(session_id="s", sequence=3))
        assert (await register(driven, produce_columns(range(4, 5)))).receipt.accepted == 1
    assert said == Told(EXHAUSTED, "batch.unacknowledged_results", NEVER)
