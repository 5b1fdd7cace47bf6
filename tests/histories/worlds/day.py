"""One day of a daemon, its clients and an operator: real components in one event loop, over faulty connections.

A day is drawn from its seed before it begins. The same seed plans the same calls at the same times; how they interleave
is not reproducible, because sockets are real. Sizes and the mix differ between seeds (swarm testing), so that rare
actions are frequent in some. Each operation must end at its caller as the engine of the daemon has ended it.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from logging.handlers import BufferingHandler
from typing import Any, Final
from unittest import mock

import grpc.aio
import uvloop
from purgatory_client import AsyncClient
from purgatory_client.batches import WaitBatch
from purgatory_client.errors import ClientClosed, InvalidRequest, LimitExceeded, NotFound, Unavailable

from purgatory.service.draining import drain
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Listener
from purgatory.service.sessions import session_table
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from purgatory.service.translate import batch_limits
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.engine import plain
from tests.histories.daemon_record import UNARY, DaemonRecord, left_in
from tests.histories.day_actors import ClientActor, Pusher, Request, SimulatedCall, now_ms
from tests.histories.history import History
from tests.histories.judge import Registration, ReportedResult
from tests.histories.plan import EVENT_TYPES, Generator, one_owner
from tests.histories.tables import OF_OPERATIONS, features_of, features_of_end
from tests.kit.eventually import eventually
from tests.kit.proxy import NOBODY, FaultyProxy
from tests.kit.served_host import serving, with_faults
from tests.kit.sizes import NOT_CUT, all_sizes

PATHS = ("client", "columns", "unary")
FAULTS = ("none", "cut", "kill", "listener")
FEATURES = (*OF_OPERATIONS.keys() - {"stale timeout"}, "returning session")
PROXY_FAULTS = ("drop", "cut", "hold", "swallow", "refuse", "half_close_up", "half_close_down")
SESSIONS_SPARE = 4
"""Sessions beyond those of the clients: one for the passer-by, and some that have not been left yet."""
PASSER_INTERVAL_MS = 4
INVALID = -5
"""The offset of an item that the daemon must refuse."""
RISING = {plain.LEADER_APPEND: 6, plain.HIGH_WATERMARK: 6, plain.LOG_START_OFFSET: 2, plain.KEY_SIGNALLED: 5}
"""The frequency of events that raise marks; others remove partitions, change leaders, fail storage."""
EXTENDED_S: Final = 0.5
SETTLED_MS = 50
"""A connection that has carried a message this long after the last fault counts as working."""
DRAIN_S: Final = 10.0
RECORDS_MAX: Final = 1_000_000
LATE_MESSAGES: Final = ("RuntimeError: Event loop is closed", "PollerCompletionQueue")
"""gRPC has one queue for all loops of a process. It reports these for calls that an earlier day in this process left
unanswered on another loop.
"""
FAULTY_LISTENER: Final = "Listener failed in "
"""How the daemon logs a listener that raises."""
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""The daemon is not there, or it stopped after it had accepted the call, which gRPC's server then cancels."""
CUT_OFF: Final = "Internal error from Core"
"""gRPC's client says this if the connection breaks while the call begins. No daemon does."""


class DayPlan:
    """Settings of a day, of the daemon, and of the clients."""

    def __init__(self, seed: int, rng: random.Random) -> None:
        self.day_ms = rng.choice((500, 900, 1_300))
        self.uvloop = rng.random() < 0.5
        self.ends_with_drain = rng.random() < 0.3
        self.heartbeat_interval_ms = rng.choice((80, 150, 250))
        self.session_ttl_ms = rng.choice((150, 400, 60_000, 60_000))
        self.finished_ttl_ms = (1, 50, 5_000)[seed % 3]
        self.unacknowledged_results_max = rng.choice((1_000_000, 1_000_000, 1_000_000, 30))
        self.operations_per_batch_max = rng.choice((100_000, 100_000, 7))
        self.give_up_after: float | None = rng.choice((None, None, None, 0.25))
        self.has_faulty_listener = seed % 3 == 2
        """Whether the daemon has a listener that raises in each of its hooks."""
        self.internal_size = (0, 0, 2, 8, 0)[seed % 5]
        """The value of all internal sizes of daemon and clients; 0: their own."""
        self.clients = rng.randint(1, 6)
        self.pushers = rng.randint(1, 3)
        self.sessions_max = 10_000


class SimulatedDay:
    """The daemon, which is replaced by a new one without its state at a restart, and all who call it."""

    def __init__(self, history: History, plan: DayPlan) -> None:
        self._history: Final = history
        self._plan: Final = plan
        self._rng: Final = history.chance
        self._complain: Final = history.judge.complaints.append
        self._deeds: Final[list[tuple[int, Callable[[], Awaitable[object]]]]] = []
        """Actions, each with its time in milliseconds since the start of the day."""
        self._requests: Final[list[Request]] = []
        self._hosts: Final[list[Host]] = []
        self._records: Final[list[DaemonRecord]] = []
        self._address = NOBODY
        self._daemon = AsyncExitStack()
        self._has_cuts = False
        self._restarts: Final[list[bool]] = []
        """For each restart, whether the daemon drains before."""
        self._proxies: Final[list[FaultyProxy]] = []
        self._clients: list[ClientActor] = []
        self._pushers: list[Pusher] = []
        self._drained: list[SimulatedCall] = []
        """Calls known to the daemon, over a working connection, when it was drained."""
        self._healed_ms = 0.0
        """The time at which the last fault ended."""
        history.judge.rules.append(self._why_not_from_engine)

    @property
    def _host(self) -> Host:
        """The last one."""
        return self._hosts[-1]

    async def run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_exception)
        watch = BufferingHandler(RECORDS_MAX)
        watch.setLevel(logging.ERROR)
        logging.getLogger().addHandler(watch)
        try:
            async with AsyncExitStack() as stack:
                for _ in range(self._plan.clients + self._plan.pushers):
                    self._proxies.append(await stack.enter_async_context(FaultyProxy(lambda: self._address)))
                self._draw()
                await self._start()
                stack.push_async_callback(self._stop)
                await self._live()
                await (self._end_with_drain() if self._plan.ends_with_drain else self._end_healed())
                await self._close_all()
        finally:
            logging.getLogger().removeHandler(watch)
        self._judge()
        expected = (LATE_MESSAGES[0], FAULTY_LISTENER) if self._plan.has_faulty_listener else LATE_MESSAGES[:1]
        for text in map(watch.format, watch.buffer):
            if not any(one in text for one in expected):
                self._complain(f"logged as an error: {text}")

    def _on_loop_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # gRPC polls for all event loops of a process at once: a message of the previous day may arrive late.
        if not isinstance(context.get("exception"), RuntimeError) or LATE_MESSAGES[1] not in str(context["message"]):
            self._complain(f"uncaught: {context.get('message')} {context.get('exception')!r}")

    # The daemon: a real host and gRPC server on a free port.

    async def _start(self) -> None:
        plan, record = self._plan, DaemonRecord()
        limits = LimitsSettings(
            unacknowledged_results_max=plan.unacknowledged_results_max, sessions_max=plan.sessions_max
        )
        session = SessionSettings(heartbeat_interval_ms=plan.heartbeat_interval_ms, ttl_ms=plan.session_ttl_ms)
        faulty = with_faults(Listener()) if plan.has_faulty_listener else None
        settings = HostSettings(limits=limits, session=session)
        served = serving(settings, listener=faulty, options=[("grpc.so_reuseport", 0)])
        daemon = await self._daemon.enter_async_context(served)
        daemon.host.listeners.append(record)
        self._hosts.append(daemon.host)
        self._records.append(record)
        self._address = daemon.address

    async def _stop(self) -> None:
        """Stop the daemon. If it was not drained before, this corresponds to a kill."""
        self._address = NOBODY
        assert not any(task.done() for task in self._host._tasks), "a task of the host has ended by itself"
        await self._daemon.aclose()

    async def _restart(self, is_drained: bool, away_ms: int) -> None:
        if is_drained:
            await drain(self._host, DRAIN_S)
        await self._stop()
        await asyncio.sleep(away_ms / 1_000)
        await self._start()

    # The plan.

    def _draw(self) -> None:
        plan = self._plan
        proxies = iter(self._proxies)
        judge = self._history.judge
        self._clients = [ClientActor(n, next(proxies), plan.give_up_after, judge) for n in range(plan.clients)]
        self._pushers = [Pusher(number, next(proxies)) for number in range(plan.pushers)]
        replaced = self._draw_calls(self._generator())
        self._draw_faults()
        if self._history.seed % 2:  # each new session evicts a finished one while clients keep registering
            plan.sessions_max = plan.clients + replaced + SESSIONS_SPARE
            self._deeds.append((0, partial(self._pass_by, range(0, plan.day_ms, PASSER_INTERVAL_MS))))
        for at_ms in [self._rng.randrange(plan.day_ms) for _ in range(self._rng.choice((0, 5, 20)))]:
            self._deeds.append((at_ms, partial(self._extend, self._rng.choice(self._clients))))
        self._note_pairs()

    def _generator(self) -> Generator:
        """Draws waits and events as one history, in which most waits are near the marks."""
        rng = self._rng
        generator = one_owner(self._history.seed, timeout_max_ms=rng.choice((100, 300, 900)))
        generator.swarm.nonsense = generator.swarm.stale = generator.swarm.timeout_min_ms = 0
        generator.swarm.failures /= 10  # a key that has failed once fails all later waits of the day
        generator.swarm.epochs = rng.choice((0.0, 0.0, 0.2))
        volatile = rng.choice((0.0, 0.02, 0.2))
        generator.event_table = rng.choices(EVENT_TYPES, [RISING.get(one, volatile) for one in EVENT_TYPES], k=1_024)
        return generator

    def _draw_calls(self, generator: Generator) -> int:
        """Calls of the clients, the pushers and the operator. Returns how many clients are replaced."""
        rng, day_ms, replaced = self._rng, self._plan.day_ms, 0
        cancelled, once = rng.choice((0.0, 0.1, 0.5)), rng.choice((0.0, 0.1))
        pushes: Counter[Pusher] = Counter()
        for at_ms in sorted(rng.randint(0, day_ms) for _ in range(rng.randint(60, 500))):
            if rng.random() < 0.5:
                pusher = rng.choice(self._pushers)
                pushes[pusher] += 1
                events = tuple(generator.event() for _ in range(rng.choice((1, 3, 10, 20))))
                self._deeds.append((at_ms, partial(pusher.push, pushes[pusher], events)))
                continue
            client = rng.choice(self._clients)
            dice, kind = rng.random(), rng.choice(generator.swarm.kinds)
            after_ms = rng.choice((0, 1, 20, 300)) if rng.random() < cancelled else None
            if dice < 0.007:
                replaced += 1
                self._deeds.append((at_ms, client.replace))
            elif dice < 0.12:
                batch = tuple(self._operation(generator, kind) for _ in range(rng.choice((1, 5, 40))))
                self._request(at_ms, client, Request(batch, "columns", after_ms))
            else:
                path = "unary" if rng.random() < once else "client"
                for _ in range(rng.choice((1, 1, 4))):  # at the same instant, so that the client can combine them
                    self._request(at_ms, client, Request((self._operation(generator, kind),), path, after_ms))
        if rng.random() < 0.4:
            names = [*(sketch.name for sketch in generator.sketches), *generator.keys]
            targets: list[plain.Name | ClientActor] = [*self._clients, *names]
            for at_ms in [rng.randint(0, day_ms) for _ in range(rng.randint(1, 8))]:
                self._deeds.append((at_ms, partial(self._operator_cancels, rng.choice(targets))))
        return replaced

    def _operation(self, generator: Generator, kind: int) -> plain.Operation:
        drawn = generator.operation(0, kind)
        if drawn.heartbeat_timeout_ms == 0:  # the client refuses it
            drawn = drawn._replace(heartbeat_timeout_ms=1)
        if self._rng.random() < 0.02:
            return drawn._replace(items=tuple(item._replace(offset=INVALID) for item in drawn.items))
        return drawn

    def _request(self, at_ms: int, client: ClientActor, request: Request) -> None:
        self._requests.append(request)
        self._deeds.append((at_ms, partial(client.wait, request)))

    def _draw_faults(self) -> None:
        rng, day_ms, allowed = self._rng, self._plan.day_ms, self._history.faults
        kinds = rng.sample(PROXY_FAULTS, rng.randint(1, len(PROXY_FAULTS)))
        cuts = rng.choice((0, 5, 15, 40)) if "cut" in allowed else 0
        self._has_cuts = cuts > 0
        for _ in range(cuts):
            kind = rng.choice(kinds)
            amount = rng.randint(0, 2_000) if kind == "cut" else rng.choice((5, 50, 200, 700))
            proxy = rng.choice(self._proxies)
            self._deeds.append((rng.randint(0, day_ms), partial(proxy.inflict, kind, amount)))
        if rng.random() < 0.3 and "kill" in allowed:
            at_ms = rng.randint(day_ms // 4, day_ms)
            self._restarts.append(rng.random() < 0.5)
            self._deeds.append((at_ms, partial(self._restart, self._restarts[0], rng.choice((0, 100, 500)))))

    def _note_pairs(self) -> None:
        """Each wait meets its path, and the faults of the day."""
        for request in self._requests:
            is_cancelled = request.path != "columns" and request.cancel_after_ms is not None
            for operation in request.operations:
                features = [*features_of(operation), *["cancelled"] * is_cancelled]
                self._history.seen.note(features, request.path, *self._faults_of_day)

    @property
    def _faults_of_day(self) -> list[str]:
        faults = ["cut"] * self._has_cuts + ["kill"] * (False in self._restarts)
        return faults + ["listener"] * self._plan.has_faulty_listener or ["none"]

    # The day.

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.TaskGroup() as deeds:
            for at_ms, deed in sorted(self._deeds, key=lambda one: one[0]):
                await asyncio.sleep(max(0.0, began_s + at_ms / 1_000 - loop.time()))
                deeds.create_task(deed())  # type: ignore[arg-type]
        for proxy in self._proxies:
            proxy.heal()
        self._healed_ms = now_ms()

    async def _operator_cancels(self, target: plain.Name | ClientActor) -> None:
        """An operator with a reliable connection cancels all on a partition, on a key, or in a client's session."""
        async with AsyncClient(self._address) as client:
            try:
                if isinstance(target, ClientActor):
                    await client.cancel(session_id=target.client.session_id)
                elif target[1] < 0:
                    await client.cancel(key=target[0])
                else:
                    await client.cancel(partition=target)
            except (NotFound, Unavailable):
                pass  # the session has not been opened yet, or the daemon is down

    async def _extend(self, actor: ClientActor) -> None:
        """A client lets one operation of each of its calls wait longer."""
        calls = [one for one in actor.calls if not one.is_ended and one.session_id == actor.client.session_id]
        calls = [one for one in calls if one.operation_id(1)]
        try:
            missed = await actor.client.extend([one.operation_id(1) for one in calls], EXTENDED_S)
        except (NotFound, Unavailable, ClientClosed):
            return
        for call in calls:
            if call.operation_id(1) not in missed:
                self._history.seen.note(["extended"], call.request.path, *self._faults_of_day)

    async def _pass_by(self, times_ms: range) -> None:
        """Open one session after another and leave each at once. Only a daemon that is shutting down may refuse to open
        one.
        """
        for at_ms in times_ms:
            await asyncio.sleep(PASSER_INTERVAL_MS / 1_000)
            async with grpc.aio.insecure_channel(self._address) as channel:
                stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
                opening = wire.SessionRequest(open=wire.OpenSession(session_id=f"passer-{at_ms}"))
                try:
                    await anext(aiter(stub.Session(iter([opening]))), None)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in GONE and error.details() != CUT_OFF:
                        self._complain(f"no session for {opening}: {error.code().name}: {error.details()}")

    # The end of the day.

    def _waiting(self) -> list[SimulatedCall]:
        return [call for client in self._clients for call in client.calls if not call.is_ended]

    async def _end_healed(self) -> None:
        """With all connections repaired every wait ends, at the latest by its timeout, and the daemon becomes empty."""
        await eventually(lambda: not self._waiting(), lambda: f"all waits end: {self._waiting()[:3]}")
        await eventually(lambda: self._host.engine.pending == 0, "nothing is pending at the end")
        await eventually(self._all_acknowledged, "all results are acknowledged")
        for actor in self._clients:
            await eventually(partial(self._knows_its_session, actor), f"client {actor.number} knows its session")
            if actor.client.pending:
                self._complain(f"client {actor.number} has {actor.client.pending} pending at the end")

    def _knows_its_session(self, actor: ClientActor) -> bool:
        """A session whose stream has just been opened may be ahead of its client, which has yet to read the answer."""
        session = self._host.sessions.find(actor.client.session_id)
        known = actor.client._session._core.incarnation
        return session is None or session.stream is None or session.incarnation == known

    def _all_acknowledged(self) -> bool:
        for session in self._host.sessions:
            session.outbox.check()
        sessions = [self._host.sessions.find(actor.client.session_id) for actor in self._clients]
        return all(session is None or not session.outbox.unacknowledged for session in sessions)

    async def _end_with_drain(self) -> None:
        """Drain the daemon while waits are pending: every caller with a working connection gets an answer."""
        await eventually(self._all_connected, "clients come back")
        self._drained = [call for call in self._waiting() if self._is_known(call)]
        await drain(self._host, DRAIN_S)
        if self._host.engine.pending:
            self._complain(f"{self._host.engine.pending} are pending after a drain")
        await eventually(lambda: all(call.is_ended for call in self._drained), "drained calls have an answer")

    def _all_connected(self) -> bool:
        """Whether every client with pending waits has a stream on which both sides recently received a message."""
        streams = {
            stream.session.session_id: stream
            for stream in self._host.sessions.streams()
            if stream.session.stream is stream
        }
        for client in (actor.client for actor in self._clients if actor.client.pending):
            stream = streams.get(client.session_id)
            if stream is None:
                return False
            if min(stream.last_read_ms, client._session._received_at * 1_000) < self._healed_ms + SETTLED_MS:
                return False
        return True

    def _is_known(self, call: SimulatedCall) -> bool:
        """Whether the daemon has pending operations of the call in a session with a stream."""
        session = self._host.sessions.find(call.session_id) if call.session_id else None
        if call.is_cancelled or session is None or session.stream is None:
            return False
        places = call.wait.pending_positions() if isinstance(call.wait, WaitBatch) else [0]
        ids = [call.operation_id(place + 1) for place in places if call.operation_id(1)]
        return any(self._host.engine.inspection.describe(session.owner, one) is not None for one in ids)

    async def _close_all(self) -> None:
        """Close all clients. Their sessions end after the time to live, and leave nothing behind."""
        for pusher in self._pushers:
            await pusher.client.close()
        for actor in self._clients:
            await actor.close()
        await eventually(lambda: not self._waiting(), "closing ends all calls")
        sessions = self._host.sessions
        if not self._plan.ends_with_drain:
            await eventually(lambda: sessions.connected == 0, "all streams end")
            later_ms = self._host.time.now_ms() + self._plan.session_ttl_ms + 1
            await eventually(
                lambda: not sessions.drop_expired(later_ms) and sessions.count + self._host.engine.pending == 0,
                lambda: f"no session stays: {sessions.count}",
            )
            left = left_in(self._host)
            if any(left.values()):
                self._complain(f"the daemon is not empty at the end: {left}")

    # The verdict.

    def _why_not_from_engine(self, registration: Registration, result: ReportedResult) -> str:
        """A rule: the result is that of the engine, and no earlier."""
        assert isinstance(registration.asked, tuple)
        assert isinstance(result.content, plain.Ended)
        call, operation = registration.asked
        if operation.items[0].offset == INVALID:
            return "an invalid registration has an outcome"
        key = UNARY if call.request.path == "unary" else (call.session_id, call.operation_id(result.operation_id))
        self._history.seen.note(features_of_end(result.content), call.request.path, *self._faults_of_day)
        ends = [end for record in self._records for end in record.ends.get(key, ())]
        if any(end.fits(result.content, call.submitted_ms, call.ended_ms) for end in ends):
            return ""
        return f"the daemon has ended it otherwise: {[end for end in ends if end.ended.kind == operation.kind][:3]}"

    def _may_fail(self, call: SimulatedCall, operation: plain.Operation, error: BaseException | None) -> bool:
        """Whether an error has a reason on this day."""
        match error:
            case asyncio.CancelledError():
                return call.is_cancelled
            case ClientClosed():
                return call.is_closing
            case InvalidRequest():
                return operation.items[0].offset == INVALID
            case LimitExceeded():
                return self._plan.unacknowledged_results_max < 1_000
        # A daemon that is shutting down accepts no work; a client may give up; a unary call fails with its connection.
        is_away = self._plan.ends_with_drain or self._restarts or self._plan.give_up_after is not None
        is_cut = call.request.path == "unary" and call.faults > 0
        return isinstance(error, Unavailable) and bool(is_away or is_cut)

    def _judge(self) -> None:
        figures = self._history.figures
        for call, operation, error in (failure for client in self._clients for failure in client.failures):
            figures[type(error).__name__] += 1
            if not self._may_fail(call, operation, error):
                self._complain(f"an error without a reason: {error!r} for {operation} of {call}")
            # Every caller that waited over a working connection at a drain has an answer.
            if call in self._drained and isinstance(error, ClientClosed | Unavailable):
                self._complain(f"drained without an answer: {call}")
        for pusher in self._pushers:
            for number, is_acknowledged in pusher.acknowledged.items():
                applied = sum(record.signals[pusher.key][number] for record in self._records)
                if not is_acknowledged <= applied <= 1:
                    self._complain(f"push {number} of {pusher.key} was applied {applied} times")
        for host, record in zip(self._hosts, self._records, strict=True):
            for complaint in record.complaints(host.engine):
                self._complain(complaint)
            figures["waits that lost their session"] += sum(not end.has_result for end in record.all_ends)
        self._note_returned()
        names = Counter(name for record in self._records for _, name in record.incarnations.values())
        if len(names) < names.total():
            self._complain(f"two sessions with one incarnation: {names.most_common(1)}")
        figures["waits"] += sum(len(request.operations) for request in self._requests)
        figures["faults"] += sum(proxy.faults for proxy in self._proxies)

    def _note_returned(self) -> None:
        """Sessions with several incarnations: their clients returned after they had been dropped."""
        sessions = Counter(session.session_id for one in self._records for session, _ in one.incarnations.values())
        for call in (call for client in self._clients for call in client.calls):
            if sessions[call.session_id] > 1:
                self._history.seen.note(["returning session"], call.request.path, *self._faults_of_day)


def run(history: History) -> None:
    """Run the day of a seed, from plan to verdict, on an event loop of its own."""
    plan = DayPlan(history.seed, history.chance)
    plan.has_faulty_listener &= "listener" in history.faults
    factory = uvloop.new_event_loop if plan.uvloop else None
    small = all_sizes(plan.internal_size, NOT_CUT) if plan.internal_size else nullcontext()
    finished = mock.patch.object(session_table, "FINISHED_TTL_MS", plan.finished_ttl_ms)
    batches = mock.patch.object(batch_limits, "OPERATIONS_MAX", plan.operations_per_batch_max)
    with small, finished, batches, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(SimulatedDay(history, plan).run())
    if history.judge.complaints:
        history.judge.complaints.insert(0, str(vars(plan)))
