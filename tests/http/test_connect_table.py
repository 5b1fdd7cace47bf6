"""Every call with Connect and gRPC-Web, as JSON and protobuf, served or refused, has the same result as with gRPC."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.rpc.handlers import SERVICE
from purgatory.v1 import event_pb2, operation_pb2, source_pb2, webhook_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import BINARY, CODECS, JSON, Ending, HttpCaller, enveloped, over_grpc, serving_http
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import advance_request, high_watermark, produce, register_batch, register_request, signal

UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]
TOPIC = operation_pb2.TopicPartition(topic="orders")
TIMES = ("registered_time", "deadline_time")
DIFFER = frozenset(("started_time", "incarnation", "waited_ms", "state_ms", "stale_ms", "remaining_ms", *TIMES))
"""Fields that differ between two calls: times and random names."""


@dataclass(frozen=True)
class ConnectCase:
    """Requests in a given session: one that is served, and one that is refused."""

    served: Callable[[str], Message]
    refused: Callable[[str], Message]


CASES = {
    "Wait": ConnectCase(
        lambda _: wire.WaitRequest(operation=produce(0, "orders", 3)),
        lambda _: wire.WaitRequest(operation=operation_pb2.Operation(timeout_ms=1)),
    ),
    "Register": ConnectCase(
        lambda session: register_request(session, produce(1, "orders", 3), signal(2, "")),
        lambda session: register_request("x" * 129, produce(1, "orders", 3)),
    ),
    "StreamResults": ConnectCase(
        lambda session: wire.StreamResultsRequest(session_id=f"{session} with results"),
        lambda session: wire.StreamResultsRequest(session_id="x" * 129),
    ),
    "Acknowledge": ConnectCase(
        lambda session: wire.AcknowledgeRequest(session_id=f"{session} with results", sequence=1),
        lambda session: wire.AcknowledgeRequest(session_id=f"{session} with results", sequence=99),
    ),
    "CloseSession": ConnectCase(
        lambda session: wire.CloseSessionRequest(session_id=f"{session} with results"),
        lambda session: wire.CloseSessionRequest(session_id="gone"),
    ),
    "Advance": ConnectCase(
        lambda session: advance_request(high_watermark(session, 5), event_pb2.Event()),
        lambda session: wire.AdvanceRequest(),
    ),
    "Cancel": ConnectCase(
        lambda session: wire.CancelRequest(session_id=f"{session} with results", operation_ids=[2, 77]),
        lambda session: wire.CancelRequest(session_id=session, key="both"),
    ),
    "Extend": ConnectCase(
        lambda session: wire.ExtendRequest(
            session_id=f"{session} with results", operation_ids=[2, 77], timeout_ms=600_000
        ),
        lambda session: wire.ExtendRequest(session_id=f"{session} with results", operation_ids=[2]),
    ),
    "GetOperation": ConnectCase(
        lambda session: wire.GetOperationRequest(session_id=f"{session} with results", operation_id=2),
        lambda session: wire.GetOperationRequest(session_id=f"{session} with results", operation_id=3),
    ),
    "ListOperations": ConnectCase(
        lambda session: wire.ListOperationsRequest(session_id=f"{session} with results"),
        lambda session: wire.ListOperationsRequest(page_token="forged"),
    ),
    "GetPartition": ConnectCase(
        lambda session: wire.GetPartitionRequest(topic_partition=TOPIC),
        lambda session: wire.GetPartitionRequest(topic_partition=operation_pb2.TopicPartition(topic="unknown")),
    ),
    "ListPartitions": ConnectCase(
        lambda session: wire.ListPartitionsRequest(topic_prefix="ord"),
        lambda session: wire.ListPartitionsRequest(page_size=-1),
    ),
    "ListHotNames": ConnectCase(
        lambda session: wire.ListHotNamesRequest(limit=5), lambda session: wire.ListHotNamesRequest(limit=-1)
    ),
    "TailResults": ConnectCase(
        lambda session: wire.TailResultsRequest(), lambda session: wire.TailResultsRequest(outcomes=[6])
    ),
    "GetStatus": ConnectCase(lambda session: wire.GetStatusRequest(), lambda session: wire.GetStatusRequest()),
    "GetTopology": ConnectCase(lambda session: wire.GetTopologyRequest(), lambda session: wire.GetTopologyRequest()),
    "GetSourceEnds": ConnectCase(
        lambda session: source_pb2.GetSourceEndsRequest(topics=["kafka/orders"]),
        lambda session: source_pb2.GetSourceEndsRequest(topics=["elsewhere"]),
    ),
    "ListDeadLetters": ConnectCase(
        lambda session: webhook_pb2.ListDeadLettersRequest(),
        lambda session: webhook_pb2.ListDeadLettersRequest(page_token="forged"),
    ),
    "ResendDeadLetters": ConnectCase(
        lambda session: webhook_pb2.ResendDeadLettersRequest(webhook_ids=["nobody's"]),
        lambda session: webhook_pb2.ResendDeadLettersRequest(webhook_ids=["nobody's"] * 1_001),
    ),
    "DeleteDeadLetters": ConnectCase(
        lambda session: webhook_pb2.DeleteDeadLettersRequest(webhook_ids=["nobody's"]),
        lambda session: webhook_pb2.DeleteDeadLettersRequest(),
    ),
    "HandOver": ConnectCase(lambda session: wire.HandOverRequest(), lambda session: wire.HandOverRequest()),
}
"""The cases by method. `test_every_call_has_a_case` reports missing ones."""

NEVER_REFUSED = {"GetStatus", "GetTopology"}
LEFT_OUT = {("TailResults", "served"), ("HandOver", "served")}
"""Only the caller ends the first one; the second one needs a replicated log."""
GRPC = "via grpc"
GRPC_WEB = {JSON: "via web1", BINARY: "via web2"}
VIA = {JSON: "via json", BINARY: "via prot"}
"""Prefix of the session names for each protocol. All prefixes have the same length, because sizes are compared too."""
ONE_WAY = [method for method in SERVICE.methods if not method.client_streaming]
READING = [method.name for method in ONE_WAY if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS]
"""Methods that are also available with GET."""


@pytest.fixture
async def caller() -> AsyncIterator[HttpCaller]:
    """Calls a host with a mark, a source, and for each protocol a session with a result and a pending operation."""
    async with serving_http() as caller:
        served = caller.served
        await served.high_watermark("orders", 5)
        answering = asyncio.create_task(answer_ends(caller))
        await eventually(lambda: served.host.sources.attached == 1, "the source is attached")
        for session in (GRPC, *VIA.values(), *GRPC_WEB.values()):
            await served.stub.Register(
                wire.RegisterRequest(
                    session_id=f"{session} with results",
                    batch=register_batch(produce(1, "orders", 3), produce(2, "orders", 300, timeout_ms=600_000)),
                )
            )
        yield caller
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


async def answer_ends(caller: HttpCaller) -> None:
    """Run a source that knows the end of one log."""
    stream = caller.served.stub.AttachSource()
    await stream.write(
        source_pb2.AttachSourceRequest(hello=source_pb2.SourceHello(name="a", topic_prefixes=["kafka/"]))
    )
    async for message in stream:
        if message.HasField("ends_wanted"):
            ends = source_pb2.SourceEnds(ask_id=message.ends_wanted.ask_id)
            ends.ends.add(topic_partition=operation_pb2.TopicPartition(topic="kafka/orders"), offset=11)
            await stream.write(source_pb2.AttachSourceRequest(ends=ends))


async def by_grpc(caller: HttpCaller, method: str, request: Message) -> Ending:
    """Make the call over gRPC; a stream ends when its session is closed after its results have been written."""
    call = getattr(caller.served.stub, method)(request, timeout=PATIENCE_S)
    return await closing_session(caller, method, request, over_grpc(call))


async def by_connect(caller: HttpCaller, method: str, request: Message, codec: str) -> Ending:
    descriptor = SERVICE.methods_by_name[method]
    answer = GetMessageClass(descriptor.output_type)
    call = caller.streamed if descriptor.server_streaming else caller.unary
    return await closing_session(caller, method, request, call(method, request, answer, codec))


async def by_grpc_web(caller: HttpCaller, method: str, request: Message, codec: str) -> Ending:
    answer = GetMessageClass(SERVICE.methods_by_name[method].output_type)
    return await closing_session(caller, method, request, caller.grpc_web(method, request, answer, codec))


async def closing_session(caller: HttpCaller, method: str, request: Message, ending: Awaitable[Ending]) -> Ending:
    if method != "StreamResults" or len(request.session_id) > 128:  # type: ignore[attr-defined]
        return await ending
    served = asyncio.ensure_future(ending)
    session_id = request.session_id  # type: ignore[attr-defined]
    session = caller.host.sessions.get(session_id, caller.host.sessions.accounts.nobody)
    await eventually(lambda: session.stream is not None and not session.outbox.unwritten, "the results are written")
    await caller.served.stub.CloseSession(wire.CloseSessionRequest(session_id=session_id))
    return await served


def comparable(ending: Ending, session: str) -> tuple[list[str], int, str, list[bytes]]:
    """The result without times and the name of the session."""
    for answer in ending.answers:
        forget_times(answer)
    status = ending.status
    return (
        [str(answer).replace(session, "SESSION") for answer in ending.answers],
        status.code,
        status.message.replace(session, "SESSION"),
        [detail.SerializeToString().replace(session.encode(), b"SESSION") for detail in status.details],
    )


def forget_times(message: Message) -> None:
    for field, value in list(message.ListFields()):
        if field.name in DIFFER:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                forget_times(part)


def test_every_call_has_a_case() -> None:
    """A new method needs a case; bidirectional ones are refused by rule."""
    assert set(CASES) == {method.name for method in ONE_WAY}


@pytest.mark.parametrize(
    ("method", "way"), [one for one in itertools.product(CASES, ("served", "refused")) if one not in LEFT_OUT]
)
async def test_connect_and_grpc_web_answer_as_grpc_does(caller: HttpCaller, method: str, way: str) -> None:
    case: Callable[[str], Message] = getattr(CASES[method], way)
    expected = comparable(await by_grpc(caller, method, case(GRPC)), GRPC)
    assert (expected[1] != 0) == (way == "refused" and method not in NEVER_REFUSED), expected
    answer = GetMessageClass(SERVICE.methods_by_name[method].output_type)
    for codec in CODECS:
        assert comparable(await by_connect(caller, method, case(VIA[codec]), codec), VIA[codec]) == expected
        if method in READING:
            assert comparable(await caller.get(method, case(VIA[codec]), answer, codec), VIA[codec]) == expected
        session = GRPC_WEB[codec]
        assert comparable(await by_grpc_web(caller, method, case(session), codec), session) == expected


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods if method.client_streaming])
async def test_streams_in_both_directions_need_grpc(caller: HttpCaller, method: str) -> None:
    """HTTP/1.1 cannot carry them, and the error recommends gRPC."""
    descriptor = SERVICE.methods_by_name[method]
    request, answer = GetMessageClass(descriptor.input_type)(), GetMessageClass(descriptor.output_type)
    for codec in CODECS:
        for call in (caller.streamed, caller.grpc_web):
            ending = await call(method, request, answer, codec)
            assert (ending.status.code, ending.answers) == (UNIMPLEMENTED, [])
            assert "use gRPC" in ending.status.message


@pytest.mark.parametrize("kind", ["grpc-web-text", "grpc-web-text+proto", "grpc-web+xml", "grpc", "grpc+proto"])
async def test_other_forms_of_grpc_are_not_served_here(caller: HttpCaller, kind: str) -> None:
    """They get status 415: gRPC-Web in base64 is for browsers that cannot read bytes, and gRPC has its own port."""
    headers = {"content-type": f"application/{kind}"}
    url = "/purgatory.v1.PurgatoryService/GetStatus"
    async with caller.client.post(url, data=enveloped(b""), headers=headers) as response:
        assert response.status == 415


async def test_calls_that_only_read_are_those_with_get(caller: HttpCaller) -> None:
    """No change can be triggered by a URL alone."""
    assert set(READING) == {name for name in CASES if name.startswith(("Get", "List"))}
    for method in set(CASES) - set(READING):
        async with caller.client.get(f"/purgatory.v1.PurgatoryService/{method}", params={"message": "{}"}) as response:
            assert response.status == 405


@pytest.mark.parametrize("codec", CODECS)
async def test_what_is_no_message(caller: HttpCaller, codec: str) -> None:
    """Broken JSON and broken protobuf are errors of the caller, with the field `request`."""
    broken = {
        JSON: [
            b"",
            b"[]",
            b"{",
            b'"x"',
            b"\xff",
            b'{"operation": 1}',
            b"[" * 50_000,
            b'{"operation": {"timeoutMs": 1.5}}',
        ],
        BINARY: [b"\xff", b"\x0a\xff"],
    }
    for body in broken[codec]:
        ending = await caller.unary("Wait", body, wire.WaitResponse, codec)
        assert ending.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert ending.status.message.startswith("request: ")
        assert len(ending.status.details) == 1


async def test_calls_are_counted_by_status(caller: HttpCaller) -> None:
    for request in (wire.ListHotNamesRequest(), wire.ListHotNamesRequest(limit=-1)):
        await caller.unary("ListHotNames", request, wire.ListHotNamesResponse, JSON)
    ended = caller.gate.counts.of(SERVICE.methods_by_name["ListHotNames"]).ended
    assert {code: count for code, count in ended.items() if count} == {
        0: 1,
        grpc.StatusCode.INVALID_ARGUMENT.value[0]: 1,
    }
