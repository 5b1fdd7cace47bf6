"""Exactly the unauthorized operations and events of a batch are refused, and the audit log says which."""

from __future__ import annotations

import asyncio
import json
import logging
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
from tests.access.guarded import Caller, guarding
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
    forbidden = {row for row, names in enumerate(names_of(columns)) if any(name and name not in MINE for name in names)}
    assert {refusal.index for refusal, _ in got.refused if refusal.code == PERMISSION_DENIED} == forbidden
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


async def test_an_unauthorized_operation_ends_once(tmp_path: Path) -> None:
    """It has a result with the reason and uses up its id: sent again, it is known."""
    async with guarding(tmp_path) as served, served.caller("wait") as caller:
        request = register_request(
            "s", *(produce(n, name, 9) for n, name in enumerate(("mine-1", "yours-1", "mine-2"), 1))
        )
        first = (await caller.call("Register", request)).receipt
        assert (first.accepted, [one.operation_id for one in first.refusals]) == (2, [2])
        assert first.refusals[0].message == "needs the role wait for topic 'yours-1'"
        again = (await caller.call("Register", request)).receipt
        assert (again.accepted, again.already_known, len(again.refusals)) == (0, 3, 0)
        stream = caller.stream("StreamResults", wire.StreamResultsRequest(session_id="s"))
        assert (await stream.read()).HasField("opened")
        results = (await stream.read()).results.rows.results
        assert [(one.operation_id, one.refusal.code) for one in results] == [(2, PERMISSION_DENIED)]
        stream.cancel()


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


async def test_hidden_and_absent_look_the_same(tmp_path: Path) -> None:
    """In each pair the first exists and the second does not; the answers differ only in the name."""
    async with (
        guarding(tmp_path) as served,
        served.caller("root") as root, served.caller("observe") as observer, served.caller("admin") as admin,
    ):  # fmt: skip
        await root.call("Register", register_request("there", produce(1, "yours-1", 9), produce(2, "mine-1", 9)))
        partition = operation_pb2.TopicPartition

        async def answer(caller: Any, rpc: str, request: Any) -> str:  # noqa: ANN401 - any call
            try:
                return str(await caller.call(rpc, request))
            except grpc.aio.AioRpcError as error:
                return f"{error.code()} {error.details()} {error.trailing_metadata()}"

        pairs: list[tuple[Any, str, Any, list[dict[str, Any]], tuple[str, str]]] = [
            (observer, "GetPartition", wire.GetPartitionRequest, [
                {"topic_partition": partition(topic="yours-1")}, {"topic_partition": partition(topic="other-1")},
            ], ("yours-1", "other-1")),
            (observer, "ListPartitions", wire.ListPartitionsRequest, [
                {"topic_prefix": "yours"}, {"topic_prefix": "other"},
            ], ("yours", "other")),
            (admin, "Cancel", wire.CancelRequest, [
                {"topic_partition": partition(topic="yours-1")}, {"topic_partition": partition(topic="other-1")},
            ], ("yours-1", "other-1")),
            (admin, "Cancel", wire.CancelRequest, [
                {"session_id": "there", "principal": "root"}, {"session_id": "gone0", "principal": "nope"},
            ], ("root", "nope")),
            (admin, "GetOperation", wire.GetOperationRequest, [
                {"session_id": "there", "operation_id": 1, "principal": "root"},
                {"session_id": "gone0", "operation_id": 1, "principal": "root"},
            ], ("there", "gone0")),
            (admin, "ListOperations", wire.ListOperationsRequest, [
                {"session_id": "there", "principal": "root", "key": "mine/1"},
                {"session_id": "gone0", "principal": "root", "key": "mine/1"},
            ], ("there", "gone0")),
        ]  # fmt: skip
        for caller, rpc, request_type, (there, absent), (name, other) in pairs:
            first = await answer(caller, rpc, request_type(**there))
            second = await answer(caller, rpc, request_type(**absent))
            assert first.replace(name, other) == second, rpc


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


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:  # noqa: ANN401 - a function
    """Return the parsed lines of the audit log."""
    caplog.set_level(logging.INFO, AUDIT.name)
    return lambda: [json.loads(record.getMessage()) for record in caplog.records if record.name == AUDIT.name]


async def test_a_line_says_who_what_and_why(tmp_path: Path, lines: Any) -> None:  # noqa: ANN401 - see above
    """The refused events of a batch are one line; names cannot write escape sequences."""
    async with guarding(tmp_path) as served, served.caller("advance") as pusher, served.caller("admin") as admin:
        before = len(lines())
        events = [high_watermark("\x1b[31myours", 1), high_watermark("mine-1", 1), high_watermark("yours-2", 1)]
        await pusher.call("Advance", advance_request(*events))
        await admin.call("Cancel", wire.CancelRequest(key="mine/1"))
        told, acted = lines()[before:]
        about = [told[key] for key in ("audit", "reason", "principal", "role", "count", "call")]
        assert about == ["refused", NAME, "advance", "advance", 2, "Advance"]
        assert "[31myours" in told["name"]
        assert "\x1b" not in told["name"]
        assert told["peer"].startswith("ipv4:127.0.0.1:")
        assert (acted["audit"], acted["principal"], acted["call"]) == ("cancelled", "admin", "Cancel")
        assert served.audit.refusals[NAME] == 2


@pytest.mark.parametrize("call", ["Cancel", "Extend"])
async def test_an_act_on_a_session_of_others(tmp_path: Path, lines: Any, call: str) -> None:  # noqa: ANN401 - see above
    """It names the session's owner; the owner's own act has no line."""
    request: Any = wire.CancelRequest if call == "Cancel" else partial(wire.ExtendRequest, timeout_ms=60_000)
    async with guarding(tmp_path) as served, served.caller("root") as root, served.caller("wait") as owner:
        await owner.call("Register", register_request("s", produce(1, "mine-1", 9, timeout_ms=600_000)))
        before = len(lines())
        await root.call(call, request(session_id="s", principal="wait", operation_ids=[1]))
        await owner.call(call, request(session_id="s", operation_ids=[1]))
        [acted] = lines()[before:]
        about = [acted[key] for key in ("audit", "principal", "name", "call")]
        assert about == ["cancelled" if call == "Cancel" else "extended", "root", "sessions of 'wait'", call]


async def test_refused_caller_without_principal_is_logged_with_its_peer(tmp_path: Path, lines: Any) -> None:  # noqa: ANN401 - see above
    async with guarding(tmp_path) as served, served.caller("nobody") as caller:
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            await caller.call("Acknowledge", wire.AcknowledgeRequest())
        told = lines()[-1]
        assert (told["reason"], told["call"]) == (UNAUTHENTICATED, "Acknowledge")
        assert "peer" in told
        assert "principal" not in told


def test_a_flood_fills_no_disk(lines: Any) -> None:  # noqa: ANN401 - see above
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


def test_many_principals_take_no_memory() -> None:
    audit = Audit(lambda: 0.0)
    AUDIT.disabled = True
    try:
        for number in range(3 * PRINCIPALS_KEPT):
            audit.refused(NAME, str(number))
    finally:
        AUDIT.disabled = False
    assert len(audit._paces) <= PRINCIPALS_KEPT


def test_refusals_and_reloads_are_counted_by_reason() -> None:
    audit = Audit()
    audit.refusals[NAME] += 3
    audit.reloads["policy", "refused"] += 1
    samples = {
        (sample.name, *sample.labels.values()): sample.value for metric in audit.collect() for sample in metric.samples
    }
    assert samples["purgatory_access_refusals_total", NAME] == 3
    assert samples["purgatory_access_refusals_total", UNAUTHENTICATED] == 0
    assert samples["purgatory_access_reloads_total", "policy", "refused"] == 1
