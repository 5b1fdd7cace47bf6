"""One day of a daemon, its clients and an operator: real components in one event loop, over faulty connections.

Each operation must end at its caller as the oracle says that the daemon has ended it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Any, Final

import uvloop
from purgatory_client import AsyncClient
from purgatory_client.batches import WaitBatch
from purgatory_client.waits import Wait

from purgatory.engine import codes
from purgatory.engine.calls import PassTime
from tests.engine import plain
from tests.histories.day.actors import Advancer, ClientActor, Day, event_of, operate, pass_by
from tests.histories.day.call_log import CallLog, SimulatedCall, now_ms
from tests.histories.day.checker import Checker
from tests.histories.day.model import run_of
from tests.histories.day.plan import Batch, Plan, PlannedWait, draw_plan, waking_events
from tests.histories.day.served import Served
from tests.histories.history import History
from tests.histories.tables import Seen, features_of
from tests.kit.eventually import PATIENCE_S
from tests.kit.proxy import FaultyProxy
from tests.kit.sizes import NOT_MODELLED, all_sizes

PATHS = ("client", "columns", "unary")
FAULTS = ("none", "cut", "kill", "listener")
POLL_S = 0.01
WAKE_AGAIN_S = 0.2
SETTLED_MS = 50
"""A connection that has carried a message this long after the last fault counts as working."""


OF_AN_EARLIER_LOOP: Final = "RuntimeError: Event loop is closed"
"""gRPC has one queue for all loops of a process. It logs this error for a call that an earlier day in this process
left unanswered on another type of loop.
"""
FAULTY_LISTENER: Final = "Listener failed in "
"""How the daemon logs a listener that raises."""


class LogWatch(logging.Handler):
    """Turns every logged error into a complaint: no internal error may occur, except in a listener that raises."""

    def __init__(self, complaints: list[str], *, faulty_listener: bool) -> None:
        super().__init__(logging.ERROR)
        self._complaints = complaints
        self._expected: Final = [OF_AN_EARLIER_LOOP, *[FAULTY_LISTENER] * faulty_listener]

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if not any(expected in text for expected in self._expected):
            self._complaints.append(f"logged by {record.name}: {text}")


class SimulatedDay:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = CallLog()
        self.served = Served(plan)
        self.proxies: list[FaultyProxy] = []
        self.actors: list[ClientActor] = []
        self.advancers: list[Advancer] = []
        self.healed_ms = 0.0
        """The time at which the last fault ended."""

    async def run(self, history: History) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_exception)
        watch = LogWatch(self.ledger.complaints, faulty_listener=self.plan.faulty_listener)
        logging.getLogger().addHandler(watch)
        try:
            async with AsyncExitStack() as stack:
                await self.served.start()
                for _ in range(self.plan.clients + self.plan.advancers):
                    proxy = FaultyProxy(lambda: self.served.address)
                    self.proxies.append(await stack.enter_async_context(proxy))
                await self._live()
                if self.plan.ends_with_drain:
                    await self._end_with_drain()
                else:
                    await self._end_healed()
                await self._close_all()
        finally:
            logging.getLogger().removeHandler(watch)
        self._judge(history)

    def _on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        # gRPC polls for all event loops of a process at once: a message of the previous day may arrive late.
        if isinstance(context.get("exception"), RuntimeError) and "PollerCompletionQueue" in str(
            context.get("message")
        ):
            return
        self.ledger.complaints.append(f"uncaught: {context.get('message')} {context.get('exception')!r}")

    # The day.

    async def _live(self) -> None:
        plan, day = self.plan, Day()
        self.actors = [ClientActor(n, plan, self.proxies[n], self.ledger) for n in range(plan.clients)]
        proxies = self.proxies[plan.clients :]
        self.advancers = [Advancer(n, proxy, self.ledger) for n, proxy in enumerate(proxies)]
        lives = [actor.live(day, plan.steps[actor.number]) for actor in self.actors]
        lives += [advancer.live(day, plan.pushes[n]) for n, advancer in enumerate(self.advancers)]
        lives += [operate(day, plan.cancels, self.actors, lambda: self.served.address)]
        lives += [pass_by(day, plan.passers, lambda: self.served.address, self.ledger)]
        lives += [self._restart(day), self._inflict(day)]
        await asyncio.gather(*lives)
        for proxy in self.proxies:
            proxy.heal()
        self.healed_ms = now_ms()

    async def _inflict(self, day: Day) -> None:
        async with asyncio.TaskGroup() as faults:
            for fault in self.plan.faults:
                await day.until(fault.at_ms)
                faults.create_task(self.proxies[fault.actor].inflict(fault.kind, fault.amount))

    async def _restart(self, day: Day) -> None:
        for restart in self.plan.restarts:
            await day.until(restart.at_ms)
            if restart.graceful:
                await self.served.drain()
            await self.served.stop()
            await asyncio.sleep(restart.away_ms / 1_000)
            await self.served.start()

    # The end of the day.

    def _pending_calls(self) -> list[asyncio.Task[None]]:
        return [task for actor in self.actors for task in actor.calls if not task.done()]

    async def _end_healed(self) -> None:
        """With all connections repaired and all marks at their final values, every wait ends, and the daemon becomes
        empty.
        """
        served = self.served
        async with AsyncClient(served.address) as waker:
            events = [event_of(event) for event in waking_events()]
            deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
            while (pending := self._pending_calls()) and asyncio.get_running_loop().time() < deadline_s:
                await waker.advance_many(events)
                await asyncio.wait(pending, timeout=WAKE_AGAIN_S)
        for call in self.ledger.calls:
            if not call.ended:
                self.ledger.complaints.append(f"never ended: client {call.client} {call.what}")
        engine = served.host.engine
        await self._eventually(lambda: engine.pending == 0, lambda: f"{engine.pending} are pending at the end")
        await self._eventually(self._all_acknowledged, lambda: "results stay unacknowledged")
        for actor in self.actors:
            await self._eventually(
                lambda actor=actor: self._knows_its_session(actor),  # type: ignore[misc]
                lambda actor=actor: f"client {actor.number} knows another incarnation than its session has",  # type: ignore[misc]
            )
            if actor.client.pending:
                self.ledger.complaints.append(f"client {actor.number} has {actor.client.pending} pending at the end")

    def _knows_its_session(self, actor: ClientActor) -> bool:
        """A session whose stream has just been opened may be ahead of its client, which has yet to read the answer."""
        session = self.served.host.sessions.find(actor.client.session_id)
        known = actor.client._session._core.incarnation
        return session is None or session.stream is None or session.incarnation == known

    def _all_acknowledged(self) -> bool:
        for session in self.served.host.sessions:
            session.outbox.check()
        sessions = [self.served.host.sessions.find(actor.client.session_id) for actor in self.actors]
        return all(session is None or not session.outbox.unacknowledged for session in sessions)

    async def _end_with_drain(self) -> None:
        """Drain the daemon while waits are pending: every caller with a working connection gets an answer."""
        await self._eventually(self._all_connected, lambda: "clients do not come back")
        self.ledger.drained = [call for call in self.ledger.calls if self._is_known(call)]
        await self.served.drain()
        if self.served.host.engine.pending:
            self.ledger.complaints.append(f"{self.served.host.engine.pending} are pending after a drain")
        await self._eventually(
            lambda: all(call.ended for call in self.ledger.drained), lambda: "drained calls have no answer"
        )

    def _all_connected(self) -> bool:
        """Whether every client with pending waits has a stream on which both sides recently received a message."""
        streams = {
            stream.session.session_id: stream
            for stream in self.served.host.sessions.streams()
            if stream.session.stream is stream
        }
        for client in (actor.client for actor in self.actors if actor.client.pending):
            stream = streams.get(client.session_id)
            if stream is None:
                return False
            if min(stream.last_read_ms, client._session._received_at * 1_000) < self.healed_ms + SETTLED_MS:
                return False
        return True

    def _is_known(self, call: SimulatedCall) -> bool:
        """Whether the daemon has pending operations of the call in a session with a stream."""
        session = self.served.host.sessions.find(call.session_id) if call.session_id else None
        if call.ended or call.cancelled or session is None or session.stream is None:
            return False
        ids: list[int] = []
        if isinstance(call.wait, Wait):
            ids = [call.wait.operation_id]
        elif isinstance(call.wait, WaitBatch) and call.wait.operation_id:
            ids = [call.wait.operation_id + place for place in call.wait.pending_positions()]
        return any(self.served.host.engine.inspection.describe(session.owner, one) is not None for one in ids)

    async def _close_all(self) -> None:
        """Close all clients. Their sessions end after the time to live, and leave nothing behind."""
        for advancer in self.advancers:
            await advancer.client.close()
        for actor in self.actors:
            await actor.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._pending_calls())
        served, sessions = self.served, self.served.host.sessions
        if not self.plan.ends_with_drain:
            await self._eventually(lambda: sessions.connected == 0, lambda: "streams stay open")
            served.clock.ahead_ms += self.plan.session_ttl_ms + 1
            await self._eventually(lambda: sessions.count == 0, lambda: f"{sessions.count} sessions stay")
            self._check_empty()
        await served.stop()

    def _check_empty(self) -> None:
        engine = self.served.host.engine
        next_ms = engine.next_expiration_ms()
        if next_ms >= 0:
            engine.perform(None, PassTime(1), next_ms + 60_000_000)
        left = {
            "pending": engine.pending,
            "watched": sum(engine.inspection.counts(kind).watched for kind in codes.KINDS),
            "unacknowledged": self.served.host.sessions.unacknowledged_results,
            "timed": engine.next_expiration_ms() + 1,
        }
        if any(left.values()):
            self.ledger.complaints.append(f"the daemon is not empty at the end: {left}")

    async def _eventually(self, condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        while not condition():
            if asyncio.get_running_loop().time() > deadline_s:
                self.ledger.complaints.append(otherwise())
                return
            await asyncio.sleep(POLL_S)

    # The verdict.

    def _judge(self, history: History) -> None:
        runs = [run_of(tap.entries, tap.session_ids) for tap in self.served.taps]
        checker = Checker(self.plan, self.ledger, runs)
        checker.check()
        for run, tap in zip(runs, self.served.taps, strict=True):
            for kind, expected in run.counts.items():
                found = plain.Counts(*(getattr(tap.inspection.counts(kind), name) for name in plain.Counts._fields))
                if found != expected:
                    checker.complaints.append(f"{codes.KIND_NAMES[kind]}: {found}, expected {expected}")
        incarnations = Counter(name for tap in self.served.taps for name in tap.incarnations.values())
        if len(incarnations) < incarnations.total():
            checker.complaints.append(f"two sessions with one incarnation: {incarnations.most_common(1)}")
        if self.served.listener.reaper_failures:
            checker.complaints.append(f"the reaper failed {self.served.listener.reaper_failures} times")
        history.judge.complaints.extend(checker.complaints)
        lost = sum(not end.told for run in runs for end in run.ends)
        faults = sum(proxy.faults for proxy in self.proxies)
        history.figures.update(checker.outcomes, waits=self.plan.operations, faults=faults)
        history.figures["waits that lost their session"] += lost


def note_pairs(plan: Plan, seen: Seen) -> None:
    """The pairs of a day: each wait meets its path, and the faults of the day."""
    faults = ["cut"] * bool(plan.faults) + ["kill"] * any(not one.graceful for one in plan.restarts)
    faults += ["listener"] * plan.faulty_listener
    for what in (step.what for steps in plan.steps for step in steps):
        if isinstance(what, Batch):
            for operation in what.operations:
                seen.note(features_of_wait(operation), "columns", *(faults or ["none"]))
        elif isinstance(what, PlannedWait):
            seen.note(features_of_wait(what), "unary" if what.once else "client", *(faults or ["none"]))


def features_of_wait(wait: PlannedWait) -> list[str]:
    return [*features_of(wait.operation()), *["cancelled"] * (wait.cancel_after_ms is not None)]


def run(history: History) -> None:
    """Run the day of a seed, from plan to verdict, on an event loop of its own."""
    plan = draw_plan(history.seed)
    if "cut" not in history.faults:
        plan.faults = []
    if "kill" not in history.faults:
        plan.restarts = []
    plan.faulty_listener &= "listener" in history.faults
    note_pairs(plan, history.seen)
    factory = uvloop.new_event_loop if plan.uvloop else None
    small = all_sizes(plan.internal_size, NOT_MODELLED) if plan.internal_size else nullcontext()
    with small, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(SimulatedDay(plan).run(history))
    if history.judge.complaints:
        history.judge.complaints.insert(0, plan.describe())
