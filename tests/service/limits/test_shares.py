"""Shares of limits: one account uses up its share, and others are still served."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.access.account import Account, Accounts, OwnShares
from purgatory.service.access.roles import ALL
from purgatory.service.budget.shares import share
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.kit.messages import produce_run

LIMIT = 12


def make_host() -> tuple[Host, Metrics]:
    limits = {"pending_operations_max": LIMIT, "pending_items_max": LIMIT, "partitions_max": LIMIT}
    settings = HostSettings(LimitsSettings(sessions_max=LIMIT, **limits))
    metrics = Metrics()
    return Host(Engine(EngineLimits(**limits), 0), ManualClock(), settings, metrics), metrics


def session_of(host: Host, principal: str, session_id: str = "jobs") -> Session:
    return host.sessions.open(session_id, 0, host.shares.accounts.of(principal))[0]


def register(host: Host, session: Session, count: int, topic: str = "orders") -> int:
    """Register this many waits, one per batch; return how many are accepted."""
    accepted = 0
    for _ in range(count):
        run = produce_run([session.owner.highest_operation_id + 1], topic, timeout_ms=60_000)
        accepted += host.registration(session).register([run], []).accepted
    return accepted


@given(st.integers(0, 9), st.integers(1, 1_000), st.lists(st.integers(0, 9), max_size=9))
def test_a_share_leaves_room(times_free: int, limit: int, others: list[int]) -> None:
    """A share is at most `times_free` times the room that is then free; no account loses anything."""
    held_by_others = min(sum(others), limit)
    most = share(times_free, limit, held_by_others, 0)
    free = limit - held_by_others - most
    assert free >= 0
    if times_free:
        assert most <= times_free * free
        assert most + 1 > times_free * (free - 1), "one more would have been above the share"
    else:
        assert free == 0
    assert share(times_free, limit, held_by_others + most, most) == most


def test_unread_answers_of_one_account_leave_room_for_another() -> None:
    host, _ = make_host()
    budget = host.shares.budget
    ann, bob = host.shares.accounts.of("ann"), host.shares.accounts.of("bob")
    budget.bytes_max = budget.held_bytes() + 300_000
    budget.hold_answer(bob, 190_000)
    host.gate.check_answer(bob)
    budget.hold_answer(bob, 20_000)
    with pytest.raises(RpcError, match="210000 bytes of answers to you are unread"):
        host.gate.check_answer(bob)
    host.gate.check_answer(ann)
    budget.hold_answer(bob, -210_000)
    host.gate.check_answer(bob)
    assert budget.answers_bytes == 0


def test_the_first_of_an_account_needs_only_a_free_place() -> None:
    """Shares of a small limit are rounded down, eventually to nothing: each account gets one nevertheless."""
    shares = make_host()[0].shares
    held = [0] * 12
    for place in range(12):
        account = shares.accounts.of(f"user-{place}")
        while shares.may_add(account, LIMIT, sum(held), held[place]):
            held[place] += 1
    assert held == [8, 2, 1, 1] + [0] * 8
    assert not shares.may_add(shares.accounts.of("last"), LIMIT, 8, 0, own_most=0)
    shares.accounts.use_policy(lambda _: ALL, lambda _: OwnShares(times_free=0))
    assert shares.may_add(shares.accounts.of("user-0"), LIMIT, 8, 8), "the policy gives it all that is free"
    assert shares.may_add(shares.accounts.nobody, LIMIT, LIMIT - 1, LIMIT - 1)


def test_memory_is_shared_out() -> None:
    host, metrics = make_host()
    budget = host.shares.budget
    ann, bob = host.shares.accounts.of("ann"), host.shares.accounts.of("bob")
    budget.bytes_max = budget.held_bytes() + 300_000
    ann.hold_results(190_000)
    host.gate.check_memory(ann, 1, 1)
    ann.hold_results(20_000)
    with pytest.raises(BatchRejected, match="current share") as raised:
        host.gate.check_memory(ann, 1, 1)
    assert raised.value.refusal.field == "memory"
    assert metrics.rejected[codes.RESOURCE_EXHAUSTED] == 1
    host.gate.check_memory(bob, 1, 1)


async def test_what_calls_wait_for_counts_for_their_account() -> None:
    """Items of calls of Wait and of sessions count against one share, in both directions."""
    host, _ = make_host()
    ann = host.shares.accounts.of("ann")
    assert register(host, session_of(host, "ann"), 5) == 5
    with host.unary_wait(ann) as (operation_id, _), host.unary_wait(ann) as (second_id, _):
        names = [("payments", partition) for partition in range(3)]
        wide = OperationBatch([operation_id], partitions=names, item_indexes=[0, 1, 2], item_counts=[3], offsets=[9])
        host.register_unary_wait(OperationRun(codes.PRODUCE, wide), ann)
        assert (ann.usage.items, ann.usage.operations, ann.usage.partitions) == (8, 6, 4)
        with pytest.raises(RpcError, match="current share"):
            host.register_unary_wait(produce_run([second_id], "payments"), ann)
        assert register(host, session_of(host, "ann"), 1) == 0
    # Of calls that end together, only the first is cancelled in this loop iteration, and the others in the next one.
    await asyncio.sleep(0)
    assert ann.usage.items == 5
    assert register(host, session_of(host, "ann"), 1) == 1


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["call", "hold", "drop", "stream", "end"])), max_size=60))
def test_accounts_that_hold_nothing_are_forgotten(steps: list[tuple[int, str]]) -> None:
    accounts = Accounts()
    held: dict[str, Account] = {}
    streams: dict[str, Account] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("purgatory.service.access.account.ACCOUNTS_KEPT_MIN", 4)
        for number, step in steps:
            principal = f"user-{number}"
            one = accounts.of(principal)
            for known in (held, streams):
                assert one is known.get(principal, one)
            if step == "hold" and principal not in held:
                one.add_session(1)
                held[principal] = one
            elif step == "drop" and principal in held:
                held.pop(principal).add_session(-1)
            elif step == "stream":
                streams[principal] = one
            elif step == "end":
                streams.pop(principal, None)
        for number in range(1_000, 1_200):
            accounts.of(f"user-{number}")
        assert len(accounts) <= 4 + 1 + 2 * len(held)
        assert accounts.of("") is accounts.nobody
    for principal, account in {**held, **streams}.items():
        assert accounts.of(principal) is account


def recount(host: Host) -> dict[str, tuple[int, int, int, int]]:
    """Compute the sessions, operations and bytes of results that each account holds."""
    counts: dict[str, tuple[int, int, int, int]] = {}
    for session in host.sessions._by_id.values():
        principal = session.account.principal
        sessions, pending, held, slices = counts.get(principal, (0, 0, 0, 0))
        parts = [*session.outbox._written, *session.outbox._unwritten]
        counts[principal] = (
            sessions + 1,
            pending + session.owner.pending,
            held + sum(part.held_bytes() for part in parts),
            slices + len(parts),
        )
    return counts


STEP = st.tuples(
    st.sampled_from(["register", "expire", "acknowledge", "take", "close", "cancel", "refuse"]),
    st.sampled_from(["", "ann", "bob"]),
    st.sampled_from(["one", "two"]),
    st.integers(1, 5),
)


@settings(max_examples=40)
@given(st.lists(STEP, max_size=30))
def test_accounts_are_what_a_recount_says(steps: list[tuple[str, str, str, int]]) -> None:
    clock = ManualClock()
    host = Host(Engine(EngineLimits(), clock.now_ms()), clock, HostSettings())
    for what, principal, session_id, count in steps:
        account: Account = host.shares.accounts.of(principal)
        session = host.sessions.open(session_id, clock.now_ms(), account)[0]
        outbox = session.outbox
        if what == "register":
            register(host, session, count)
        elif what == "refuse":
            register(host, session, count, topic="")
        elif what == "expire":
            clock.jump(60_000 + count)
            host.reaper.turn()
        elif what == "acknowledge":
            session.acknowledge(min(outbox.acknowledged_sequence + count, outbox.last_sequence))
        elif what == "take":
            outbox.take(count)
        elif what == "cancel":
            asyncio.run(host.cancel_session(session))
        else:
            host.sessions.close(session)
        counts = recount(host)
        for name in ("", "ann", "bob"):
            held = host.shares.accounts.of(name)
            expected = counts.get(name, (0, 0, 0, 0))
            assert (held.sessions, held.usage.operations, held.results_bytes) == expected[:3]
        assert host.shares.accounts.sessions == host.sessions.count
        assert host.shares.accounts.results_bytes == sum(entry[2] for entry in counts.values())
