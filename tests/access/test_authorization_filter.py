"""Exactly the unauthorized operations and events of a batch are refused, and the audit log says which."""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purgatory.clock import SystemClock
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.access.account import Account, Accounts
from purgatory.service.access.audit import AUDIT, LINES_AT_ONCE_MAX, NAME, PRINCIPALS_KEPT, UNAUTHENTICATED, Audit
from purgatory.service.access.authorization_filter import filter_events
from purgatory.service.access.roles import PERMISSION_DENIED, Grants, Names
from purgatory.service.errors import BatchRejected
from purgatory.service.host import Host
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import NOBODY, Caller, guarding
from tests.kit.eventually import eventually
from tests.kit.messages import advance_request, high_watermark, produce, register_request
from tests.kit.served_host import refused

NAMES = ("mine-1", "yours-1", "mine-2", "yours-2")
MINE = Names(["mine-*"])
GRANTS = Grants(dict.fromkeys(("wait", "advance"), MINE), dict.fromkeys(("wait", "advance"), MINE))


def new_session(grants: Grants) -> tuple[Host, Any]:
    clock = SystemClock()
    host = Host(Engine(EngineLimits(), clock.now_ms()), clock, HostSettings())
    account = host.sessions.accounts.of("ann")
    account.grants = grants
    return host, host.sessions.open("s", 0, account)[0]


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """A kind, and the columns of a batch: full, one value for all, or left out; sometimes with a wrong length."""
    kind = draw(st.sampled_from([codes.PRODUCE, codes.SIGNAL, codes.COMPOSITE]))
    dictionary = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
    rows = draw(st.integers(1, 5))
    counts = draw(st.sampled_from([[], [1], [2]]) | st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    full = [counts[0]] * rows if len(counts) == 1 else counts or [1] * rows
    items = max(0, sum(full) + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    place = st.integers(0, len(dictionary))  # the last is out of range
    places = draw(
        st.just([]) | st.lists(place, min_size=1, max_size=1) | st.lists(place, min_size=items, max_size=items)
    )
    first_key = {
        codes.PRODUCE: len(dictionary),
        codes.SIGNAL: 0,
        codes.COMPOSITE: draw(st.integers(0, len(dictionary))),
    }[kind]
    names = {"partitions": [(name, 0) for name in dictionary[:first_key]], "keys": dictionary[first_key:]}
    return kind, {
        "operation_ids": list(range(1, rows + 1)), "item_counts": counts, "item_indexes": places, "offsets": [9],
        "timeouts_ms": [600_000], **names,
    }  # fmt: skip


def names_of(columns: dict[str, Any]) -> list[list[str]]:
    """Return the names of each operation, computed as simply as possible. Only for batches with consistent columns."""
    rows, places, counts = len(columns["operation_ids"]), columns["item_indexes"], columns["item_counts"]
    dictionary = [*(name for name, _ in columns["partitions"]), *columns["keys"]]
    full = counts * rows if len(counts) == 1 else counts or [1] * rows
    flat = (places * sum(full) if len(places) == 1 else places) or [0] * sum(full)
    starts = [sum(full[:row]) for row in range(rows)]
    return [
        [dictionary[place] if place < len(dictionary) else "" for place in flat[start : start + count]]
        for start, count in zip(starts, full, strict=True)
    ]


def copied(columns: dict[str, Any]) -> OperationBatch:
    return OperationBatch(**{name: list(column) for name, column in columns.items()})


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(batches())
def test_operations_against_an_oracle(drawn: tuple[int, dict[str, Any]]) -> None:
    """Each unauthorized operation is refused with code 7; all others end as on a daemon without a policy."""
    kind, columns = drawn
    host, session = new_session(GRANTS)
    free, free_session = new_session(Grants(*[dict.fromkeys(("wait",), Names(["*"]))] * 2))  # type: ignore[arg-type]
    try:
        expected = free.registration(free_session).register([OperationRun(kind, copied(columns))], [])
    except BatchRejected:
        with pytest.raises(BatchRejected):
            host.registration(session).register([OperationRun(kind, copied(columns))], [])
        assert host.engine.pending == 0
        return
    got = host.registration(session).register([OperationRun(kind, copied(columns))], [])
    foreign = [next((name for name in names if name and name not in MINE), "") for names in names_of(columns)]
    forbidden = {row: f"'{name}'" for row, name in enumerate(foreign) if name}
    denied = {refusal.index: refusal.message for refusal, _ in got.refused if refusal.code == PERMISSION_DENIED}
    assert {row: message.rpartition(" ")[2] for row, message in denied.items()} == forbidden
    others = {refusal.index: refusal.message for refusal, _ in expected.refused if refusal.index not in forbidden}
    mine = {refusal.index: refusal.message for refusal, _ in got.refused if refusal.code != PERMISSION_DENIED}
    assert mine == others
    assert got.accepted == host.engine.pending == len(columns["operation_ids"]) - len(forbidden) - len(others)
    assert got.highest_operation_id == len(columns["operation_ids"])
    assert session.outbox.unacknowledged == len(forbidden) + len(others), "each has a result"


@given(
    types=st.lists(st.sampled_from([*codes.EVENT_NAMES, 0, 99]), min_size=1, max_size=6),
    places=st.lists(st.integers(0, 4), min_size=0, max_size=6),
    keys=st.lists(st.sampled_from(NAMES), max_size=4),
    topics=st.lists(st.sampled_from(NAMES), max_size=4),
)
def test_events_against_an_oracle(types: list[int], places: list[int], keys: list[str], topics: list[str]) -> None:
    """No event on an unauthorized name is left, unless the columns are inconsistent: then the batch is refused."""
    account = Account("ann", Accounts(), GRANTS)
    batch = EventBatch(
        list(types), partitions=[(name, 0) for name in topics], keys=list(keys), item_indexes=list(places), offsets=[1]
    )
    reasons = filter_events(account, batch)
    engine = Engine(EngineLimits(), 0)
    if len(places) not in (0, 1, len(types)):
        assert reasons == {}
        with pytest.raises(Exception, match="item_index"):
            engine.perform(None, Apply(batch), 0, 100)
        return
    full = places * len(types) if len(places) == 1 else places or [0] * len(types)
    for row, (event_type, place) in enumerate(zip(types, full, strict=True)):
        dictionary = keys if event_type == codes.KEY_SIGNALLED else topics
        forbidden = event_type != 0 and place < len(dictionary) and dictionary[place] not in MINE
        assert (row in reasons) == forbidden
        assert (batch.types[row] == 0) == (forbidden or event_type == 0)


async def test_refusal_states_the_missing_role_and_the_name_only(tmp_path: Path) -> None:
    async with guarding(tmp_path) as served, served.caller("wait") as caller:
        for rpc, request in {
            "Wait": wire.WaitRequest(operation=produce(0, "yours-1", 9)),
            "Cancel": wire.CancelRequest(topic_partition=operation_pb2.TopicPartition(topic="yours-1")),
        }.items():
            with refused(grpc.StatusCode.PERMISSION_DENIED) as error:
                await caller.call(rpc, request)
            info = error_details_pb2.ErrorInfo()
            status = rpc_status.from_call(error.value)
            assert status.details[0].Unpack(info)
            role = {"Wait": "wait", "Cancel": "admin"}[rpc]
            assert (info.reason, info.domain) == ("ROLE_MISSING", "purgatory")
            assert dict(info.metadata) == {"role": role, "name": "topic 'yours-1'"}
            assert error.value.details() == f"needs the role {role} for topic 'yours-1'"


def named(topic: str) -> dict[str, operation_pb2.TopicPartition]:
    return {"topic_partition": operation_pb2.TopicPartition(topic=topic)}


HIDDEN: list[tuple[str, str, type[Any], tuple[str, str], Callable[[str], dict[str, Any]]]] = [
    ("observe", "GetPartition", wire.GetPartitionRequest, ("yours-1", "other-1"), named),
    ("observe", "ListPartitions", wire.ListPartitionsRequest, ("yours", "other"), lambda name: {"topic_prefix": name}),
    ("admin", "Cancel", wire.CancelRequest, ("yours-1", "other-1"), named),
    ("admin", "Cancel", wire.CancelRequest, ("root", "nope"), lambda name: {"session_id": "there", "principal": name}),
    ("admin", "GetOperation", wire.GetOperationRequest, ("there", "gone0"),
     lambda name: {"session_id": name, "operation_id": 1, "principal": "root"}),
    ("admin", "ListOperations", wire.ListOperationsRequest, ("there", "gone0"),
     lambda name: {"session_id": name, "principal": "root", "key": "mine/1"}),
]  # fmt: skip
"""A principal and its call, the names of something that exists and something that does not, and the request for one."""


@pytest.mark.parametrize(("principal", "rpc", "request_type", "names", "about"), HIDDEN)
async def test_answers_about_hidden_and_absent_differ_in_the_name_only(
    tmp_path: Path, principal: str, rpc: str, request_type: type[Any], names: tuple[str, str],
    about: Callable[[str], dict[str, Any]],
) -> None:  # fmt: skip
    async with guarding(tmp_path) as served, served.caller("root") as root, served.caller(principal) as caller:
        await root.call("Register", register_request("there", produce(1, "yours-1", 9), produce(2, "mine-1", 9)))
        answers = []
        for name in names:
            try:
                answers.append(str(await caller.call(rpc, request_type(**about(name)))))
            except grpc.aio.AioRpcError as error:
                answers.append(f"{error.code()} {error.details()} {error.trailing_metadata()}")
        assert answers[0].replace(*names) == answers[1]


async def test_calls_of_wait_are_listed_for_their_callers(tmp_path: Path) -> None:
    """For an administrator also those on its names, with their principals."""
    async with (
        guarding(tmp_path) as served,
        served.caller("wait") as waiter, served.caller("admin") as admin, served.caller("root") as root,
    ):  # fmt: skip
        calls = [
            asyncio.ensure_future(caller.call("Wait", wire.WaitRequest(operation=produce(0, topic, 9))))
            for caller, topic in ((waiter, "mine-1"), (root, "mine-2"), (root, "yours-1"))
        ]
        await eventually(lambda: served.host.engine.pending >= len(calls))

        async def listed(caller: Caller) -> list[tuple[str, str]]:
            answer = await caller.call("ListOperations", wire.ListOperationsRequest())
            return [(one.principal, one.partitions[0].topic_partition.topic) for one in answer.operations]

        assert await listed(waiter) == [("wait", "mine-1")]
        assert sorted(await listed(admin)) == [("root", "mine-2"), ("wait", "mine-1")]
        assert sorted(await listed(root)) == [("root", "mine-2"), ("root", "yours-1"), ("wait", "mine-1")]
        for topic in ("mine-1", "mine-2", "yours-1"):
            await root.call("Advance", advance_request(high_watermark(topic, 9)))
        await asyncio.gather(*calls)
        assert await listed(root) == []
        assert served.host.unary_waits.account_of(1) is None


Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return the parsed lines of the audit log."""
    caplog.set_level(logging.INFO, AUDIT.name)
    return lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == AUDIT.name]


def about(line: dict[str, Any], keys: str) -> list[Any]:
    return [line.get(key) for key in keys.split()]


async def test_audit_line_says_who_what_and_why(tmp_path: Path, lines: Lines) -> None:
    """The refused events of a batch are one line; names cannot write escape sequences."""
    async with (
        guarding(tmp_path) as served, served.caller("advance") as pusher, served.caller("admin") as admin,
        served.caller(NOBODY) as nobody,
    ):  # fmt: skip
        before = len(lines())
        events = [high_watermark("\x1b[31myours", 1), high_watermark("mine-1", 1), high_watermark("yours-2", 1)]
        await pusher.call("Advance", advance_request(*events))
        await admin.call("Cancel", wire.CancelRequest(key="mine/1"))
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            await nobody.call("Acknowledge", wire.AcknowledgeRequest())
        told, acted, unknown = lines()[before:]
        assert about(told, "audit reason principal role count call") == [
            "refused", NAME, "advance", "advance", 2, "Advance",
        ]  # fmt: skip
        assert "[31myours" in told["name"]
        assert "\x1b" not in told["name"]
        assert told["peer"].startswith("ipv4:127.0.0.1:")
        assert about(acted, "audit principal call") == ["cancelled", "admin", "Cancel"]
        assert about(unknown, "reason call principal") == [UNAUTHENTICATED, "Acknowledge", None]
        assert "peer" in unknown
        assert served.audit.refusals[NAME] == 2


@pytest.mark.parametrize("call", ["Cancel", "Extend"])
async def test_act_on_a_session_of_others_has_a_line_with_its_owner(tmp_path: Path, lines: Lines, call: str) -> None:
    """The owner's own act has none."""
    request: Any = wire.CancelRequest if call == "Cancel" else partial(wire.ExtendRequest, timeout_ms=60_000)
    async with guarding(tmp_path) as served, served.caller("root") as root, served.caller("wait") as owner:
        await owner.call("Register", register_request("s", produce(1, "mine-1", 9, timeout_ms=600_000)))
        before = len(lines())
        await root.call(call, request(session_id="s", principal="wait", operation_ids=[1]))
        await owner.call(call, request(session_id="s", operation_ids=[1]))
        [acted] = lines()[before:]
        act = "cancelled" if call == "Cancel" else "extended"
        assert about(acted, "audit principal name call") == [act, "root", "sessions of 'wait'", call]


def test_audit_lines_of_a_flood_are_left_out_and_counted(lines: Lines) -> None:
    """Each principal has a burst and then a few lines per second; the next line has the number of lines left out."""
    now_s = 0.0
    audit = Audit(lambda: now_s)
    for _ in range(1_000):
        audit.refused(NAME, "loud", role="wait", name="x")
    audit.refused(NAME, "quiet", role="wait", name="x")
    assert [line["principal"] for line in lines()] == ["loud"] * int(LINES_AT_ONCE_MAX) + ["quiet"]
    now_s = 60.0
    audit.refused(NAME, "loud", role="wait", name="x")
    assert lines()[-1]["left_out"] == 1_000 - LINES_AT_ONCE_MAX
    assert audit.refusals[NAME] == 1_002


def test_audit_of_many_principals_takes_no_memory() -> None:
    audit = Audit(lambda: 0.0)
    AUDIT.disabled = True
    try:
        for number in range(3 * PRINCIPALS_KEPT):
            audit.refused(NAME, str(number))
    finally:
        AUDIT.disabled = False
    assert len(audit._paces) <= PRINCIPALS_KEPT
