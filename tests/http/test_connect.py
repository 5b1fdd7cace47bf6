"""Calls with Connect and gRPC-Web, as JSON and protobuf: they have the results of gRPC, and its limits, deadlines,
cancellation and shutdown. Requests in JSON that are refused: for unknown fields, numbers that JSON would not write so.
"""

import asyncio
import gc
import gzip
import io
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
import grpc
import pytest
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.rpc import call_gate
from purgatory.service.rpc.handlers import SERVICE as METHODS
from purgatory.v1 import event_pb2, source_pb2
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
    enveloped,
    over_grpc,
    serving_http,
)
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import advance_request, high_watermark, produce, produce_columns, register_request, signal
from tests.kit.recorded import assert_recorded, cases_of
from tests.played_source import played_source
from tests.scripts.messages import clear

CODES = {code.name: code.value[0] for code in grpc.StatusCode}
DIFFER = frozenset((
    "started_time", "incarnation", "waited_ms", "state_ms", "stale_ms", "remaining_ms", "registered_time",
    "deadline_time",
))  # fmt: skip
"""Fields that differ between two calls: times and random names."""
ONE_WAY = [method for method in METHODS.methods if not method.client_streaming]
READING = [method.name for method in ONE_WAY if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS]
"""Methods that are also available with GET."""
REQUESTS: list[tuple[str, Message]] = [
    *((method.name, GetMessageClass(method.input_type)()) for method in ONE_WAY if method.name != "TailResults"),
    ("TailResults", wire.TailResultsRequest(outcomes=[6])),
    ("Wait", wire.WaitRequest(operation=produce(0, "orders", 3))),
    ("StreamResults", wire.StreamResultsRequest(session_id="s")),
    ("Advance", advance_request(high_watermark("orders", 5), event_pb2.Event())),
    ("GetSourceEnds", source_pb2.GetSourceEndsRequest(topics=["kafka/orders"])),
    ("GetOperation", wire.GetOperationRequest(session_id="s", operation_id=2)),
]
"""An empty request for each method, which some refuse, and others. Only its caller ends an empty TailResults."""
LONG = wire.WaitRequest(operation=produce(0, "orders", 300, timeout_ms=600_000))


@pytest.fixture
async def caller() -> AsyncIterator[HttpCaller]:
    """Calls a host with a mark and a source."""
    async with serving_http() as caller, played_source(caller.served.address, end=11):
        await caller.served.high_watermark("orders", 5)
        yield caller


async def ended(caller: HttpCaller, request: Message, call: Awaitable[Ending]) -> tuple[list[Message], object]:
    """The result of a call without times. The session `s` has a result and a pending operation; a stream of its results
    ends when it is closed after they have been written.
    """
    if request == wire.StreamResultsRequest(session_id="s"):
        calling = asyncio.ensure_future(call)
        session = caller.host.sessions.get("s", caller.host.sessions.accounts.nobody)
        await eventually(lambda: session.stream is not None and not session.outbox.unwritten, "the results are written")
        await caller.served.stub.CloseSession(wire.CloseSessionRequest(session_id="s"))
        call = calling
    ending = await call
    for answer in ending.answers:
        clear(answer, DIFFER)
    return ending.answers, ending.status


@pytest.mark.parametrize(("method", "request_"), REQUESTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(REQUESTS)])
async def test_connect_and_grpc_web_answer_as_grpc_does(caller: HttpCaller, method: str, request_: Message) -> None:
    descriptor = METHODS.methods_by_name[method]
    answer = GetMessageClass(descriptor.output_type)
    ways: list[Callable[..., Awaitable[Ending]]] = [caller.grpc_web]
    ways.append(caller.streamed if descriptor.server_streaming else caller.unary)
    if method in READING:
        ways.append(caller.get)
    session = register_request("s", produce(1, "orders", 3), produce(2, "orders", 300, timeout_ms=600_000))
    await caller.served.stub.Register(session)
    stub = caller.served.stub
    expected = await ended(caller, request_, over_grpc(getattr(stub, method)(request_, timeout=PATIENCE_S)))
    for way in ways:
        for codec in CODECS:
            await stub.Register(session)
            assert await ended(caller, request_, way(method, request_, answer, codec)) == expected


@pytest.mark.parametrize("method", [method.name for method in METHODS.methods if method.client_streaming])
async def test_streams_in_both_directions_need_grpc(caller: HttpCaller, method: str) -> None:
    """HTTP/1.1 cannot carry them, and the error recommends gRPC."""
    descriptor = METHODS.methods_by_name[method]
    request, answer = GetMessageClass(descriptor.input_type)(), GetMessageClass(descriptor.output_type)
    for codec in CODECS:
        for call in (caller.streamed, caller.grpc_web):
            ending = await call(method, request, answer, codec)
            assert (ending.status.code, ending.answers) == (CODES["UNIMPLEMENTED"], [])
            assert "use gRPC" in ending.status.message


async def test_calls_that_only_read_are_those_with_get(caller: HttpCaller) -> None:
    """No change can be triggered by a URL alone."""
    names = {method.name for method in ONE_WAY}
    assert set(READING) == {name for name in names if name.startswith(("Get", "List"))}
    for method in names - set(READING):
        async with caller.client.get(f"{SERVICE}/{method}", params={"message": "{}"}) as response:
            assert response.status == 405


@pytest.mark.parametrize("codec", CODECS)
async def test_body_that_is_not_a_message_is_refused(caller: HttpCaller, codec: str) -> None:
    """Broken JSON and broken protobuf are errors of the caller, with the field `request`."""
    broken = {
        JSON: [
            b"", b"[]", b"{", b'"x"', b"\xff", b'{"operation": 1}', b"[" * 50_000, b'{"operation": {"timeoutMs": 1.5}}',
        ],
        BINARY: [b"\xff", b"\x0a\xff"],
    }  # fmt: skip
    for body in broken[codec]:
        ending = await caller.unary("Wait", body, wire.WaitResponse, codec)
        assert ending.status.code == CODES["INVALID_ARGUMENT"]
        assert ending.status.message.startswith("request: ")
        assert len(ending.status.details) == 1


async def test_calls_are_counted_by_status(caller: HttpCaller) -> None:
    for request in (wire.ListHotNamesRequest(), wire.ListHotNamesRequest(limit=-1)):
        await caller.unary("ListHotNames", request, wire.ListHotNamesResponse)
    counted = caller.gate.counts.of(METHODS.methods_by_name["ListHotNames"]).ended
    assert {code: count for code, count in counted.items() if count} == {0: 1, CODES["INVALID_ARGUMENT"]: 1}


@pytest.mark.parametrize("codec", CODECS)
async def test_caller_that_goes_away_cancels_its_wait(codec: str) -> None:
    async with serving_http() as caller:
        waiting = asyncio.create_task(caller.unary("Wait", LONG, wire.WaitResponse, codec))
        await eventually(lambda: caller.host.engine.pending == 1, "the wait is registered")
        waiting.cancel()
        await eventually(lambda: caller.host.engine.pending == 0, "the wait is cancelled")
        await eventually(lambda: caller.host.fair_queue.calls == 0, "the call has ended")


async def test_stream_whose_reader_goes_away_leaves_the_session_free() -> None:
    async with serving_http() as caller:
        await caller.served.stub.Register(register_request("s", signal(1, "k", timeout_ms=0)))
        for codec in CODECS:
            frames = caller.frames("StreamResults", wire.StreamResultsRequest(session_id="s"), codec)
            await anext(frames)
            await frames.aclose()
        session = caller.host.sessions.get("s", caller.host.sessions.accounts.nobody)
        await eventually(lambda: session.stream is None, "the session has no stream")
        await eventually(lambda: caller.host.fair_queue.calls == 0, "no call is in flight")


async def test_the_deadline_ends_the_wait() -> None:
    async with serving_http() as caller:
        for after_ms, code in (("50", "DEADLINE_EXCEEDED"), ("soon", "INVALID_ARGUMENT")):
            ending = await caller.unary("Wait", LONG, wire.WaitResponse, **{"connect-timeout-ms": after_ms})
            assert ending.status.code == CODES[code]
            assert caller.host.engine.pending == caller.host.fair_queue.calls == 0


@pytest.mark.parametrize("codec", CODECS)
async def test_message_above_the_limit_is_refused_and_the_next_is_served(caller: HttpCaller, codec: str) -> None:
    """Whether it is sent as it is or compressed."""
    large = wire.RegisterRequest(session_id="s", batch=produce_columns(range(1, 2)))
    large.batch.columns.partitions[0].topic = "x" * MESSAGE_BYTES_MAX
    body = encoded(large, codec)
    for sent, headers in ((body, {}), (gzip.compress(body), {"content-encoding": "gzip"})):
        ending = await caller.unary("Register", sent, wire.RegisterResponse, codec, **headers)
        assert ending.status.code == CODES["RESOURCE_EXHAUSTED"]
        assert re.search(f"larger than .*{MESSAGE_BYTES_MAX}", ending.status.message)
    assert (await caller.unary("GetStatus", wire.GetStatusRequest(), wire.GetStatusResponse)).status.code == 0


async def test_call_above_the_limit_over_grpc_and_http_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_gate, "CALLS_MAX", 1)
    async with serving_http() as caller:
        waiting = caller.served.stub.Wait(LONG)
        await eventually(lambda: caller.host.engine.pending == 1, "the wait is registered")
        ending = await caller.unary("GetStatus", wire.GetStatusRequest(), wire.GetStatusResponse)
        assert ending.status.code == CODES["RESOURCE_EXHAUSTED"]
        assert [detail.type_url.rpartition(".")[2] for detail in ending.status.details] == ["QuotaFailure", "RetryInfo"]
        reader, writer = await asyncio.open_connection("127.0.0.1", caller.port)
        head = f"POST {SERVICE}/Register HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 1000\r\n\r\n{{".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 429")
        writer.close()
        waiting.cancel()


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
        counted = caller.gate.counts.of(METHODS.methods_by_name["Advance"]).ended
    assert (status.code, list(status.details)) == (CODES["UNAVAILABLE"], [])
    assert status.message == "the daemon is shutting down; this call may have been processed"
    assert counted[CODES["UNAVAILABLE"]] == 1


async def test_cancelled_call_is_answered_with_a_status_that_http_does_not_define() -> None:
    """499, which the protocol has for it."""
    async with serving_with_slow_disk() as caller:
        calling = asyncio.create_task(caller.unary("Advance", APPLIED, wire.AdvanceResponse))
        await eventually(lambda: caller.host.engine.partition_count == 1, "the event is applied")
        await caller.site.end_requests(0.0)
        assert (await calling).status.code == CODES["CANCELLED"]


async def test_call_that_waits_for_its_turn_ends_as_not_processed() -> None:
    """The error advises the caller to repeat it."""
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
    assert (status.code, status.message) == (CODES["UNAVAILABLE"], "the daemon is shutting down")
    assert [detail.type_url for detail in status.details] == ["type.googleapis.com/google.rpc.RetryInfo"]


async def test_pending_call_keeps_neither_headers_nor_address_that_nobody_uses() -> None:
    """Headers that calls use are counted, however long they are, until the call has ended."""
    junk, calls = {f"x-{number}": "j" * 5_000 for number in range(10)}, 20
    async with serving_http() as caller:

        async def hold(number: int, **headers: str) -> list[asyncio.Task[Ending]]:
            pending = caller.host.engine.pending + number
            calls = (caller.unary("Wait", LONG, wire.WaitResponse, **headers) for _ in range(number))
            waits = [asyncio.create_task(call) for call in calls]
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


COUNT = 1_000
IN_FLIGHT = 200
PARTITION = {"topicPartition": {"topic": "orders", "partition": 3}}
WAIT = {"operation": {"timeoutMs": 600_000, "produce": {"partitions": [PARTITION | {"requiredOffset": 42}]}}}
ADVANCE = {"rows": {"events": [PARTITION | {"highWatermark": {"offset": 100}}]}}


async def test_a_thousand_waits_end_with_one_advance(run_daemon: RunDaemon) -> None:
    """With default settings no wait is refused or closed without a response."""
    daemon = await run_daemon()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://{daemon.http_address}", connector=connector) as client:

        async def call(method: str, request: object) -> dict[str, Any]:
            async with client.post(f"{SERVICE}/{method}", json=request) as response:
                answer: dict[str, Any] = await response.json()
                return answer

        async def all_pending() -> bool:
            kinds = (await call("GetStatus", {}))["kinds"]
            return sum(int(kind.get("pending", 0)) for kind in kinds) == len(waits)

        waits: list[asyncio.Task[dict[str, Any]]] = []
        while len(waits) < COUNT:
            waits += [asyncio.create_task(call("Wait", WAIT)) for _ in range(IN_FLIGHT)]
            await eventually(all_pending, "the waits are registered")
        assert "receipt" in await call("Advance", ADVANCE)
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*waits)
    assert {answer["result"]["outcome"] for answer in answers} == {"OUTCOME_SATISFIED"}


async def posted(caller: HttpCaller, call: str, body: bytes, kind: str = "json") -> tuple[int, bytes]:
    """The status and the body of the answer."""
    sent = {"content-type": f"application/{kind}"}
    async with caller.client.post(f"{SERVICE}/{call}", data=io.BytesIO(body), headers=sent) as response:
        return response.status, await response.read()


async def test_json_above_its_own_limit_is_refused_with_the_remedy() -> None:
    async with serving_http(message_bytes_max=4 << 20) as caller:
        status, answer = await posted(caller, "Wait", b'{"operation": {}' + b" " * (1 << 20) + b"}")
        assert status == 429
        assert f"larger than {1 << 20} bytes; send smaller batches, or application/proto" in answer.decode()


# Requests that are refused, and numbers that are read, are in requests.txt.


REQUESTS_FILE: Final = Path(__file__).with_name("requests.txt")


async def answer_to(caller: HttpCaller, line: str) -> str:
    """The status of a request, and the code, message and details of an error, or the answer."""
    method, path, kind, body = line.split(" ", 3)
    data, url = body.encode(), path if path.startswith("/") else f"{SERVICE}/{path}"
    framed = enveloped(data) if kind.startswith(("connect+", "grpc-web+")) else data
    headers = {"content-type": kind if "/" in kind else f"application/{kind}"}
    async with caller.client.request(method, url, data=io.BytesIO(framed), headers=headers) as response:
        found = await response.read()
    assert caller.host.engine.pending == 0
    assert len(found) < 1_000
    if framed is not data:
        return " ".join(
            [str(response.status), *unquote(found[5:].decode()).partition("grpc-status-details")[0].split()]
        )
    answer = json.loads(found)
    if "code" not in answer:
        return f"{response.status} {json.dumps(answer)}"
    message = re.sub(r"(Failed to parse \w+ field).*", r"\1", answer["message"])  # then follow protobuf's own words
    details = [detail["type"].rpartition(".")[2] for detail in answer.get("details", ())]
    return " ".join([str(response.status), f"{answer['code']}: {message}", *details])


async def test_requests_are_answered_as_recorded() -> None:
    async with serving_http() as caller:
        assert_recorded(REQUESTS_FILE, [await answer_to(caller, case) for case in cases_of(REQUESTS_FILE)])
