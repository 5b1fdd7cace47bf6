"""Calls that are refused before their request is read: over a limit, past their deadline, or during shutdown."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2

from purgatory.engine.calls import Apply
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.access.account import Account, Accounts
from purgatory.service.budget.shares import CALL_BYTES, Shares
from purgatory.service.draining import drain
from purgatory.service.errors import RpcError
from purgatory.service.fair_queue import EVENTS, LOOP_TURN_US_MAX, REGISTRATIONS, CallerQueue, FairQueue
from purgatory.service.listeners.listener import Called
from purgatory.service.listeners.refusal_log import RefusalLog
from purgatory.service.rpc import call_gate, grpc_options
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.settings import HostSettings, LimitsSettings, SharesSettings
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import high_watermark, produce, produce_columns
from tests.kit.served_host import DaemonChannel, RecordingListener, ServedHost, refused, serving

HELD = wire.WaitRequest(operation=produce(1, "held", 1, timeout_ms=60_000))
MET = wire.WaitRequest(operation=produce(1, "met", 1, timeout_ms=0))


class CallRefusals(RecordingListener):
    """Counts refused calls by reason."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: Counter[str] = Counter()

    def call_refused(self, reason: str) -> None:
        self.reasons[reason] += 1


async def hold(served: DaemonChannel, host: ServedHost, count: int) -> list[asyncio.Task[wire.WaitResponse]]:
    """Start `count` calls of Wait that stay pending."""
    before = host.host.fair_queue.calls
    waits = [asyncio.ensure_future(served.stub.Wait(HELD)) for _ in range(count)]
    await eventually(lambda: host.host.fair_queue.calls == before + count, "the calls wait")
    return waits


@pytest.mark.parametrize("name", ["calls", "calls_per_caller", "calls_per_connection"])
async def test_calls_in_flight_are_limited(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = CallRefusals()
    module = grpc_options if name == "calls_per_connection" else call_gate
    monkeypatch.setattr(module, f"{name.upper()}_MAX", 3)
    settings = HostSettings(shares=SharesSettings(times_free=0))
    async with serving(settings, listener=heard) as served:
        waits = await hold(served, served, 2)
        assert (await served.stub.Wait(MET)).result
        waits += await hold(served, served, 1)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "allowed: 3"):
            await served.stub.Wait(MET)
        assert heard.reasons == {name: 1}
        async with DaemonChannel(served.address) as other:
            if name == "calls":
                with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
                    await other.stub.Wait(MET)
            else:
                assert (await other.stub.Wait(MET)).result
        waits.pop().cancel()
        await eventually(lambda: served.host.fair_queue.calls == 2, "one has ended")
        assert (await served.stub.Wait(MET)).result
        for wait in waits:
            wait.cancel()


async def test_calls_of_a_connection_are_limited_for_each_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal with two connections may use both up; a sixteenth of each is left to events."""
    monkeypatch.setattr(grpc_options, "CALLS_PER_CONNECTION_MAX", 16)
    gate = CallGate(FairQueue(), LimitsSettings())
    account, context = Accounts().of("a"), Context()
    enter = partial(gate.enter, context, account, is_unary=True)  # type: ignore[arg-type]
    entered = [(enter(work=REGISTRATIONS, connection=one), one) for one in ("ipv4:1", "ipv4:2") for _ in range(15)]
    with pytest.raises(RpcError, match="15 calls are in flight on one connection; allowed: 15"):
        enter(work=REGISTRATIONS, connection="ipv4:1")
    entered.append((enter(work=EVENTS, connection="ipv4:1"), "ipv4:1"))
    with pytest.raises(RpcError, match="allowed: 16"):
        enter(work=EVENTS, connection="ipv4:1")
    entered.append((enter(work=REGISTRATIONS), ""))  # over HTTP, a call has a connection of its own
    for caller, connection in entered:
        gate.leave(caller, is_unary=True, connection=connection)
    enter(work=REGISTRATIONS, connection="ipv4:1")


class Context:
    """The parts of gRPC's context that the gate uses."""

    def __init__(self, remaining_s: float | None = None, peer: str = "ipv4:1") -> None:
        self.remaining_s = remaining_s
        self._peer = peer

    def time_remaining(self) -> float | None:
        return self.remaining_s

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize("principals", [["bob", "ann", "eve"], ["", "", ""]], ids=["principals", "connections"])
def test_calls_of_one_caller_leave_room_for_others(principals: list[str]) -> None:
    """Two thirds of those that fit into the budget; the next one two thirds of the rest. Events have a reserve."""
    shares = Shares(HostSettings(), Engine(EngineLimits(), 0))
    shares.budget.bytes_max = 32 * CALL_BYTES * call_gate.CALLS_SHARE
    gate = CallGate(FairQueue(), LimitsSettings(), shares=shares)

    def taken(place: int, work: int = REGISTRATIONS) -> int:
        """The calls that a caller gets."""
        account, peers = shares.accounts.of(principals[place]), [f"ipv4:{place}", f"ipv4:{place}"]
        if account.principal:
            peers[1] = "ipv4:another"
        for number in range(100):
            try:
                gate.enter(Context(peer=peers[number % 2]), account, work, is_unary=True)  # type: ignore[arg-type]
            except RpcError:
                return number
        raise AssertionError("no call was refused")

    assert [taken(0), taken(1), taken(2)] == [20, 6, 2]
    assert [taken(0, EVENTS), taken(1, EVENTS), taken(2, EVENTS)] == [1, 1, 1]


def slow_clock() -> Callable[[], int]:
    """A clock that advances by a loop iteration whenever it is read, so that each turn takes one iteration."""
    return itertools.count(0, LOOP_TURN_US_MAX).__next__


@pytest.mark.parametrize("is_filling", [False, True])
@pytest.mark.parametrize("queued", [1, 2, 3])
async def test_calls_that_wait_for_a_turn_are_limited(
    queued: int, is_filling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lower while uncounted memory fills the budget."""
    monkeypatch.setattr(call_gate, "QUEUED_WHEN_FILLING_MAX", 2)
    shares = Shares(HostSettings(), Engine(EngineLimits(), 0))
    shares.budget.uncounted_bytes = int(is_filling)
    monkeypatch.setattr(call_gate, "CALLS_QUEUED_PER_CALLER_MAX", 1_000 if is_filling else 2)
    gate = CallGate(FairQueue(now_us=slow_clock()), LimitsSettings(), shares=shares)
    account, context = Accounts().nobody, Context()
    others = [gate.enter(Context(peer="ipv4:2"), account, REGISTRATIONS, is_unary=True)]  # type: ignore[arg-type]
    caller = gate.enter(context, account, REGISTRATIONS, is_unary=True)  # type: ignore[arg-type]
    # The first call takes the whole iteration of the loop.
    turns = [asyncio.ensure_future(gate.call_turn(context, caller, REGISTRATIONS)) for _ in range(1 + queued)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert caller.waiting == queued
    if queued < 2:
        gate.leave(gate.enter(context, account, REGISTRATIONS, is_unary=True), is_unary=True)  # type: ignore[arg-type]
    else:
        with pytest.raises(RpcError, match="wait for their turn"):
            gate.enter(context, account, REGISTRATIONS, is_unary=True)  # type: ignore[arg-type]
    gate.leave(gate.enter(Context(peer="ipv4:2"), account, REGISTRATIONS, is_unary=True), is_unary=True)  # type: ignore[arg-type]
    await asyncio.gather(*turns)
    gate.leave(gate.enter(context, account, REGISTRATIONS, is_unary=True), is_unary=True)  # type: ignore[arg-type]
    for one in [*others, caller]:
        gate.leave(one, is_unary=True)


async def test_the_rate_of_calls_is_limited() -> None:
    now_s = 100.0
    gate = CallGate(FairQueue(), LimitsSettings(calls_per_second_max=10), now_s=lambda: now_s)
    account, context = Accounts().nobody, Context()

    def call() -> None:
        gate.leave(gate.enter(context, account, REGISTRATIONS, is_unary=True), is_unary=True)  # type: ignore[arg-type]

    for _ in range(10):
        call()
    with pytest.raises(RpcError, match="10 calls a second") as error:
        call()
    assert any(str(detail).strip() == "retry_delay {\n  nanos: 101000000\n}" for detail in error.value.details)
    now_s += 0.101
    call()
    with pytest.raises(RpcError):
        call()


async def test_calls_past_their_deadline_are_not_served() -> None:
    heard = CallRefusals()
    gate = CallGate(FairQueue(), LimitsSettings(), heard)
    account = Accounts().nobody
    with pytest.raises(RpcError, match="deadline"):
        gate.enter(Context(0.0), account, REGISTRATIONS, is_unary=True)  # type: ignore[arg-type]
    context = Context(1.0)
    caller = gate.enter(context, account, REGISTRATIONS, is_unary=True)  # type: ignore[arg-type]
    await gate.call_turn(context, caller, REGISTRATIONS)  # type: ignore[arg-type]
    context.remaining_s = 0.0
    with pytest.raises(RpcError, match="deadline"):
        await gate.call_turn(context, caller, REGISTRATIONS)  # type: ignore[arg-type]
    assert heard.reasons == {"deadline": 2}


async def test_calls_that_wait_at_shutdown_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        queue = served.host.fair_queue
        monkeypatch.setattr(queue, "_now_us", slow_clock())
        caller = queue.enter("many")
        turns = [asyncio.ensure_future(queue.turn(caller, REGISTRATIONS, is_call=True)) for _ in range(200)]
        await asyncio.sleep(0)
        await drain(served.host, 0.0)
        answers = await asyncio.gather(*turns, return_exceptions=True)
        told = [answer for answer in answers if isinstance(answer, RpcError)]
        assert len(told) >= 100
        assert {answer.message for answer in told} == {"the daemon is shutting down; try another one, or later"}


def test_the_operator_is_told_which_limit_refuses_calls(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    told = RefusalLog(clock)
    for _ in range(100):
        told.call_refused("calls_per_caller")
        told.call_refused("deadline")
    assert [record.getMessage().partition(" refused ")[2][:18] for record in caplog.records] == ["(calls_per_caller)"]


class Counting(RecordingListener):
    """Number of operations accepted before the first event asked for its turn, and before it was applied."""

    before_asked = before_event = -1

    def called(self, event: Called) -> None:
        super().called(event)
        if isinstance(event.call, Apply) and self.before_event < 0:
            self.before_event = self.accepted


async def test_a_flood_does_not_hold_up_another_callers_event(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Counting()
    take_turn = CallGate.call_turn

    async def noting(gate: CallGate, context: Any, caller: CallerQueue, work: int) -> None:  # noqa: ANN401
        if work == EVENTS:
            heard.before_asked = heard.accepted
        await take_turn(gate, context, caller, work)

    monkeypatch.setattr(CallGate, "call_turn", noting)
    async with serving(listener=heard) as served, DaemonChannel(served.address) as other:

        async def flood(session_id: str) -> None:
            first = 1
            while heard.before_event < 0:
                batch = produce_columns(range(first, first + 10))
                await served.stub.Register(wire.RegisterRequest(session_id=session_id, batch=batch))
                first += 10

        assert (await other.status()).version
        callers = [asyncio.ensure_future(flood(f"flood {number}")) for number in range(900)]
        await eventually(lambda: heard.accepted >= 100, "the flood is being served")
        await other.stub.Advance(wire.AdvanceRequest(rows={"events": [high_watermark("quiet", 1)]}))
        assert 0 <= heard.before_event - heard.before_asked <= 200
        await asyncio.gather(*callers)


@pytest.mark.parametrize(("work", "heard"), [(EVENTS, 2), (REGISTRATIONS, 0)])
async def test_refused_events_are_reported_for_their_account(
    work: int, heard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that arrive after their deadline and those over a limit, and no other calls."""
    reported: list[Account] = []
    monkeypatch.setattr(call_gate, "CALLS_PER_CALLER_MAX", 1)
    gate = CallGate(FairQueue(), LimitsSettings(), on_events_refused=reported.append)
    account = Accounts().nobody
    with pytest.raises(RpcError):
        gate.enter(Context(0.0), account, work, is_unary=True)  # type: ignore[arg-type]
    gate.enter(Context(), account, work, is_unary=True)  # type: ignore[arg-type]
    with pytest.raises(RpcError):
        gate.enter(Context(), account, work, is_unary=True)  # type: ignore[arg-type]
    assert reported == [account] * heard


@pytest.mark.parametrize("is_unary", [True, False])
def test_ends_of_event_calls_are_reported_by_their_code(is_unary: bool) -> None:
    """A stream that is cancelled has been left by its caller; a call, before it had its answer."""
    reported: list[int] = []
    gate = CallGate(FairQueue(), LimitsSettings(), on_events_refused=lambda _account: reported.append(code))
    for code in (code_pb2.OK, code_pb2.INVALID_ARGUMENT, code_pb2.UNAVAILABLE, code_pb2.CANCELLED):
        gate.note_end(Accounts().nobody, EVENTS, code, is_unary=is_unary)
    assert reported == ([code_pb2.UNAVAILABLE, code_pb2.CANCELLED] if is_unary else [code_pb2.UNAVAILABLE])
