"""The policy: how a file is interpreted, and how changes affect calls, waits and sources while the daemon serves."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.service.access.access_policy import PolicyError, read_policy
from purgatory.service.access.roles import ROLES, Names, Role
from purgatory.service.access.tokens import add_token
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.service.sources import source_links
from purgatory.v1 import operation_pb2, source_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import POLICY, Caller, Guarded, guarding
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import advance_request, high_watermark, produce, register_request
from tests.kit.recorded import assert_recorded, assert_values_recorded, cases_of
from tests.kit.served_host import refused

POLICIES = Path(__file__).with_name("policies.txt")
GRANTS = Path(__file__).with_name("grants.txt")

WORDS = st.text("ab*", min_size=1, max_size=4).filter(lambda word: "*" not in word[:-1])


@given(patterns=st.lists(WORDS, max_size=4), name=st.text("ab*", max_size=5))
def test_names_against_an_oracle(patterns: list[str], name: str) -> None:
    plain = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = [pattern[:-1] for pattern in patterns if pattern.endswith("*")]
    assert (name in Names(patterns)) == (name in plain or any(name.startswith(prefix) for prefix in prefixes))


def test_grants_add_up_and_the_nearest_shares_hold_as_a_whole() -> None:
    """As in grants.txt, of teams.toml: by name or prefix, for topics and keys apart."""
    policy = read_policy(Path(__file__).with_name("teams.toml"))

    def topics(principal: str, role: Role, *names: str) -> list[str]:
        return [name for name in names if name in policy.of(principal).on_topics(role)]

    def keys(principal: str, role: Role, *names: str) -> list[str]:
        return [name for name in names if name in policy.of(principal).on_keys(role)]

    def roles(principal: str) -> list[str]:
        return [role for role in ROLES if policy.of(principal).holds_any(frozenset({role}))]

    def shares(principal: str) -> str:
        found = policy.shares_of(principal)
        return f"{found.sessions_max} sessions, {found.times_free} times what is free"

    assert_values_recorded(GRANTS, {"topics": topics, "keys": keys, "roles": roles, "shares": shares})


def test_a_faulty_policy_names_the_place(tmp_path: Path) -> None:
    """As in policies.txt."""

    def fault(policy: str) -> str:
        path = tmp_path / "policy.toml"
        path.write_text(policy.replace("; ", "\n"))
        with pytest.raises(PolicyError) as raised:
            read_policy(path)
        return str(raised.value).replace(str(path), "policy.toml")

    assert_recorded(POLICIES, map(fault, cases_of(POLICIES)))


async def test_shares_change_with_the_policy(tmp_path: Path) -> None:
    request = wire.WaitRequest(operation=produce(1, "mine-1", 9, timeout_ms=0))
    none = f"{POLICY}[principals.wait.shares]\nunary_waits_max = 0\n"
    async with guarding(tmp_path, none) as served, served.caller("wait") as caller:
        for _ in range(2):
            with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "current share"):
                await caller.call("Wait", request)
            served.use_policy(POLICY)
            await caller.call("Wait", request)
            served.use_policy(none)


async def denied(served: Guarded, topic: str) -> bool:
    """Return whether the principal "advance" is refused to advance a topic."""
    async with served.caller("advance") as caller:
        answer = await caller.call("Advance", advance_request(high_watermark(topic, 1)))
    return bool(answer.receipt.refusals)


async def test_a_broken_policy_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with guarding(tmp_path) as served:
        assert not await denied(served, "mine-1")
        for count, broken in enumerate(("[[grant]", '[[grant]]\nto = ["advance"]', "\xff", "", "# no grant\n"), 1):
            served.policy_file.write_bytes(broken.encode("latin-1"))
            served.access.reload()
            assert served.audit.reloads["policy", "refused"] == count
        served.policy_file.unlink()
        served.access.reload()
        assert "still using the previous version" in caplog.text
        served.policy_file.write_text(POLICY)  # before a caller of the next line creates a token and reloads everything
        assert not await denied(served, "mine-1")
        assert await denied(served, "yours-1")
        served.use_policy(POLICY.replace("mine-*", "yours-*"))
        assert await denied(served, "mine-1")
        assert not await denied(served, "yours-1")


async def test_a_changed_file_is_taken_once_it_is_whole(tmp_path: Path) -> None:
    """Two checks must have found it unchanged."""
    async with guarding(tmp_path) as served, served.caller("observe") as caller:
        asked = wire.GetPartitionRequest(topic_partition=operation_pb2.TopicPartition(topic="yours"))
        with refused(grpc.StatusCode.PERMISSION_DENIED):
            await caller.call("GetPartition", asked)
        served.policy_file.write_text(POLICY.replace("mine-*", "*"))
        await eventually(lambda: served.audit.reloads["policy", "taken"] >= 2)
        with refused(grpc.StatusCode.NOT_FOUND):
            await caller.call("GetPartition", asked)


@pytest.mark.slow  # a hundred policies, one after another
async def test_no_message_is_judged_by_half_a_policy(tmp_path: Path) -> None:
    """One policy allows the first topic, the next one the second: each message has exactly one refusal."""
    names, judged, stop = ("first", "second"), [0, 0], asyncio.Event()
    policies = [POLICY.replace("mine-*", name) for name in names]
    async with (
        guarding(tmp_path, policies[0]) as served,
        served.caller("advance") as pusher,
        served.caller("wait") as waiter,
    ):

        async def call(caller: Caller, session_id: str = "") -> None:
            ids = itertools.count(1)
            while not stop.is_set():
                if session_id:
                    operations = [produce(next(ids), name, 9) for name in names]
                    answer = await caller.call("Register", register_request(session_id, *operations))
                else:
                    answer = await caller.call("Advance", advance_request(*(high_watermark(name, 1) for name in names)))
                [refusal] = answer.receipt.refusals
                judged[refusal.index] += 1

        tasks = [asyncio.create_task(call(pusher)) for _ in range(2)]
        tasks += [asyncio.create_task(call(waiter, session_id)) for session_id in "ab"]
        for turn in range(100):
            served.use_policy(policies[turn % 2 - 1])
            before = sum(judged)
            await eventually(lambda: sum(judged) >= before + 4 and not any(task.done() for task in tasks))  # noqa: B023 - awaited here
        stop.set()
        await asyncio.gather(*tasks)
        assert min(judged) > 50


WAITS = 300
"""More than are checked in one slice."""


@pytest.mark.parametrize("lost", ["token", "role"])
async def test_a_pending_wait_ends_when_its_caller_is_refused(tmp_path: Path, lost: str) -> None:
    often = HostSettings(session=SessionSettings(heartbeat_interval_ms=80))
    async with guarding(tmp_path, host_settings=often) as guarded:
        refused_token, other_token = (add_token(guarded.tokens_file, name) for name in ("wait", "root"))
        guarded.access.reload()
        engine = guarded.host.engine
        async with guarded.caller("wait", refused_token) as caller, guarded.caller("root", other_token) as other:
            request = wire.WaitRequest(operation=produce(1, "mine-1", 1, timeout_ms=600_000))
            revoked = [asyncio.ensure_future(caller.call("Wait", request)) for _ in range(WAITS)]
            kept = asyncio.ensure_future(other.call("Wait", request))
            await eventually(lambda: engine.pending == WAITS + 1, "all wait")
            if lost == "token":
                lines = guarded.tokens_file.read_text("utf-8").splitlines()
                guarded.tokens_file.write_text(lines[-1] + "\n", "utf-8")
                guarded.access.reload()
            else:
                guarded.use_policy(POLICY.replace('to = ["wait"]', 'to = ["nobody-else"]'))
            done, _ = await asyncio.wait(revoked, timeout=PATIENCE_S)
            assert len(done) == WAITS
            code = grpc.StatusCode.UNAUTHENTICATED if lost == "token" else grpc.StatusCode.PERMISSION_DENIED
            assert {one.exception().code() for one in revoked} == {code}  # type: ignore[union-attr]
            assert engine.pending == 1
            await other.call("Advance", wire.AdvanceRequest(rows={"events": [high_watermark("mine-1", 1)]}))
            await kept


# Sources under a policy.


REPORT = source_pb2.AttachSourceRequest(report=source_pb2.SourceReport(state=source_pb2.SOURCE_STATE_LIVE))


async def attach(caller: Caller) -> Any:  # noqa: ANN401 - a call
    """Attach a source that feeds `mine`, and read its first demand."""
    stream = caller.stream("AttachSource")
    hello = source_pb2.SourceHello(name="a source", topic_prefixes=["mine-"])
    await stream.write(source_pb2.AttachSourceRequest(hello=hello))
    await asyncio.wait_for(stream.read(), PATIENCE_S)
    await stream.write(REPORT)
    return stream


@pytest.mark.parametrize(
    "policy",
    [
        POLICY.replace('topics = ["mine-*"]', 'topics = ["mine-1"]'),
        POLICY.replace('to = ["advance"]', 'to = ["nobody else"]'),
    ],
    ids=["narrower", "none"],
)
async def test_a_role_that_is_withdrawn_ends_the_stream(policy: str, tmp_path: Path) -> None:
    async with guarding(tmp_path) as served, served.caller("advance") as caller:
        stream = await attach(caller)
        served.use_policy(policy)
        await stream.write(REPORT)
        with refused(grpc.StatusCode.PERMISSION_DENIED, "needs the role advance"):
            await asyncio.wait_for(stream.read(), PATIENCE_S)
        await eventually(lambda: not served.host.sources.attached, "the source is gone")


async def test_status_tells_of_sources_to_those_who_may_observe_what_they_feed(tmp_path: Path) -> None:
    """Sources of two principals are two, although they have one name."""
    async with guarding(tmp_path) as served, served.caller("advance") as caller, served.caller("root") as root:
        await attach(caller)
        await attach(root)
        both = [("a source", "advance"), ("a source", "root")]
        for principal, seen in (("observe", both), ("root", both), ("wait", []), ("advance", [])):
            async with served.caller(principal) as other:
                status = await other.call("GetStatus", wire.GetStatusRequest())
                assert sorted((one.name, one.principal) for one in status.sources) == seen


async def test_sources_of_one_principal_leave_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources that the daemon runs itself have no share."""
    monkeypatch.setattr(source_links, "SOURCES_MAX", 6)
    async with guarding(tmp_path) as served, served.caller("advance") as caller, served.caller("root") as root:
        streams = [await attach(caller) for _ in range(4)]
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "you have 4 sources attached"):
            await attach(caller)
        streams.append(await attach(root))
        served.host.source_links.supervised_as = "advance"
        streams.append(await attach(caller))
        assert served.host.sources.attached == 6
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "6 sources are attached"):
            await attach(root)
