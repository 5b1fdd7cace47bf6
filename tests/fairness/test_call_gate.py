"""Calls that are refused before their request is read: over a limit, past their deadline, or during shutdown.

And the fair queue, whose clock tests move by hand, so that the order of turns is exact.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, cast

import grpc
import pytest
from google.rpc import code_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from purgatory.engine.calls import Apply
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.access.account import Account, Accounts
from purgatory.service.budget.shares import CALL_BYTES, Shares
from purgatory.service.draining import drain
from purgatory.service.errors import RpcError
from purgatory.service.fair_queue import EVENTS, INSPECTIONS, LOOP_TURN_US_MAX, REGISTRATIONS, CallerQueue, FairQueue
from purgatory.service.listeners.listener import Called
from purgatory.service.listeners.refusal_log import RefusalLog
from purgatory.service.rpc import call_gate, grpc_options
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.messages import high_watermark, produce, produce_columns, register_request
from tests.kit.served_host import DaemonChannel, RecordingListener, refused, serving


class Context:
    """The parts of gRPC's context that the gate uses."""

    def __init__(self, peer: str = "ipv4:1", remaining_s: float | None = None) -> None:
        self.remaining_s = remaining_s
        self._peer = peer

    def time_remaining(self) -> float | None:
        return self.remaining_s

    def peer(self) -> str:
        return self._peer


class Gate(CallGate):
    """A gate, at which unary calls arrive."""

    def arrive(
        self,
        context: Context | None = None,
        account: Account | None = None,
        work: int = REGISTRATIONS,
        connection: str = "",
    ) -> CallerQueue:
        given: Any = context or Context()
        return self.enter(given, account or Accounts().nobody, work, is_unary=True, connection=connection)

    def pass_through(self, context: Context | None = None) -> None:
        """A call that ends at once."""
        self.leave(self.arrive(context), is_unary=True)


async def test_calls_of_a_connection_are_limited_for_each_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal with two connections may use both up; a sixteenth of each is left to events."""
    monkeypatch.setattr(grpc_options, "CALLS_PER_CONNECTION_MAX", 16)
    gate = Gate(FairQueue(), LimitsSettings())
    enter = partial(gate.arrive, Context(), Accounts().of("a"))
    entered = [(enter(connection=one), one) for one in ("ipv4:1", "ipv4:2") for _ in range(15)]
    with pytest.raises(RpcError, match="15 calls are in flight on one connection; allowed: 15"):
        enter(connection="ipv4:1")
    entered.append((enter(EVENTS, "ipv4:1"), "ipv4:1"))
    with pytest.raises(RpcError, match="allowed: 16"):
        enter(EVENTS, "ipv4:1")
    entered.append((enter(), ""))  # over HTTP, a call has a connection of its own
    for caller, connection in entered:
        gate.leave(caller, is_unary=True, connection=connection)
    enter(connection="ipv4:1")


@pytest.mark.parametrize("principals", [["bob", "ann", "eve"], ["", "", ""]], ids=["principals", "connections"])
def test_calls_of_one_caller_leave_room_for_others(principals: list[str]) -> None:
    """One caller gets two thirds of the budget, the next one two thirds of the rest. Events have a reserve."""
    shares = Shares(HostSettings(), Engine(EngineLimits(), 0))
    shares.budget.bytes_max = 32 * CALL_BYTES * call_gate.CALLS_SHARE
    gate = Gate(FairQueue(), LimitsSettings(), shares=shares)

    def taken(place: int, work: int = REGISTRATIONS) -> int:
        """The calls that a caller gets."""
        account, peers = shares.accounts.of(principals[place]), [f"ipv4:{place}", f"ipv4:{place}"]
        if account.principal:
            peers[1] = "ipv4:another"
        for number in range(100):
            try:
                gate.arrive(Context(peers[number % 2]), account, work)
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
    gate = Gate(FairQueue(now_us=slow_clock()), LimitsSettings(), shares=shares)
    mine, others = Context(), Context("ipv4:2")
    entered = [gate.arrive(mine), gate.arrive(others)]
    # The first call takes the whole iteration of the loop.
    call_turn = partial(gate.call_turn, cast(Any, mine), entered[0], REGISTRATIONS)
    turns = [asyncio.ensure_future(call_turn()) for _ in range(1 + queued)]
    await asyncio.sleep(0)
    assert entered[0].waiting == queued
    with contextlib.nullcontext() if queued < 2 else pytest.raises(RpcError, match="wait for their turn"):
        gate.pass_through(mine)
    gate.pass_through(others)
    await asyncio.gather(*turns)
    gate.pass_through(mine)
    for one in entered:
        gate.leave(one, is_unary=True)


async def test_calls_past_their_deadline_are_not_served() -> None:
    heard = RecordingListener()
    gate = Gate(FairQueue(), LimitsSettings(), heard)
    with pytest.raises(RpcError, match="deadline"):
        gate.arrive(Context(remaining_s=0.0))
    context: Any = Context(remaining_s=1.0)
    caller = gate.arrive(context)
    await gate.call_turn(context, caller, REGISTRATIONS)
    context.remaining_s = 0.0
    with pytest.raises(RpcError, match="deadline"):
        await gate.call_turn(context, caller, REGISTRATIONS)
    assert heard.refused_calls == {"deadline": 2}


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


async def test_refused_session_is_reported_as_a_reached_limit() -> None:
    heard = RecordingListener()
    async with serving(HostSettings(limits=LimitsSettings(sessions_max=1)), listener=heard) as served:
        await served.stub.Register(register_request("one", produce(1, "held", 1)))
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
            await served.stub.Register(register_request("two", produce(1, "held", 1)))
    assert heard.refusals == {code_pb2.RESOURCE_EXHAUSTED: 1}


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
    gate, account = Gate(FairQueue(), LimitsSettings(), on_events_refused=reported.append), Accounts().nobody
    with pytest.raises(RpcError):
        gate.arrive(Context(remaining_s=0.0), account, work)
    gate.arrive(None, account, work)
    with pytest.raises(RpcError):
        gate.arrive(None, account, work)
    assert reported == [account] * heard


@pytest.mark.parametrize("is_unary", [True, False])
def test_ends_of_event_calls_are_reported_by_their_code(is_unary: bool) -> None:
    """A stream that is cancelled has been left by its caller; a call, before it had its answer."""
    reported: list[int] = []
    gate = Gate(FairQueue(), LimitsSettings(), on_events_refused=lambda _account: reported.append(code))
    for code in (code_pb2.OK, code_pb2.INVALID_ARGUMENT, code_pb2.UNAVAILABLE, code_pb2.CANCELLED):
        gate.note_end(Accounts().nobody, EVENTS, code, is_unary=is_unary)
    assert reported == ([code_pb2.UNAVAILABLE, code_pb2.CANCELLED] if is_unary else [code_pb2.UNAVAILABLE])


# The fair queue.


class Queue(FairQueue):
    """A queue whose clock is moved by the work that runs; `done` is the order in which it ran."""

    def __init__(self) -> None:
        self.time_us = 1_000_000
        self.waits: list[tuple[int, int]] = []
        self.done: list[Any] = []
        super().__init__(lambda work, us: self.waits.append((work, us)), lambda: self.time_us)

    async def work(self, caller: CallerQueue, label: object, *, work: int = REGISTRATIONS, cost_us: int = 100) -> None:
        """Acquire a turn, then run for `cost_us`."""
        await self.turn(caller, work)
        self.time_us += cost_us
        self.done.append(label)


def start(*works: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Start tasks that arrive in this order, in one loop iteration."""
    return [asyncio.ensure_future(work) for work in works]


async def test_an_idle_loop_grants_a_turn_immediately() -> None:
    queue = Queue()
    caller = queue.enter("a")
    with pytest.raises(StopIteration):
        queue.turn(caller, REGISTRATIONS).send(None)
    assert not queue.waits
    queue.leave(caller)


async def test_work_beyond_the_time_of_an_iteration_is_deferred() -> None:
    queue = Queue()
    caller = queue.enter("a")
    half_us = LOOP_TURN_US_MAX // 2
    await asyncio.gather(*start(*(queue.work(caller, number, cost_us=half_us) for number in range(4))))
    assert queue.done == [0, 1, 2, 3]
    assert [work for work, _ in queue.waits] == [REGISTRATIONS] * 2


async def test_callers_share_by_time_and_not_by_number_of_turns() -> None:
    queue = Queue()
    callers = {name: queue.enter(name) for name in ("long", "short")}
    works = start(
        *(queue.work(callers["long"], "long", cost_us=4_000) for _ in range(40)),
        *(queue.work(callers["short"], "short", cost_us=1_000) for _ in range(40)),
    )
    await asyncio.gather(*works)
    long_turns = queue.done[: len(queue.done) - queue.done[::-1].index("short")].count("long")
    assert 9 <= long_turns <= 12


async def test_each_turn_is_charged_its_own_time() -> None:
    queue = Queue()
    heavy, light = queue.enter("heavy"), queue.enter("light")
    await asyncio.gather(*start(queue.work(heavy, "heavy", cost_us=600), queue.work(light, "light", cost_us=100)))
    await asyncio.sleep(0)  # the iteration ends, and the last turn is charged
    assert (heavy.start_us, light.start_us) == (600, 100)


async def test_events_run_before_registrations_before_inspections() -> None:
    queue = Queue()
    caller = queue.enter("a")
    kinds = {INSPECTIONS: "inspection", REGISTRATIONS: "registration", EVENTS: "event"}
    first = start(queue.work(caller, "first", cost_us=LOOP_TURN_US_MAX))
    works = start(*(queue.work(caller, f"{name} {n}", work=kind) for n in range(2) for kind, name in kinds.items()))
    await asyncio.gather(*first, *works)
    assert queue.done[1:] == [
        "event 0", "event 1", "registration 0", "registration 1", "inspection 0", "inspection 1",
    ]  # fmt: skip


async def test_a_cancelled_waiter_is_skipped() -> None:
    queue = Queue()
    one, other = queue.enter("one"), queue.enter("other")
    works = start(
        queue.work(one, "first", cost_us=LOOP_TURN_US_MAX), *(queue.work(one, number) for number in range(3)),
        queue.work(other, "other"),
    )  # fmt: skip
    await asyncio.sleep(0)
    for work in works[1:3]:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    assert sorted(map(str, queue.done)) == ["2", "first", "other"]
    queue.leave(one)
    queue.leave(other)
    assert not queue.calls
    assert queue.enter("one") is not one


async def test_the_expected_wait_follows_recent_turns() -> None:
    queue = Queue()
    caller = queue.enter("a")
    works = start(*(queue.work(caller, number, cost_us=2_000) for number in range(200)))
    await works[179]
    assert 30 <= queue.expected_wait_ms(caller) <= 50
    await asyncio.gather(*works)


class Arrival(NamedTuple):
    """A unit of work of a caller that arrives after this many loop iterations."""

    caller: int
    after: int


@pytest.mark.slow  # each example runs an event loop of its own
@settings(max_examples=100, deadline=None)
@example([Arrival(0, 0)] * 4 + [Arrival(1, after) for after in (0, 1, 1, 2, 2)], 400)  # five turns pass the fourth of 0
@given(
    st.lists(st.builds(Arrival, st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=60),
    st.sampled_from([50, 400, LOOP_TURN_US_MAX]),
)
def test_a_waiter_waits_for_at_most_one_turn_of_each_other_caller(arrivals: list[Arrival], cost_us: int) -> None:
    history: list[tuple[str, int]] = []

    async def play() -> None:
        queue = Queue()
        callers = [queue.enter(str(number)) for number in range(5)]

        async def work(caller: int) -> None:
            history.append(("arrived", caller))
            await queue.work(callers[caller], None, cost_us=cost_us)
            history.append(("served", caller))

        tasks = []
        for iteration in range(7):
            tasks += start(*(work(arrival.caller) for arrival in arrivals if arrival.after == iteration))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)

    asyncio.run(play())
    check_turns(history, immediate=LOOP_TURN_US_MAX // cost_us + 1)
    assert sum(kind == "served" for kind, _ in history) == len(arrivals), "work was lost"


def check_turns(history: list[tuple[str, int]], immediate: int) -> None:
    """Assert the rule above for a history. The `immediate` turns that fit in one iteration go to any caller, in the
    iteration that ends with the grant of the waiter's turn, and in that in which the turn begins.
    """
    for own in {caller for _, caller in history}:
        waiting, others = 0, dict.fromkeys(range(5), 0)
        for kind, caller in history:
            if caller == own:
                waiting += 1 if kind == "arrived" else -1
                others = dict.fromkeys(range(5), 0)
            elif kind == "served" and waiting:
                others[caller] += 1
                assert others[caller] <= 1 + 2 * immediate, f"caller {own} waits while {caller} has turns: {history}"
