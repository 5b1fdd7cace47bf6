"""Each integer of each request at the ends of its own range and of its type: the answer to its caller, and the effect
on another principal's waits.

Requests are built from their descriptors. A new field fails `test_each_number_has_a_range` until `RANGES` has it.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import grpc
import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.json_format import MessageToJson, ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.engine.codes import HIGH_WATERMARK, KEY_SIGNALLED, LAST_STABLE_OFFSET, PRODUCE
from purgatory.engine.kinds.operation_columns import OPERATION_COLUMNS
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.extensions.archive import schema
from purgatory.service.access.tokens import add_token
from purgatory.service.rpc.handlers import SERVICE
from purgatory.service.translate.events import ROW_ONLY_TYPES
from purgatory.v1 import event_pb2, operation_pb2, result_pb2, source_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.random_messages import INTEGER_RANGES, in_real_oneof
from tests.access.guarded import Caller
from tests.archive.archive_kit import rows_of
from tests.kit.daemon import DaemonThread, access_flags
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import advance_request, high_watermark, produce, register_batch, signal
from tests.kit.programs import journal_command as check_journal
from tests.kit.recorded import cases_of

LARGEST: Final = 2**61 - 1
ABSENT: Final = -1
ANY: Final = None
"""The range of a number that needs none."""


def read_ranges() -> Iterator[tuple[str, tuple[int, int] | None]]:
    for line in cases_of(Path(__file__).with_name("ranges.txt")):
        name, *ends = line.split()
        yield name, ANY if ends == ["any"] else (int(ends[0]), int(ends[1]))


RANGES: Final = dict(read_ranges())
"""As in ranges.txt."""
COLUMNS: Final = {
    ("OperationColumns", kind, one.wire_name): (min(one.lowest, one.default), one.highest)
    for one in OPERATION_COLUMNS
    for kind in one.kinds
    if one.name not in {"required_terms", "unless_count"}
} | {("EventColumns", kind, "offset"): (-1, LARGEST) for kind in (LAST_STABLE_OFFSET, KEY_SIGNALLED)}
"""Ranges by kind of operation, or type of event."""

BESIDES: Final = {
    "timeout_ms": 0, "operation_id": 1, "operation_ids": 1, "replica_id": 7, "leader_id": 1, "leader_epoch": 3,
    "log_end_offset": LARGEST, "state": int(source_pb2.SOURCE_STATE_STALE), "topic_prefixes": "a/",
    "topic_prefix": "a/k", "topics": "a/topic",
}  # fmt: skip
"""Fields that a request needs besides the one in question."""
NEEDLESS: Final = {"Fetch", "ProducePartition", "PartitionEnd", "ListPartitionsRequest"}
"""Messages that need none."""
SPARSE: Final = {"CancelRequest", "ListOperationsRequest"}
"""Messages whose fields exclude each other."""

Fields = tuple[Any, ...]
"""Descriptors of fields, which have no common type with the stubs' own."""
serial: Final = itertools.count(1)


class Number(NamedTuple):
    """A value for one integer of a request, at the end of `path`. `kind` is that of columns; 0: there are none."""

    method: MethodDescriptor
    path: Fields
    kind: int
    value: int

    @property
    def allowed(self) -> tuple[int, int] | None:
        name, holder = self.path[-1].name, self.path[-1].containing_type.name
        if self.method.name == "Wait" and name == "operation_id":
            return ANY
        of_message = f"{holder}.{name}"
        return COLUMNS.get((holder, self.kind, name)) or RANGES[of_message if of_message in RANGES else name]

    def request(self) -> Any:  # noqa: ANN401 - a message of the method's own type
        message = GetMessageClass(self.method.input_type)()
        fresh = f"{next(serial)}"
        name = f"a/{fresh}" if self.method.name.startswith("Advance") else "a/known"
        besides = {**BESIDES, "session_id": fresh, "kind": self.kind or PRODUCE, "type": self.kind or HIGH_WATERMARK}
        self._fill(message, self.path, besides | dict.fromkeys(("topic", "key", "keys", "name"), name))
        return message

    def _fill(self, message: Message, path: Fields, besides: dict[str, Any]) -> None:
        holder = message.DESCRIPTOR.name
        if holder == "EventColumns":
            besides = besides | {"offset": LARGEST}
        fields: Fields = tuple(message.DESCRIPTOR.fields)
        for field in fields:
            is_ours = bool(path) and field.number == path[0].number
            inner: Any = getattr(message, field.name)
            if not is_ours and (holder in SPARSE or (in_real_oneof(field) and not _is_chosen(field, path))):
                continue
            if field.message_type is not None:
                if is_ours or field.name not in {"unless", "stale", "decision"}:
                    inner = inner.add() if field.is_repeated else inner
                    inner.SetInParent()
                    self._fill(inner, path[1:] if is_ours else (), besides)
            elif is_ours or (field.name in besides and holder not in NEEDLESS):
                value = self.value if is_ours else besides[field.name]
                inner.append(value) if field.is_repeated else setattr(message, field.name, value)


def _is_chosen(field: Any, path: Fields) -> bool:  # noqa: ANN401 - as above
    """Whether it is the alternative of its oneof that the path has; otherwise the first one."""
    numbers = [one.number for one in field.containing_oneof.fields]
    return bool(field.number == (path[0].number if path and path[0].number in numbers else numbers[0]))


def paths_of(message: Descriptor, path: Fields = ()) -> Iterator[Fields]:
    for field in message.fields:
        if field.message_type is not None:
            yield from paths_of(field.message_type, (*path, field))
        elif field.cpp_type in INTEGER_RANGES:
            yield (*path, field)


def numbers_of(method: MethodDescriptor) -> Iterator[Number]:
    """All numbers to try: one below the range, its ends, one above, and the ends of the type."""
    for path in paths_of(method.input_type):
        field, kinds = path[-1], [0]
        if field.containing_type.name == "OperationColumns":
            kinds = [kind for one in OPERATION_COLUMNS if one.wire_name == field.name for kind in one.kinds]
            kinds = kinds or [PRODUCE]
        elif field.containing_type.name == "EventColumns":
            kinds = [kind for one in EVENT_COLUMNS if one.name == field.name for kind in one.row_names]
            kinds = [kind for kind in kinds if kind not in ROW_ONLY_TYPES] or [HIGH_WATERMARK]
        ends = INTEGER_RANGES[field.cpp_type]
        for kind in kinds:
            low, high = Number(method, path, kind, 0).allowed or ends
            for value in sorted({ends[0], low - 1, low, high, high + 1, ends[1]}):
                if ends[0] <= value <= ends[1]:
                    yield Number(method, path, kind, value)


def code_of(answer: Any) -> tuple[str, str]:  # noqa: ANN401 - an answer of any method
    """The name of the code of the first refusal in an answer, with its field and message; OK if there is none."""
    receipt = getattr(answer, "receipt", None)
    refusals = [] if receipt is None else [*receipt.refusals, getattr(receipt, "batch_refusal", None)]
    for refusal in refusals:
        if refusal is not None and refusal.code:
            name = next(one.name for one in grpc.StatusCode if one.value[0] == refusal.code)
            return name, f"{refusal.field}: {refusal.message}"
    return "OK", ""


async def send(caller: Caller, number: Number) -> tuple[str, str]:
    """Make a call with the number. Return the code of its status, or of the refusal in its answer, and the message."""
    method, request = number.method, number.request()
    try:
        async with asyncio.timeout(PATIENCE_S):
            if method.client_streaming:
                stream = caller.stream(method.name)
                if method.name == "Session" and not request.HasField("open"):
                    await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id=f"{next(serial)}")))
                if method.name == "AttachSource":
                    hello = source_pb2.SourceHello(name="played", topic_prefixes=["a/"])
                    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
                await stream.write(request)
                await stream.done_writing()
                # Not read to its end: an operation of the session may be pending.
                codes = [code_of(answer) async for answer in _until_answered(stream)]
                return next((code for code in codes if code[0] != "OK"), codes[-1])
            if method.server_streaming:
                stream = caller.stream(method.name, request)
                first = code_of(await stream.read())
                stream.cancel()
                return first
            return code_of(await caller.call(method.name, request))
    except grpc.aio.AioRpcError as error:
        return error.code().name, str(error.details())


async def _until_answered(stream: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - a call of any method
    while (answer := await stream.read()) is not grpc.aio.EOF:
        yield answer
        if isinstance(answer, wire.SessionResponse) and answer.WhichOneof("message") in {"receipt", "cancelled"}:
            stream.cancel()
            return


class Shared(NamedTuple):
    """A daemon, and the authorization of a principal that sends the numbers, and of the other one."""

    daemon: DaemonThread
    sender: str
    other: str


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder, roles = tmp_path_factory.mktemp("numbers"), 'roles = ["wait", "advance", "observe", "admin"]'
    policy = f"""
        [[grant]]\nto = ["sender"]\n{roles}\ntopics = ["a/*"]\nkeys = ["a/*"]
        [[grant]]\nto = ["other"]\n{roles}\ntopics = ["*"]\nkeys = ["*"]"""
    flags = [*access_flags(folder, policy), "--data-dir", str(folder), "--journal-mode", "async"]
    tokens = [f"Bearer {add_token(folder / 'tokens', principal)}" for principal in ("sender", "other")]
    daemon = DaemonThread(*flags, "--archive", str(folder / "archive"))
    yield Shared(daemon, *tokens)
    daemon.stop()
    # Everything was stored, also what was refused.
    assert {row["marker"] for row in rows_of(folder / "archive", schema.MARKERS)} == {schema.STARTED, schema.ENDED}
    assert check_journal(["check", str(folder)]) == 0


def test_each_number_has_a_range() -> None:
    leaves = [path[-1] for method in SERVICE.methods for path in paths_of(method.input_type)]
    found = {name for leaf in leaves for name in (leaf.name, f"{leaf.containing_type.name}.{leaf.name}")}
    assert RANGES.keys() <= found
    for leaf in leaves:
        assert {leaf.name, f"{leaf.containing_type.name}.{leaf.name}"} & RANGES.keys(), leaf.full_name


METHODS: Final = {one.name: one for one in SERVICE.methods if list(paths_of(one.input_type))}


@pytest.mark.slow  # hundreds of calls
@pytest.mark.parametrize("method", METHODS)
async def test_numbers_of_a_call(method: str, shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    """Over gRPC and over HTTP with the same code. Another principal's waits end as they should."""
    sent = {"authorization": shared.sender, "content-type": "application/json"}
    async with (
        Caller(shared.daemon.address, shared.sender) as sender,
        Caller(shared.daemon.address, shared.other) as other,
        aiohttp.ClientSession(f"http://{shared.daemon.http_address}") as client,
    ):
        await sender.call("Advance", advance_request(high_watermark("a/known", 1)))
        name, is_stream = f"b/{method}", METHODS[method].client_streaming or METHODS[method].server_streaming
        await register(other, name, produce(1, name, 5, 600_000), signal(2, name, 600_000))
        for number in numbers_of(METHODS[method]):
            code, message = await send(sender, number)
            what = f"{[one.name for one in number.path]} of kind {number.kind} is {number.value}: {code} {message}"
            if number.allowed is ANY:
                assert code in {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE"}, what
            elif number.allowed[0] <= number.value <= number.allowed[1]:
                assert code in {"OK", "NOT_FOUND"}, what
            else:
                assert code == "INVALID_ARGUMENT", what
                assert f"{number.value}" in message or number.value == ABSENT, what
            if number.value in INTEGER_RANGES[number.path[-1].cpp_type] and not is_stream:
                body = MessageToJson(number.request())
                async with client.post(f"/{SERVICE.full_name}/{method}", data=body, headers=sent) as response:
                    answer = await response.json()
                if "code" not in answer:
                    answer_type = GetMessageClass(number.method.output_type)
                    answer["code"] = code_of(ParseDict(answer, answer_type()))[0].lower()
                assert answer["code"].upper() == code, f"{what}, and over HTTP {answer}"
        await check_the_other(sender, other, client, {"authorization": shared.other}, name)
    logged = [one for one in caplog.get_records("call") if one.levelno >= logging.ERROR]
    # gRPC wakes the event loops of earlier tests too, and logs that they are closed.
    assert [one for one in logged if "PollerCompletionQueue" not in one.getMessage()] == []


async def register(caller: Caller, session_id: str, *operations: operation_pb2.Operation) -> None:
    rows = register_batch(*operations)
    answer = await caller.call("Register", wire.RegisterRequest(session_id=session_id, batch=rows))
    assert answer.receipt.accepted == len(operations), answer


async def check_the_other(
    sender: Caller, other: Caller, client: aiohttp.ClientSession, sent: dict[str, str], name: str
) -> None:
    """Waits of both principals expire together while both tail results; two registered earlier are satisfied."""
    async with asyncio.timeout(PATIENCE_S):
        tails = [one.stream("TailResults", wire.TailResultsRequest()) for one in (sender, other)]
        for tail in tails:
            await tail.read()
        await register(sender, name, produce(1, "a/known", LARGEST, 1))
        await register(other, name, produce(3, name, 9, 1), produce(4, "a/known", LARGEST, 1))
        happened = event_pb2.KeySignalled(key=name)
        await other.call("Advance", advance_request(high_watermark(name, 5), event_pb2.Event(key_signalled=happened)))
        outcomes: dict[int, int] = {}
        async for answer in other.stream("StreamResults", wire.StreamResultsRequest(session_id=name)):
            outcomes |= {one.operation_id: one.outcome for one in answer.results.rows.results}
            if len(outcomes) == 4:
                break
        satisfied, expired = result_pb2.OUTCOME_SATISFIED, result_pb2.OUTCOME_EXPIRED
        assert outcomes == {1: satisfied, 2: satisfied, 3: expired, 4: expired}
        for tail in tails:
            while name not in {one.session_id for one in (await tail.read()).operations}:
                pass
            tail.cancel()
        await other.call("GetStatus", wire.GetStatusRequest(remaining_time=True))
        names = wire.ListPartitionsRequest(topic_prefix="a/", page_size=1_000)
        assert (await other.call("ListPartitions", names)).partitions
        async with client.get("/v1/watch", params={"topic_prefix": "a/"}, headers=sent) as watch:
            assert await watch.content.readline() == b"event: partitions\n"
        async with client.get("/metrics", headers=sent) as page:
            assert page.status == 200
