"""Every call by principals with every role, on authorized and unauthorized names, as one table.

The table states the expectations independently of the daemon's rules.
"""

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
from tests.kit.messages import advance_request, high_watermark, produce, register_batch, register_request, signal

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


def right(_answer: object) -> bool:
    return True


async def ask(caller: Caller, rpc: str, request: object, is_right: Callable[[Any], bool] = right, but: str = "") -> str:
    """Make a unary call. Its answer must be right, unless the call ends with the status `but`, after the check."""
    try:
        answer = await caller.call(rpc, request)
    except grpc.aio.AioRpcError as error:
        if error.code().name != but:
            raise
        return OK
    assert is_right(answer), answer
    return withheld(answer.receipt) if hasattr(answer, "receipt") else OK


def withheld(receipt: Any) -> str:  # noqa: ANN401 - of registrations or events
    """Return the outcome of all items of a batch, which is the same."""
    codes_told = {refusal.code for refusal in receipt.refusals}
    assert codes_told <= {grpc.StatusCode.PERMISSION_DENIED.value[0]}
    return WITHHELD if codes_told else OK


def topic(name: str) -> operation_pb2.TopicPartition:
    return operation_pb2.TopicPartition(topic=f"{name}-1", partition=0)


def batch(name: str) -> wire.RegisterBatch:
    return register_batch(produce(100, f"{name}-1", 9, timeout_ms=0), batch_id=1)


def events(name: str) -> event_pb2.EventRows:
    return event_pb2.EventRows(events=[high_watermark(f"{name}-1", 1)])


@both("Wait", "wait", "wait", DENIED)
async def _wait(caller: Caller, name: str) -> str:
    for operation in (produce(0, f"{name}-1", 9, timeout_ms=0), signal(0, f"{name}/1", timeout_ms=0)):
        await ask(caller, "Wait", wire.WaitRequest(operation=operation))
    return OK


async def first(stream: Any) -> Any:  # noqa: ANN401 - a call and its message
    """Return the next message of a stream. Raises AioRpcError if it was refused."""
    message = await asyncio.wait_for(stream.read(), PATIENCE_S)
    assert message is not grpc.aio.EOF
    return message


@both("Session", "wait", "wait", WITHHELD)
async def _session(caller: Caller, name: str) -> str:
    stream = caller.stream("Session")
    await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id="s", last_sequence=1)))
    assert (await first(stream)).opened.resumed
    await stream.write(wire.SessionRequest(register=batch(name)))
    return withheld((await first(stream)).receipt)


@case("Session", "foreign session", "wait", "wait root")
async def _session_foreign(caller: Caller) -> str:
    stream = caller.stream("Session")
    await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id="theirs")))
    opened = (await first(stream)).opened
    # A new session of its own, even if another principal has one with the same id.
    assert (opened.resumed, opened.highest_operation_id) == (False, 0)
    return OK


@both("Register", "wait", "wait", WITHHELD)
async def _register(caller: Caller, name: str) -> str:
    return await ask(caller, "Register", wire.RegisterRequest(session_id="s", batch=batch(name)))


@both("Register", "wait", "wait", WITHHELD)
async def _register_composites(caller: Caller, name: str) -> str:
    """The role is needed for each topic and each key, in both arms."""
    operations = []
    for place in range(4):
        names = [name if at == place else "mine" for at in range(4)]
        terms = [
            operation_pb2.Term(mark=operation_pb2.MarkTerm(topic_partition=topic(one), required_offset=9))
            if at % 2 == 0
            else operation_pb2.Term(signal=operation_pb2.SignalKey(key=f"{one}/1"))
            for at, one in enumerate(names)
        ]
        composite = operation_pb2.Composite(terms=terms[:2], unless=terms[2:])
        operations.append(operation_pb2.Operation(operation_id=100 + place, timeout_ms=0, composite=composite))
    return await ask(
        caller, "Register", register_request("s", *operations), lambda answer: len(answer.receipt.refusals) in (0, 4)
    )


@case("StreamResults", "own session", "wait", "wait root")
async def _stream_results(caller: Caller) -> str:
    stream = caller.stream("StreamResults", wire.StreamResultsRequest(session_id="s"))
    assert (await first(stream)).HasField("opened")
    assert [one.operation_id for one in (await first(stream)).results.rows.results] == [3]
    return OK


@case("StreamResults", "foreign session", "wait", "wait root")
async def _stream_results_foreign(caller: Caller) -> str:
    stream = caller.stream("StreamResults", wire.StreamResultsRequest(session_id="theirs"))
    # Before the next call: that one must not be refused while this one still is.
    assert (await first(stream)).HasField("opened")
    await caller.call("Register", wire.RegisterRequest(session_id="theirs", batch=batch("mine")))
    # Not operation 3 of the other session "theirs".
    assert [one.operation_id for one in (await first(stream)).results.rows.results] == [100]
    return OK


@both("Advance", "advance", "advance", WITHHELD)
async def _advance(caller: Caller, name: str) -> str:
    return await ask(caller, "Advance", wire.AdvanceRequest(rows=events(name)))


@both("Advance", "advance", "advance", WITHHELD)
async def _advance_keys(caller: Caller, name: str) -> str:
    """A heartbeat, a signal with a value, and one that fails."""
    options: list[dict[str, Any]] = [{"count": 0}, {"value": b"done"}, {"failed": True}]
    signals = [event_pb2.KeySignalled(key=f"{name}/1", **one) for one in options]
    request = advance_request(*(event_pb2.Event(key_signalled=one) for one in signals))
    return await ask(caller, "Advance", request, lambda answer: len(answer.receipt.refusals) in (0, 3))


@both("AdvanceStream", "advance", "advance", WITHHELD)
async def _advance_stream(caller: Caller, name: str) -> str:
    stream = caller.stream("AdvanceStream")
    await stream.write(wire.AdvanceStreamRequest(rows=events(name)))
    return withheld((await first(stream)).receipt)


@both("Cancel", "wait admin", "admin", DENIED)
async def _cancel_partition(caller: Caller, name: str) -> str:
    request = wire.CancelRequest(topic_partition=topic(name))
    await ask(caller, "Cancel", request, lambda answer: answer.cancelled == len(CALLERS) + 2)
    return await ask(caller, "Cancel", wire.CancelRequest(key=f"{name}/1"))


def check_seen(operations: Any) -> None:  # noqa: ANN401 - the operations of a listing, or of a tail
    """A caller sees its own operations; an administrator also those on its names, and root all."""
    found = {(one.principal, one.session_id, one.operation_id) for one in operations}
    on_foreign_names = {principal for principal, session_id, number in found if (session_id, number) == ("s", 2)}
    if len(found) == 2:
        assert on_foreign_names == {"wait"}
    elif len(found) == len(CALLERS) + 3:
        assert on_foreign_names == {"admin"}
    else:
        assert len(found) == PENDING
        assert "root" in on_foreign_names


@case("ListOperations", "everything", "wait admin", "wait admin root")
async def _list_operations(caller: Caller) -> str:
    check_seen((await caller.call("ListOperations", wire.ListOperationsRequest(page_size=1_000))).operations)
    return OK


@case("TailResults", "everything", "wait admin", "wait admin root")
async def _tail_results(caller: Caller) -> str:
    stream = caller.stream("TailResults", wire.TailResultsRequest())
    assert not (await first(stream)).operations
    assert caller.host is not None
    for name in ("mine-1", "yours-1"):
        await caller.host.cancel_waits((name, 0))
    check_seen((await first(stream)).operations)
    return OK


@both("GetPartition", "observe", "observe", DENIED)
async def _get_partition(caller: Caller, name: str) -> str:
    request = wire.GetPartitionRequest(topic_partition=topic(name))
    return await ask(caller, "GetPartition", request, lambda answer: answer.partition.topic_partition == topic(name))


@case("ListPartitions", "everything", "observe", "observe root")
async def _list_partitions(caller: Caller) -> str:
    answer = await caller.call("ListPartitions", wire.ListPartitionsRequest())
    names = [one.topic_partition.topic for one in answer.partitions]
    assert names in (["mine-1"], ["mine-1", "yours-1"])
    answer = await caller.call("ListPartitions", wire.ListPartitionsRequest(page_size=1))
    assert bool(answer.next_page_token) == (len(names) > 1), "a page of what may be seen says that there is more"
    return OK


async def attach(caller: Caller, *prefixes: str) -> list[str]:
    """Attach a source, and return the topics for which there is demand."""
    stream = caller.stream("AttachSource")
    hello = source_pb2.SourceHello(name="a source", topic_prefixes=prefixes)
    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
    return [one.topic for one in (await first(stream)).demand.gained]


@both("AttachSource", "advance", "advance", DENIED)
async def _attach_source(caller: Caller, name: str) -> str:
    assert await attach(caller, f"{name}-") == [f"{name}-1"]
    return OK


@case("AttachSource", "own name and more", "advance", "root")
async def _attach_wider_source(caller: Caller) -> str:
    await attach(caller, "mine-1", "mine")
    return OK


@both("GetSourceEnds", "wait", "wait", DENIED)
async def _source_ends(caller: Caller, name: str) -> str:
    request = source_pb2.GetSourceEndsRequest(topics=[f"{name}-1"])
    return await ask(caller, "GetSourceEnds", request, but="UNAVAILABLE")  # no source is attached


def asks(
    rpc: str, on: str, door: str, may: str, request: object, is_right: Callable[[Any], bool] = right,
    otherwise: str = DENIED, but: str = "",
) -> None:  # fmt: skip
    """Add a case of a unary call, see `ask`."""
    case(rpc, on, door, may, otherwise)(lambda caller: ask(caller, rpc, request, is_right, but))


EVERY_ROLE = " ".join(ROLES)
PENDING = 2 * (len(CALLERS) + 2)
"""Operations in all sessions together."""
HOT = [("mine-1", len(CALLERS) + 2), ("yours-1", len(CALLERS) + 2)]
"""One operation of each session waits on each."""
MINUTES: dict[str, Any] = {"operation_ids": [1, 3], "timeout_ms": 600_000}
OTHERS: dict[str, Any] = {"session_id": "theirs", "principal": OTHER}
NONE_KNOWN = {"webhook_ids": ["nobody's"]}
asks("HandOver", "the daemon", "admin", "root", wire.HandOverRequest(), but="FAILED_PRECONDITION")  # there is no log
asks("ListHotNames", "everything", "observe", "observe root", wire.ListHotNamesRequest(),
     lambda answer: sorted((one.topic_partition.topic, one.watched) for one in answer.names) in (HOT[:1], HOT)
)  # fmt: skip
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
