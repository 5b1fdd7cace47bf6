"""Bugs found by fuzzing, each reduced to a small test."""

import asyncio
import base64
import binascii
import gc
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from purgatory.service.access.account import Accounts
from purgatory.service.errors import RpcError
from purgatory.service.fair_queue import FairQueue, next_loop_turn
from purgatory.service.rpc.call import Call, IncompleteRequests
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.handlers import Requests, add_standard_service, is_server_fault
from purgatory.service.sessions.result_stream import ResultStream
from purgatory.service.settings import LimitsSettings
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.daemon_checks import faults_in
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import eventually
from tests.kit.served_host import Peer, refused, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NO_MESSAGE = b"\xff"


def token(*parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


DIGEST = binascii.crc32(b"operations '' '' 0 None ''")
BRACKETS = base64.urlsafe_b64encode(b"[" * 100_000).decode()
STARTS = [token(DIGEST, start) for start in (-1, 2**31, 2**63, 10**300)]


@pytest.mark.parametrize("page_token", [BRACKETS, token(), token([[[[]]]]), *STARTS])
async def test_forged_page_tokens_are_refused(page_token: str) -> None:
    """Tokens nested deeper than the JSON parser recurses, and valid checksums with an invalid position."""
    async with serving() as served:
        genuine = served.stub.ListOperations(wire.ListOperationsRequest(page_token=token(DIGEST, 0)))
        assert list((await genuine).operations) == []
        with refused(INVALID):
            await served.stub.ListOperations(wire.ListOperationsRequest(page_token=page_token))
        with refused(INVALID):
            await served.stub.ListPartitions(wire.ListPartitionsRequest(page_token=page_token))


async def test_standard_services_refuse_what_does_not_decode(run_daemon: RunDaemon) -> None:
    """They continue, and nothing is logged as a fault."""
    daemon = await run_daemon()
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        reflection = "reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for method in ("health.v1.Health/Check", "health.v1.Health/Watch", reflection):
            call: Any = channel.stream_stream(f"/grpc.{method}")
            with refused(INVALID):
                await call(iter([NO_MESSAGE])).read()
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await listing.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert len((await listing.read()).list_services_response.service) > 2
        listing.cancel()
    await daemon.stop()
    assert faults_in(daemon.log) == []


def alive(kinds: tuple[type, ...]) -> int:
    """Number of objects of these types that the garbage collector looks at."""
    # By type: `isinstance` also asks the object, and lazy objects of other tests, such as Django's settings, raise.
    return sum(issubclass(type(one), kinds) for one in gc.get_objects())


@asynccontextmanager
async def nothing_left_of(*kinds: type) -> AsyncIterator[None]:
    """Without a garbage collection, which is rare by design, the block leaves no additional objects of these types."""
    gc.collect()
    gc.freeze()  # objects of other tests do not count, such as streams that were cut in a read that gRPC never ends
    gc.disable()
    try:
        yield
        await eventually(lambda: not alive(kinds), "all of it is gone")
    finally:
        gc.enable()
        gc.unfreeze()


async def test_refused_calls_leave_nothing_to_the_garbage_collector() -> None:
    async with serving() as served, nothing_left_of(RpcError, ResultStream):
        for _ in range(3):
            with refused(grpc.StatusCode.NOT_FOUND):
                await served.stub.GetPartition(wire.GetPartitionRequest())
            peer = await Peer(served, "s").open()
            await peer.send(open=wire.OpenSession(session_id="again"))
            assert await peer.code() is INVALID


async def test_refused_streams_leave_no_message_behind() -> None:
    unreadable = event_pb2.EventColumns(type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * 3, offset=[1, 2])
    async with serving() as served, nothing_left_of(wire.AdvanceStreamRequest):
        for _ in range(3):
            call = served.stub.AdvanceStream()
            await call.write(wire.AdvanceStreamRequest(columns=unreadable))
            assert await asyncio.wait_for(call.code(), 60) is INVALID
            del call


async def test_callers_that_go_cancel_no_read() -> None:
    """A stream that is cut while it waits for a message lets that read end by itself: gRPC leaks cancelled reads."""

    class Context:
        def __init__(self) -> None:
            self.message: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            self.reads = 0

        async def read(self) -> object:
            self.reads += 1
            return await self.message

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, report: reported.append(report))
    context: Any = Context()
    call = Call(context, Accounts().nobody)
    incomplete = IncompleteRequests().call("")
    requests = Requests(call, health_pb2.HealthCheckRequest.FromString, next_loop_turn, incomplete)
    waiting = asyncio.ensure_future(anext(requests))
    del requests
    await eventually(lambda: context.reads == 1, "it reads")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not context.message.cancelled()
    context.message.set_exception(grpc.aio.UsageError("RPC already finished."))
    del waiting
    await asyncio.sleep(0)
    gc.collect()
    assert reported == []


async def test_callers_that_send_no_request_are_refused() -> None:
    async with serving() as served:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = served.channel.stream_stream(
            "/purgatory.v1.PurgatoryService/StreamResults"
        )()
        await call.done_writing()
        assert await call.code() is INVALID
        assert await call.details() == "request: was not sent"


async def test_aborted_health_checks_leave_no_request_behind_and_are_counted() -> None:
    server, gate, registry = grpc.aio.server(), CallGate(FairQueue(), LimitsSettings()), CollectorRegistry()
    registry.register(gate.counts)
    service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    add_standard_service(health.aio.HealthServicer(), server, gate, service)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        nothing_left_of(health_pb2.HealthCheckRequest),
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        for name, code in (("nobody", "NOT_FOUND"), ("", "OK"), ("nobody", "NOT_FOUND")):
            check = stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert (await check.code()).name == code
            del check
    await server.stop(0)
    for code, count in (("OK", 1), ("NOT_FOUND", 2)):
        labels = {"method": "Health/Check", "code": code}
        assert registry.get_sample_value("purgatory_calls_ended_total", labels) == count


def test_callers_that_go_while_they_are_answered_are_no_fault() -> None:
    """An error from gRPC for a response whose caller has gone is not logged; its other errors are."""

    def record(error: Exception) -> logging.LogRecord:
        return logging.LogRecord("x", logging.ERROR, "", 0, "", None, (type(error), error, None))

    assert not is_server_fault(record(grpc.aio.InternalError()))
    assert is_server_fault(record(ValueError()))


async def test_a_stream_that_waits_keeps_no_message() -> None:
    async with serving() as served:
        async with nothing_left_of(wire.AdvanceStreamRequest):
            call = served.stub.AdvanceStream()
            await call.write(wire.AdvanceStreamRequest(rows=event_pb2.EventRows()))
            assert isinstance(await asyncio.wait_for(call.read(), 60), wire.AdvanceStreamResponse)
        await call.done_writing()
