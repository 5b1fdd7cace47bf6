"""Every call by principals with every role, on authorized and unauthorized names, as one table.

The table states the expectations independently of the daemon's rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import MethodOptions

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.service.access.roles import CALLS
from purgatory.service.host import Host
from purgatory.service.rpc.handlers import SERVICE
from purgatory.service.translate.operations import OperationRun
from purgatory.v1 import event_pb2, operation_pb2, source_pb2, webhook_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import NOBODY, ROLES, Caller, guarding
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import advance_request, high_watermark, produce, register_batch, register_request

OK = "ok"
WITHHELD = "one refused with 7"
DENIED = grpc.StatusCode.PERMISSION_DENIED.name
NOT_FOUND = grpc.StatusCode.NOT_FOUND.name
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED.name

CALLERS = (*ROLES, "root", "stranger", NOBODY)
"""One caller for each role on some names, one with all roles on all names, one with none, and one without a token."""

OTHER = "other"
"""A principal that owns sessions and operations, and is not one of the callers."""


def populate(host: Host) -> None:
    """Each principal has a session "s" with operation 1 on an authorized name, 2 on an unauthorized one, and 3, which
    has expired; `OTHER` also has a session "theirs". No other operation is pending, and two partitions are known.
    """
    accounts, names = host.sessions.accounts, [("mine-1", 0), ("yours-1", 0)]
    for principal in (*CALLERS, OTHER):
        for session_id in ("s", "theirs") if principal == OTHER else ("s",):
            session, _ = host.sessions.open(session_id, host.time.now_ms(), accounts.of(principal))
            batch = OperationBatch(
                [1, 2, 3], partitions=names, item_indexes=[0, 1, 0], offsets=[9] * 3, timeouts_ms=[600_000, 600_000, 0]
            )
            host.registration(session).register([OperationRun(codes.PRODUCE, batch)], [])


Act = Callable[[Caller], Awaitable[str]]


@dataclass(frozen=True)
class Case:
    """A call on an object. Callers with none of the roles in `door` are refused at once, those with one of the roles in
    `may` get the result, and all others get `otherwise`.
    """

    rpc: str
    on: str
    act: Act
    door: frozenset[str]
    may: frozenset[str]
    otherwise: str = DENIED

    def expected(self, caller: str) -> str:
        if caller == NOBODY:
            return UNAUTHENTICATED
        held = frozenset(ROLES) if caller == "root" else frozenset({caller})
        if not held & self.door:
            return DENIED
        return OK if caller in self.may or (caller == "root" and "root" in self.may) else self.otherwise


CASES: list[Case] = []


def case(rpc: str, on: str, door: str, may: str, otherwise: str = DENIED) -> Callable[[Act], Act]:
    """Add a case; roles and callers are given as words of a text."""

    def add(act: Act) -> Act:
        CASES.append(Case(rpc, on, act, frozenset(door.split()), frozenset(may.split()), otherwise))
        return act

    return add


def both(rpc: str, door: str, may: str, otherwise: str) -> Callable[[Callable[[Caller, str], Awaitable[str]]], None]:
    """Add two cases: on an authorized name (or prefix), and on an unauthorized one, which only root may use."""

    def add(act: Callable[[Caller, str], Awaitable[str]]) -> None:
        case(rpc, "own name", door, f"{may} root", otherwise)(lambda caller: act(caller, "mine"))
        case(rpc, "foreign name", door, "root", otherwise)(lambda caller: act(caller, "yours"))

    return add


def item(refusals: object, count: int = 1) -> str:
    """Return the outcome of the only item of a batch, or of all of its `count` items."""
    told = list(refusals)  # type: ignore[call-overload]
    if not told:
        return OK
    assert [one.code for one in told] == [codes_of_denied()] * count
    return WITHHELD


def codes_of_denied() -> int:
    return int(grpc.StatusCode.PERMISSION_DENIED.value[0])


def topic(name: str) -> operation_pb2.TopicPartition:
    return operation_pb2.TopicPartition(topic=f"{name}-1", partition=0)


def signal(operation_id: int, name: str) -> operation_pb2.Operation:
    keys = [operation_pb2.SignalKey(key=f"{name}/1")]
    return operation_pb2.Operation(operation_id=operation_id, timeout_ms=0, signal=operation_pb2.Signal(keys=keys))


def batch(name: str) -> wire.RegisterBatch:
    return register_batch(produce(100, f"{name}-1", 9, timeout_ms=0), batch_id=1)


def events(name: str) -> event_pb2.EventRows:
    return event_pb2.EventRows(events=[high_watermark(f"{name}-1", 1)])


@both("Wait", "wait", "wait", DENIED)
async def _wait(caller: Caller, name: str) -> str:
    await caller.call("Wait", wire.WaitRequest(operation=produce(0, f"{name}-1", 9, timeout_ms=0)))
    await caller.call("Wait", wire.WaitRequest(operation=signal(0, name)))
    return OK


@both("Session", "wait", "wait", WITHHELD)
async def _session(caller: Caller, name: str) -> str:
    stream = caller.stream("Session")
    await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id="s", last_sequence=1)))
    assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).opened.resumed
    await stream.write(wire.SessionRequest(register=batch(name)))
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    return item(message.receipt.refusals)


@case("Session", "foreign session", "wait", "wait root")
async def _session_foreign(caller: Caller) -> str:
    stream = caller.stream("Session")
    await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id="theirs")))
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    # A new session of its own, even if another principal has one with the same id.
    assert (message.opened.resumed, message.opened.highest_operation_id) == (False, 0)
    return OK


@both("Register", "wait", "wait", WITHHELD)
async def _register(caller: Caller, name: str) -> str:
    answer = await caller.call("Register", wire.RegisterRequest(session_id="s", batch=batch(name)))
    return item(answer.receipt.refusals)


@both("Register", "wait", "wait", WITHHELD)
async def _register_composites(caller: Caller, name: str) -> str:
    """The role is needed for each topic and each key, in both arms."""
    operations = []
    for place in range(4):
        first, second, third, fourth = (name if at == place else "mine" for at in range(4))
        composite = operation_pb2.Composite(
            terms=[mark_term(first), key_term(second)], unless=[mark_term(third), key_term(fourth)]
        )
        operations.append(operation_pb2.Operation(operation_id=100 + place, timeout_ms=0, composite=composite))
    answer = await caller.call("Register", register_request("s", *operations))
    return item(answer.receipt.refusals, 4)


def mark_term(name: str) -> operation_pb2.Term:
    return operation_pb2.Term(mark=operation_pb2.MarkTerm(topic_partition=topic(name), required_offset=9))


def key_term(name: str) -> operation_pb2.Term:
    return operation_pb2.Term(signal=operation_pb2.SignalKey(key=f"{name}/1"))


@case("StreamResults", "own session", "wait", "wait root")
async def _stream_results(caller: Caller) -> str:
    stream = caller.stream("StreamResults", wire.StreamResultsRequest(session_id="s"))
    assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).HasField("opened")
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    assert [one.operation_id for one in message.results.rows.results] == [3]
    return OK


@case("StreamResults", "foreign session", "wait", "wait root")
async def _stream_results_foreign(caller: Caller) -> str:
    stream = caller.stream("StreamResults", wire.StreamResultsRequest(session_id="theirs"))
    # Before the next call: that one must not be refused while this one still is.
    assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).HasField("opened")
    await caller.call("Register", wire.RegisterRequest(session_id="theirs", batch=batch("mine")))
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    # Not operation 3 of the other session "theirs".
    assert [one.operation_id for one in message.results.rows.results] == [100]
    return OK


@both("Advance", "advance", "advance", WITHHELD)
async def _advance(caller: Caller, name: str) -> str:
    answer = await caller.call("Advance", wire.AdvanceRequest(rows=events(name)))
    return item(answer.receipt.refusals)


@both("Advance", "advance", "advance", WITHHELD)
async def _advance_keys(caller: Caller, name: str) -> str:
    """A heartbeat, a signal with a value, and one that fails."""
    key = f"{name}/1"
    signals = (
        event_pb2.KeySignalled(key=key, count=0),
        event_pb2.KeySignalled(key=key, value=b"done"),
        event_pb2.KeySignalled(key=key, failed=True),
    )
    rows = [event_pb2.Event(key_signalled=one) for one in signals]
    answer = await caller.call("Advance", advance_request(*rows))
    return item(answer.receipt.refusals, 3)


@both("AdvanceStream", "advance", "advance", WITHHELD)
async def _advance_stream(caller: Caller, name: str) -> str:
    stream = caller.stream("AdvanceStream")
    await stream.write(wire.AdvanceStreamRequest(rows=events(name)))
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    return item(message.receipt.refusals)


@both("Cancel", "wait admin", "admin", DENIED)
async def _cancel_partition(caller: Caller, name: str) -> str:
    answer = await caller.call("Cancel", wire.CancelRequest(topic_partition=topic(name)))
    assert answer.cancelled == len(CALLERS) + 2
    await caller.call("Cancel", wire.CancelRequest(key=f"{name}/1"))
    return OK


@case("ListOperations", "everything", "wait admin", "wait admin root")
async def _list_operations(caller: Caller) -> str:
    answer = await caller.call("ListOperations", wire.ListOperationsRequest(page_size=1_000))
    found = {(one.principal, one.session_id, one.operation_id) for one in answer.operations}
    me = {principal for principal, session_id, operation_id in found if (session_id, operation_id) == ("s", 2)}
    if len(found) == 2:
        assert me == {"wait"}
    elif len(found) == len(CALLERS) + 3:
        assert me == {"admin"}
    else:
        assert len(found) == 2 * (len(CALLERS) + 2)
        assert "root" in me
    return OK


@both("GetPartition", "observe", "observe", DENIED)
async def _get_partition(caller: Caller, name: str) -> str:
    answer = await caller.call("GetPartition", wire.GetPartitionRequest(topic_partition=topic(name)))
    assert answer.partition.topic_partition == topic(name)
    return OK


@case("ListPartitions", "everything", "observe", "observe root")
async def _list_partitions(caller: Caller) -> str:
    answer = await caller.call("ListPartitions", wire.ListPartitionsRequest())
    names = [one.topic_partition.topic for one in answer.partitions]
    assert names in (["mine-1"], ["mine-1", "yours-1"])
    answer = await caller.call("ListPartitions", wire.ListPartitionsRequest(page_size=1))
    assert bool(answer.next_page_token) == (len(names) > 1), "a page of what may be seen says that there is more"
    return OK


@case("ListHotNames", "everything", "observe", "observe root")
async def _list_hot_names(caller: Caller) -> str:
    answer = await caller.call("ListHotNames", wire.ListHotNamesRequest())
    found = {one.topic_partition.topic: one.watched for one in answer.names}
    # One operation of each session waits on each.
    sessions = len(CALLERS) + 2
    assert found in ({"mine-1": sessions}, {"mine-1": sessions, "yours-1": sessions})
    return OK


@case("TailResults", "everything", "wait admin", "wait admin root")
async def _tail_results(caller: Caller) -> str:
    stream = caller.stream("TailResults", wire.TailResultsRequest())
    assert not (await asyncio.wait_for(stream.read(), PATIENCE_S)).operations
    assert caller.host is not None
    for name in ("mine-1", "yours-1"):
        await caller.host.cancel_waits((name, 0))
    told = (await asyncio.wait_for(stream.read(), PATIENCE_S)).operations
    found = {(one.principal, one.session_id, one.operation_id) for one in told}
    if len(found) == 2:
        assert {(principal, number) for principal, _, number in found} == {("wait", 1), ("wait", 2)}
    elif len(found) == len(CALLERS) + 3:
        assert {principal for principal, _, number in found if number == 2} == {"admin"}
    else:
        assert len(found) == 2 * (len(CALLERS) + 2)
    return OK


@both("AttachSource", "advance", "advance", DENIED)
async def _attach_source(caller: Caller, name: str) -> str:
    stream = caller.stream("AttachSource")
    hello = source_pb2.SourceHello(name="a source", topic_prefixes=[f"{name}-"])
    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    if message is grpc.aio.EOF:
        return str((await stream.code()).name)
    assert [one.topic for one in message.demand.gained] == [f"{name}-1"]
    return OK


@case("AttachSource", "own name and more", "advance", "root")
async def _attach_wider_source(caller: Caller) -> str:
    stream = caller.stream("AttachSource")
    hello = source_pb2.SourceHello(name="a source", topic_prefixes=["mine-1", "mine"])
    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
    if await asyncio.wait_for(stream.read(), PATIENCE_S) is grpc.aio.EOF:
        return str((await stream.code()).name)
    return OK


@both("GetSourceEnds", "wait", "wait", DENIED)
async def _source_ends(caller: Caller, name: str) -> str:
    try:
        await caller.call("GetSourceEnds", source_pb2.GetSourceEndsRequest(topics=[f"{name}-1"]))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:  # no source is attached
            raise
    return OK


@case("HandOver", "the daemon", "admin", "root")
async def _hand_over(caller: Caller) -> str:
    try:
        await caller.call("HandOver", wire.HandOverRequest())
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:  # there is no log
            raise
    return OK


def asks(
    rpc: str, on: str, door: str, may: str, request: object,
    is_right: Callable[[Any], bool] = lambda _: True, otherwise: str = DENIED,
) -> None:  # fmt: skip
    """Add a case of a unary call, whose answer must be right."""

    async def act(caller: Caller) -> str:
        answer = await caller.call(rpc, request)
        assert is_right(answer), answer
        return OK

    case(rpc, on, door, may, otherwise)(act)


EVERY_ROLE = " ".join(ROLES)
PENDING = 2 * (len(CALLERS) + 2)
"""Operations in all sessions together."""
MINUTES: dict[str, Any] = {"operation_ids": [1, 3], "timeout_ms": 600_000}
OTHERS: dict[str, Any] = {"session_id": "theirs", "principal": OTHER}
NONE_KNOWN = {"webhook_ids": ["nobody's"]}
asks("CloseSession", "own session", "wait", "wait root", wire.CloseSessionRequest(session_id="s"),
     lambda answer: (answer.cancelled, answer.results_dropped) == (2, 1))  # fmt: skip
asks("Cancel", "own operation", "wait admin", "wait admin root",
     wire.CancelRequest(session_id="s", operation_ids=[1, 3]),
     lambda answer: (answer.cancelled, list(answer.not_pending_operation_ids)) == (1, [3]))  # fmt: skip
asks("Cancel", "foreign session by principal", "wait admin", "root", wire.CancelRequest(**OTHERS),
     lambda answer: answer.cancelled == 2)  # fmt: skip
asks("Extend", "own operation", "wait admin", "wait admin root", wire.ExtendRequest(session_id="s", **MINUTES),
     lambda answer: (answer.extended, list(answer.not_pending_operation_ids)) == (1, [3]))  # fmt: skip
asks("Extend", "foreign session by principal", "wait admin", "root", wire.ExtendRequest(**OTHERS, **MINUTES),
     lambda answer: answer.extended == 1)  # fmt: skip
asks("GetOperation", "own operation", "wait admin", "wait admin root",
     wire.GetOperationRequest(session_id="s", operation_id=2),
     lambda answer: answer.operation.operation_id == 2)  # fmt: skip
asks("GetOperation", "foreign operation on an own name", "wait admin", "admin root",
     wire.GetOperationRequest(**OTHERS, operation_id=1),
     lambda answer: (answer.operation.principal, answer.operation.session_id) == (OTHER, "theirs"))  # fmt: skip
asks("GetOperation", "foreign operation on a foreign name", "admin", "root",
     wire.GetOperationRequest(**OTHERS, operation_id=2), otherwise=NOT_FOUND)  # fmt: skip
asks("Acknowledge", "own session", "wait", "wait root", wire.AcknowledgeRequest(session_id="s", sequence=1))
asks("GetStatus", "everything", EVERY_ROLE, f"{EVERY_ROLE} root", wire.GetStatusRequest(remaining_time=True),
     lambda answer: sum(kind.pending for kind in answer.kinds) == PENDING)  # fmt: skip
asks("GetTopology", "everything", EVERY_ROLE, f"{EVERY_ROLE} root", wire.GetTopologyRequest(),
     lambda answer: answer.shards == 1)  # fmt: skip
asks("ListDeadLetters", "own", "wait admin", "wait admin root", webhook_pb2.ListDeadLettersRequest(),
     lambda answer: not answer.dead_letters)  # fmt: skip
for rpc, of_nobody in (
    ("ResendDeadLetters", webhook_pb2.ResendDeadLettersRequest(**NONE_KNOWN)),
    ("DeleteDeadLetters", webhook_pb2.DeleteDeadLettersRequest(**NONE_KNOWN)),
):
    asks(rpc, "own", "wait admin", "wait admin root", of_nobody,
         lambda answer: list(answer.unknown_webhook_ids) == NONE_KNOWN["webhook_ids"])  # fmt: skip
for rpc, door, request in (
    ("Acknowledge", "wait", wire.AcknowledgeRequest(session_id="theirs", sequence=1)),
    ("CloseSession", "wait", wire.CloseSessionRequest(session_id="theirs")),
    ("Cancel", "wait admin", wire.CancelRequest(session_id="theirs")),
    ("Extend", "wait admin", wire.ExtendRequest(session_id="theirs", operation_ids=[1], timeout_ms=1)),
    ("GetOperation", "wait admin", wire.GetOperationRequest(session_id="theirs", operation_id=1)),
    ("ListOperations", "wait admin", wire.ListOperationsRequest(session_id="theirs")),
):
    asks(rpc, "foreign session", door, "", request, otherwise=NOT_FOUND)


def test_every_call_has_a_rule_and_is_in_the_table() -> None:
    methods = {method.name for method in SERVICE.methods}
    assert set(CALLS) == methods
    assert {case.rpc for case in CASES} == methods


async def outcome(case: Case, caller: Caller) -> str:
    """Return how the call ends. A write that the server's refusal overtakes is repeated.

    grpc.aio then reports INTERNAL in place of the server's status. A refused call has changed nothing.
    """
    while True:
        try:
            return await case.act(caller)
        except grpc.aio.AioRpcError as error:
            overtaken = error.code() is grpc.StatusCode.INTERNAL and error.details() == "Internal error from Core"
            if not overtaken:
                return error.code().name


def servers_of(case: Case) -> list[list[str]]:
    """The callers that share a server: all if the call only reads, otherwise all that are refused, and one more."""
    refused = [caller for caller in CALLERS if case.expected(caller) != OK]
    served = [caller for caller in CALLERS if caller not in refused]
    if SERVICE.methods_by_name[case.rpc].GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS:
        return [refused + served]
    return [refused + served[:1], *([caller] for caller in served[1:])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rpc}, {case.on}")
async def test_each_call_ends_as_the_table_states(case: Case, tmp_path: Path) -> None:
    """A refused call changes nothing."""
    for callers in servers_of(case):
        async with guarding(tmp_path, prepare=populate) as served:
            for caller in callers:
                before = sum(served.audit.refusals.values())
                async with served.caller(caller) as one, asyncio.timeout(PATIENCE_S):
                    got = await outcome(case, one)
                assert got == case.expected(caller), caller
                is_counted = sum(served.audit.refusals.values()) > before
                assert is_counted == (got in (DENIED, UNAUTHENTICATED, WITHHELD)), f"{caller}: refusals are counted"
