"""Properties that HTTP calls share with gRPC calls: limits, deadlines, cancellation, memory, shutdown."""

from __future__ import annotations

import asyncio
import gc
import gzip
import re
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from purgatory.service.rpc import call_gate
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import (
    BINARY,
    CODECS,
    JSON,
    MESSAGE_BYTES_MAX,
    SERVICE,
    Ending,
    HttpCaller,
    encoded,
    serving_http,
)
from tests.kit.eventually import eventually
from tests.kit.messages import advance_request, high_watermark, produce, produce_columns, register_batch, signal

RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
LONG = wire.WaitRequest(operation=produce(0, "orders", 300, timeout_ms=600_000))


@pytest.mark.parametrize("codec", CODECS)
async def test_who_goes_away_cancels_the_wait(codec: str) -> None:
    async with serving_http() as caller:
        waiting = asyncio.create_task(caller.unary("Wait", LONG, wire.WaitResponse, codec))
        await eventually(lambda: caller.host.engine.pending == 1, "the wait is registered")
        waiting.cancel()
        await eventually(lambda: caller.host.engine.pending == 0, "the wait is cancelled")
        await eventually(lambda: caller.host.fair_queue.calls == 0, "the call has ended")


async def test_the_deadline_ends_the_wait() -> None:
    async with serving_http() as caller:
        ending = await caller.unary("Wait", LONG, wire.WaitResponse, **{"connect-timeout-ms": "50"})
        assert ending.status.code == DEADLINE_EXCEEDED
        assert caller.host.engine.pending == 0
        ending = await caller.unary("Wait", LONG, wire.WaitResponse, **{"connect-timeout-ms": "soon"})
        assert ending.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert caller.host.fair_queue.calls == 0


@pytest.mark.parametrize("codec", CODECS)
async def test_messages_have_a_size(codec: str) -> None:
    """A larger message is refused, whether it is sent as it is or compressed; the next call is served."""
    large = wire.RegisterRequest(session_id="s", batch=produce_columns(range(1, 2)))
    large.batch.columns.partitions[0].topic = "x" * MESSAGE_BYTES_MAX
    body = encoded(large, codec)
    async with serving_http() as caller:
        for sent, headers in ((body, {}), (gzip.compress(body), {"content-encoding": "gzip"})):
            ending = await caller.unary("Register", sent, wire.RegisterResponse, codec, **headers)
            assert ending.status.code == RESOURCE_EXHAUSTED
            assert re.search(f"larger than .*{MESSAGE_BYTES_MAX}", ending.status.message)
        assert (await caller.unary("GetStatus", wire.GetStatusRequest(), wire.GetStatusResponse)).status.code == 0


async def test_calls_over_http_count_with_those_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_gate, "CALLS_MAX", 1)
    async with serving_http() as caller:
        waiting = caller.served.stub.Wait(LONG)
        await eventually(lambda: caller.host.engine.pending == 1, "the wait is registered")
        ending = await caller.unary("GetStatus", wire.GetStatusRequest(), wire.GetStatusResponse)
        assert ending.status.code == RESOURCE_EXHAUSTED
        assert [detail.type_url.rpartition(".")[2] for detail in ending.status.details] == ["QuotaFailure", "RetryInfo"]
        waiting.cancel()


async def test_a_refused_call_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_gate, "CALLS_MAX", 1)
    async with serving_http() as caller:
        waiting = caller.served.stub.Wait(LONG)
        await eventually(lambda: caller.host.engine.pending == 1, "the wait is registered")
        reader, writer = await asyncio.open_connection(caller.client._base_url.host, caller.client._base_url.port)  # type: ignore[union-attr]
        writer.write(
            f"POST {SERVICE}/Register HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            "content-length: 1000\r\n\r\n{".encode()
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 429")
        writer.close()
        waiting.cancel()


async def test_a_stream_over_http_is_the_session_s_stream() -> None:
    """Results arrive as they do over gRPC, a reader that disconnects leaves the session free, and a second stream takes
    it over from the first.
    """
    async with serving_http() as caller:
        request = wire.StreamResultsRequest(session_id="s")
        batch = register_batch(signal(1, "k", timeout_ms=0))
        await caller.served.stub.Register(wire.RegisterRequest(session_id="s", batch=batch))
        for codec in (JSON, BINARY):
            frames = caller.frames("StreamResults", request, codec)
            _, opened = await anext(frames)
            assert (
                b"incarnation" in opened
                if codec == JSON
                else wire.StreamResultsResponse.FromString(opened).HasField("opened")
            )
            flags, data = await anext(frames)
            assert flags == 0
            assert (
                b"results" in data if codec == JSON else wire.StreamResultsResponse.FromString(data).HasField("results")
            )
            second = caller.frames("StreamResults", request, codec)
            await anext(second)
            _, last = await anext(frames)
            assert (
                b"TAKEN_OVER" in last
                if codec == JSON
                else wire.StreamResultsResponse.FromString(last).HasField("going_away")
            )
            await second.aclose()
            await frames.aclose()
        session = caller.host.sessions.get("s", caller.host.sessions.accounts.nobody)
        await eventually(lambda: session.stream is None, "the session has no stream")
        await eventually(lambda: caller.host.fair_queue.calls == 0, "no call is in flight")


@pytest.mark.parametrize("kind", ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web+json"])
async def test_grpc_web(kind: str) -> None:
    """The responses are sent in frames, with the status in the last one."""
    codec = JSON if kind.endswith("json") else BINARY
    async with serving_http() as caller:
        await caller.served.high_watermark("orders", 300)
        for request, status in ((LONG, b"grpc-status: 0"), (wire.WaitRequest(), b"grpc-status: 3")):
            data = encoded(request, codec)
            body = struct.pack(">BI", 0, len(data)) + data
            async with caller.client.post(f"{SERVICE}/Wait", data=body, headers={"content-type": kind}) as response:
                answer = await response.read()
            assert response.status == 200
            assert status in answer


@pytest.mark.parametrize(
    ("method", "path", "kind", "status", "words"),
    [
        ("POST", f"{SERVICE}/Wait", "application/grpc", 415, "served on the gRPC port"),
        ("POST", f"{SERVICE}/Wait", "text/plain", 415, "send application/json or application/proto"),
        ("POST", f"{SERVICE}/StreamResults", "application/json", 415, "send application/connect+json or"),
        ("PUT", f"{SERVICE}/Wait", "application/json", 405, "send POST, with a JSON body such as {}"),
        ("GET", f"{SERVICE}/Wait", "application/json", 405, "send POST, with a JSON body such as {}"),
        ("POST", "/v1/results", "application/json", 405, "send GET"),
        ("POST", f"{SERVICE}/Wiat", "application/json", 404, f"did you mean {SERVICE}/Wait?"),
        ("POST", "/wait", "application/json", 404, f"did you mean {SERVICE}/Wait?"),
        ("GET", "/" + "x" * 30_000, "application/json", 404, f"calls are at {SERVICE}/NAME"),
    ],
)
async def test_what_cannot_be_a_call_is_told_what_to_send(
    method: str, path: str, kind: str, status: int, words: str
) -> None:
    async with serving_http() as caller:
        headers = {"content-type": kind}
        async with caller.client.request(method, path, data=b"{}", headers=headers) as response:
            assert (response.status, response.content_type) == (status, "application/json")
            error = await response.json()
            assert error["code"] in {"invalid_argument", "unimplemented"}
            assert words in error["message"]
            assert len(error["message"]) < 300


APPLIED = advance_request(high_watermark("orders", 7))


@asynccontextmanager
async def serving_with_slow_disk() -> AsyncIterator[HttpCaller]:
    """Changes are applied, but never become durable."""
    async with serving_http() as caller:
        caller.host.journal.durable = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        yield caller


async def end(caller: HttpCaller) -> None:
    caller.methods.is_ending = True
    await caller.site.end_requests(0.0)


@pytest.mark.parametrize("is_grpc_web", [False, True])
async def test_call_that_was_processed_ends_as_unavailable_and_says_so(is_grpc_web: bool) -> None:
    """Its change is applied: the caller must not conclude that it was not. Without a RetryInfo, as over gRPC."""
    async with serving_with_slow_disk() as caller:
        make = caller.grpc_web if is_grpc_web else caller.unary
        calling = asyncio.create_task(make("Advance", APPLIED, wire.AdvanceResponse))
        await eventually(lambda: caller.host.engine.partition_count == 1, "the event is applied")
        await end(caller)
        status = (await calling).status
    assert (status.code, list(status.details)) == (UNAVAILABLE, [])
    assert status.message == "the daemon is shutting down; this call may have been processed"
    assert (
        caller.gate.counts.of(wire.DESCRIPTOR.services_by_name["PurgatoryService"].methods_by_name["Advance"]).ended[
            UNAVAILABLE
        ]
        == 1
    )


async def test_call_that_waits_for_its_turn_ends_as_not_processed() -> None:
    """With advice to repeat it."""
    async with serving_with_slow_disk() as caller:
        turn = asyncio.Event()

        async def never(*_arguments: object, **_options: object) -> None:
            turn.set()
            await asyncio.Event().wait()

        caller.host.fair_queue.turn = never  # type: ignore[method-assign]
        calling = asyncio.create_task(caller.unary("Advance", APPLIED, wire.AdvanceResponse))
        await turn.wait()
        await end(caller)
        status = (await calling).status
        assert caller.host.engine.partition_count == 0
    assert (status.code, status.message) == (UNAVAILABLE, "the daemon is shutting down")
    assert [detail.type_url for detail in status.details] == ["type.googleapis.com/google.rpc.RetryInfo"]


async def test_pending_call_keeps_neither_headers_nor_address_that_nobody_uses() -> None:
    """Headers that calls use are counted, however long they are, until the call has ended."""
    junk, calls = {f"x-{number}": "j" * 5_000 for number in range(10)}, 20
    async with serving_http() as caller:

        async def hold(number: int, **headers: str) -> list[asyncio.Task[Ending]]:
            waits = [
                asyncio.create_task(caller.unary("Wait", LONG, wire.WaitResponse, **headers)) for _ in range(number)
            ]
            pending = caller.host.engine.pending + number
            await eventually(lambda: caller.host.engine.pending == pending, "the waits are registered")
            return waits

        waits = await hold(1)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            waits += await hold(calls, **junk)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < calls * 45_000, "the headers are kept"
        held = caller.site.limits.held_bytes
        waits += await hold(1, **{"connect-unknown": "j" * 50_000})
        assert caller.site.limits.held_bytes - held >= 100_000
        await caller.served.high_watermark("orders", 300)
        await asyncio.gather(*waits)
        await eventually(lambda: caller.site.limits.held_bytes == 0, "the requests have ended")
