"""One day of a daemon, its clients and an operator: real components in one event loop, over faulty connections.

Each operation must end at its caller as the engine of the daemon has ended it.
"""

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest import mock

import grpc.aio
import uvloop
from purgatory_client.batches import WaitBatch
from purgatory_client.waits import Wait

from purgatory.clock import SystemClock
from purgatory.engine import codes
from purgatory.engine.calls import PassTime
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.draining import drain
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Listener
from purgatory.service.sessions import session_table
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from purgatory.service.translate import batch_limits
from tests.histories.day.actors import Advancer, CallLog, ClientActor, Day, SimulatedCall, now_ms, operate, pass_by
from tests.histories.day.checker import Checker, DaemonRecord
from tests.histories.day.plan import Plan, draw_plan
from tests.histories.history import History
from tests.histories.tables import Seen, features_of
from tests.kit.eventually import eventually
from tests.kit.proxy import NOBODY, FaultyProxy
from tests.kit.served_host import start_server, with_faults
from tests.kit.sizes import NOT_CUT, all_sizes

PATHS = ("client", "columns", "unary")
FAULTS = ("none", "cut", "kill", "listener")
SETTLED_MS = 50
"""A connection that has carried a message this long after the last fault counts as working."""
DRAIN_S: Final = 10.0


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


class DayClock:
    """The machine's clock, which can be moved past the sessions' time to live after the day."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Milliseconds; equal to that of the actors until the day is over."""
        return self._clock.now_ms() + self.ahead_ms

    def ceiling_ms(self) -> int:
        return self._clock.ceiling_ms() + self.ahead_ms


class Served:
    """The daemon: a real host and gRPC server on a free port, which can be replaced by a new one without its state."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.clock: Final = DayClock()
        self.hosts: Final[list[Host]] = []
        self.records: Final[list[DaemonRecord]] = []
        """One for each daemon, in order."""
        self.address = NOBODY
        self._server: grpc.aio.Server | None = None

    @property
    def host(self) -> Host:
        """The last one."""
        return self.hosts[-1]

    async def start(self) -> None:
        plan, record = self._plan, DaemonRecord()
        settings = HostSettings(
            limits=LimitsSettings(
                unacknowledged_results_max=plan.unacknowledged_results_max,
                sessions_max=plan.sessions_max,
            ),
            session=SessionSettings(
                heartbeat_interval_ms=plan.heartbeat_interval_ms,
                ttl_ms=plan.session_ttl_ms,
            ),
        )
        faulty = [with_faults(Listener())] if plan.faulty_listener else []
        engine = Engine(EngineLimits(), self.clock.now_ms())
        self.hosts.append(Host(engine, self.clock, settings, *faulty, record))
        self.records.append(record)
        self._server, port = await start_server(self.host, [("grpc.so_reuseport", 0)])
        self.address = f"127.0.0.1:{port}"

    async def drain(self) -> None:
        """End the daemon as SIGTERM does. Call `stop` after it."""
        await drain(self.host, DRAIN_S)

    async def stop(self) -> None:
        """Stop the daemon. Without a preceding `drain` this corresponds to a kill."""
        self.address = NOBODY
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)
            assert not any(task.done() for task in self.host._tasks), "a task of the host has ended by itself"
            await self.host.stop()


class SimulatedDay:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log = CallLog()
        self.served = Served(plan)
        self.proxies: list[FaultyProxy] = []
        self.actors: list[ClientActor] = []
        self.advancers: list[Advancer] = []
        self.healed_ms = 0.0
        """The time at which the last fault ended."""

    async def run(self, history: History) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_exception)
        watch = LogWatch(self.log.complaints, faulty_listener=self.plan.faulty_listener)
        logging.getLogger().addHandler(watch)
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self.served.stop)
                await self.served.start()
                for _ in range(len(self.plan.steps) + len(self.plan.pushes)):
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
        self.log.complaints.append(f"uncaught: {context.get('message')} {context.get('exception')!r}")

    # The day.

    async def _live(self) -> None:
        plan, day, proxies = self.plan, Day(), iter(self.proxies)
        self.actors = [ClientActor(n, plan, next(proxies), self.log) for n, _ in enumerate(plan.steps)]
        self.advancers = [Advancer(n, next(proxies), self.log) for n, _ in enumerate(plan.pushes)]
        lives = [actor.live(day, steps) for actor, steps in zip(self.actors, plan.steps, strict=True)]
        lives += [advancer.live(day, pushes) for advancer, pushes in zip(self.advancers, plan.pushes, strict=True)]
        lives += [operate(day, plan.cancels, self.actors, lambda: self.served.address)]
        lives += [pass_by(day, plan.passers, lambda: self.served.address, self.log)]
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
        """With all connections repaired every wait ends, at the latest by its timeout, and the daemon becomes empty."""
        engine = self.served.host.engine
        await eventually(
            lambda: not self._pending_calls(),
            lambda: f"all waits end: {[call for call in self.log.calls if not call.ended][:3]}",
        )
        await eventually(lambda: engine.pending == 0, lambda: f"nothing is pending at the end: {engine.pending}")
        await eventually(self._all_acknowledged, "all results are acknowledged")
        for actor in self.actors:
            await eventually(
                partial(self._knows_its_session, actor),
                f"client {actor.number} knows the incarnation of its session",
            )
            if actor.client.pending:
                self.log.complaints.append(f"client {actor.number} has {actor.client.pending} pending at the end")

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
        await eventually(self._all_connected, "clients come back")
        self.log.drained = [call for call in self.log.calls if self._is_known(call)]
        await self.served.drain()
        if self.served.host.engine.pending:
            self.log.complaints.append(f"{self.served.host.engine.pending} are pending after a drain")
        await eventually(lambda: all(call.ended for call in self.log.drained), "drained calls have an answer")

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
        await eventually(lambda: not self._pending_calls(), "closing ends all calls")
        sessions = self.served.host.sessions
        if not self.plan.ends_with_drain:
            await eventually(lambda: sessions.connected == 0, "all streams end")
            self.served.clock.ahead_ms += self.plan.session_ttl_ms + 1
            await eventually(lambda: sessions.count == 0, lambda: f"no session stays: {sessions.count}")
            self._check_empty()

    def _check_empty(self) -> None:
        engine = self.served.host.engine
        next_ms = engine.next_expiration_ms()
        if next_ms >= 0:
            engine.perform(None, PassTime(1), next_ms + 60_000_000)
        engine.check()
        left = {
            "pending": engine.pending,
            "watched": sum(engine.inspection.counts(kind).watched for kind in codes.KINDS),
            "unacknowledged": self.served.host.sessions.unacknowledged_results,
            "timed": engine.next_expiration_ms() + 1,
        }
        if any(left.values()):
            self.log.complaints.append(f"the daemon is not empty at the end: {left}")

    # The verdict.

    def _judge(self, history: History) -> None:
        records = self.served.records
        checker = Checker(self.plan, self.log, records)
        checker.check()
        for host, record in zip(self.served.hosts, records, strict=True):
            ended = Counter((end.ended.kind, end.ended.outcome) for end in record.ends)
            for kind in codes.KINDS:
                counts = host.engine.inspection.counts(kind)
                found = [counts.registered, counts.satisfied, counts.failed, counts.expired, counts.cancelled]
                expected = [record.accepted[kind], *(ended[kind, outcome] for outcome in range(1, 5))]
                if found != expected:
                    checker.complaints.append(f"{codes.KIND_NAMES[kind]}: {found} counted, {expected} reported")
        history.judge.complaints.extend(checker.complaints)
        waits = sum(len(request.operations) for request in self.plan.requests)
        history.figures.update(checker.outcomes, waits=waits, faults=sum(proxy.faults for proxy in self.proxies))
        lost = sum(not end.has_result for record in records for end in record.ends)
        history.figures["waits that lost their session"] += lost


def note_pairs(plan: Plan, seen: Seen) -> None:
    """The pairs of a day: each wait meets its path, and the faults of the day."""
    faults = ["cut"] * bool(plan.faults) + ["kill"] * any(not one.graceful for one in plan.restarts)
    faults += ["listener"] * plan.faulty_listener
    for request in plan.requests:
        is_cancelled = request.path != "columns" and request.cancel_after_ms is not None
        for operation in request.operations:
            features = [*features_of(operation), *["cancelled"] * is_cancelled]
            seen.note(features, request.path, *(faults or ["none"]))


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
    small = all_sizes(plan.internal_size, NOT_CUT) if plan.internal_size else nullcontext()
    finished = mock.patch.object(session_table, "FINISHED_TTL_MS", plan.finished_ttl_ms)
    batches = mock.patch.object(batch_limits, "OPERATIONS_MAX", plan.operations_per_batch_max)
    with small, finished, batches, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(SimulatedDay(plan).run(history))
    if history.judge.complaints:
        history.judge.complaints.insert(0, str(replace(plan, steps=[], pushes=[], passers=[])))
