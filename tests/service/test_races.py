"""The race table of docs/semantics.md: two causes reach one operation at the same instant, in either order.

The first cause decides, and the second has no effect. This is tested first on the real host with a clock that does not
advance, so that "the same instant" is exact; then over a real server, where the order is unknown, and all reports must
agree.
"""

import asyncio
from collections import Counter
from itertools import combinations, permutations

import grpc
import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.draining import drain
from purgatory.service.host import Host
from purgatory.service.registration import Registration, register_unary_wait
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.service.serving import (
    Peer,
    ServedHost,
    apply_events,
    eventually,
    serving,
    signal,
)

TIMEOUT_MS = 1_000
PARTITION = ("orders", 3)
KEY = "build"

FIRST_DECIDES = {
    "event": codes.SATISFIED,
    "removal": codes.FAILED,
    "expiry": codes.EXPIRED,
    "cancel": codes.CANCELLED,
    "disconnect": codes.CANCELLED,
    "shutdown": codes.SHUTTING_DOWN,
}
"""The documented outcome, by the first cause. disconnect: the session's time to live has passed."""

ORDERS = [
    pytest.param(kind, first, second, id=f"{first}-then-{second}-{codes.KIND_NAMES[kind]}")
    for kind in codes.KINDS
    for first, second in permutations(FIRST_DECIDES, 2)
    if kind != codes.SIGNAL or "removal" not in {first, second}
]


def operation_of(kind: int) -> OperationRun:
    """One operation of the kind, id 1, that waits for 5."""
    if kind == codes.SIGNAL:
        return OperationRun(kind, OperationBatch([1], keys=[KEY], offsets=[5], timeouts_ms=[TIMEOUT_MS]))
    required = 0 if kind == codes.FETCH else 5
    batch = OperationBatch([1], partitions=[PARTITION], offsets=[required], timeouts_ms=[TIMEOUT_MS], min_bytes=[5])
    return OperationRun(kind, batch)


def event_for(kind: int) -> EventBatch:
    """The event for this cause."""
    if kind == codes.SIGNAL:
        return EventBatch([codes.KEY_SIGNALLED], keys=[KEY], offsets=[5])
    event_type = codes.LOG_START_OFFSET if kind == codes.DELETE_RECORDS else codes.HIGH_WATERMARK
    return EventBatch([event_type], partitions=[PARTITION], offsets=[5])


class Race:
    """One operation of a session on a host, at the instant at which it expires and its session's time to live ends."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.clock = ManualClock(1)
        settings = HostSettings(session=SessionSettings(ttl_ms=TIMEOUT_MS))
        self.host = Host(Engine(EngineLimits(), 1), self.clock, settings)
        self.session, _ = self.host.sessions.open("s", 1)

    async def begin(self) -> None:
        """Register the operation, and move the clock to the instant."""
        if self.kind != codes.SIGNAL:
            await apply_events(self.host, EventBatch([codes.LEADER_APPEND], partitions=[PARTITION], offsets=[10]))
        if self.kind == codes.DELETE_RECORDS:
            await apply_events(self.host, EventBatch([codes.HIGH_WATERMARK], partitions=[PARTITION], offsets=[10]))
        Registration(self.host, self.session).register([operation_of(self.kind)], [])
        assert self.host.engine.pending == 1
        self.clock.jump(TIMEOUT_MS)

    async def happen(self, cause: str) -> int:
        """Apply one cause now; return the number of operations that it reports as ended."""
        host = self.host
        before = host.engine.pending
        if cause == "event":
            return sum((await apply_events(host, event_for(self.kind))).ended)
        if cause == "removal":
            return sum((await apply_events(host, EventBatch([codes.PARTITION_REMOVED], partitions=[PARTITION]))).ended)
        if cause == "cancel":
            return sum(host.cancel(self.session, [1])) if host.sessions.find("s") is not None else 0
        if cause == "expiry":
            host.reaper.turn()
        elif cause == "disconnect":
            host.sessions.drop_expired(self.clock.now_ms())
        else:
            await drain(host, 0.0)
        return before - host.engine.pending

    def outcomes(self) -> dict[int, int]:
        """The engine's counters by outcome, without those that are 0."""
        return outcomes_of(self.host, self.kind)


def outcomes_of(host: Host, kind: int) -> dict[int, int]:
    """The counters of a kind by outcome, without those that are 0; the daemon counts no others."""
    counts = host.engine.counts(kind)
    assert (counts.pending, counts.watched) == (0, 0)
    by_outcome = {
        codes.SATISFIED: counts.satisfied,
        codes.FAILED: counts.failed,
        codes.EXPIRED: counts.expired,
        codes.CANCELLED: counts.cancelled,
        codes.SHUTTING_DOWN: counts.shutting_down,
    }
    assert counts.registered == sum(by_outcome.values())
    return {outcome: count for outcome, count in by_outcome.items() if count}


def results_of(session: Session) -> list[int]:
    """The outcomes of all results that a session has received."""
    _, slices = session.outbox.take(100)
    return [part.completions.outcomes[place] for part in slices for place in range(part.start, part.stop)]


@pytest.mark.parametrize(("kind", "first", "second"), ORDERS)
async def test_the_first_cause_decides(kind: int, first: str, second: str) -> None:
    """There is exactly one outcome, by the first cause. The second ends nothing, and the caller has one result, or no
    session.
    """
    race = Race(kind)
    await race.begin()
    assert await race.happen(first) == 1
    assert await race.happen(second) == 0
    assert race.outcomes() == {FIRST_DECIDES[first]: 1}
    gone = "disconnect" in {first, second}
    assert (race.host.sessions.find("s") is None) == gone
    assert results_of(race.session) == ([] if first == "disconnect" else [FIRST_DECIDES[first]])
    race.clock.jump(10 * TIMEOUT_MS)
    assert await race.happen("expiry") == 0
    assert race.outcomes() == {FIRST_DECIDES[first]: 1}


UNARY = ("event", "removal", "expiry", "cancel", "gone", "shutdown")


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*pair, id="{}-then-{}".format(*pair)) for pair in permutations(UNARY, 2)]
)
async def test_the_first_cause_decides_a_unary_wait(first: str, second: str) -> None:
    """The same for `Wait`. gone: the call has ended, which cancels; cancel: by an operator, on its partition."""
    race = Race(codes.PRODUCE)
    expected = FIRST_DECIDES["cancel" if first == "gone" else first]
    told: list[int] = []
    with race.host.unary_wait(race.host.sessions.accounts.nobody) as (operation_id, future):
        batch = OperationBatch([operation_id], partitions=[PARTITION], offsets=[5], timeouts_ms=[TIMEOUT_MS])
        register_unary_wait(race.host, OperationRun(codes.PRODUCE, batch), race.host.sessions.accounts.nobody)
        race.clock.jump(TIMEOUT_MS)
        if first != "gone":
            assert await end_unary(race, first) == 1
        if "gone" not in {first, second}:
            assert await end_unary(race, second) == 0
        if future.done():
            part = future.result()
            told = list(part.completions.outcomes[part.start : part.stop])
    if first == "gone":
        assert await end_unary(race, second) == 0
    assert told == ([] if first == "gone" else [expected])
    assert race.outcomes() == {expected: 1}


async def end_unary(race: Race, cause: str) -> int:
    """Apply one cause to a unary wait; return the number of operations that it has ended."""
    return await (race.host.cancel_waits(PARTITION) if cause == "cancel" else race.happen(cause))


# Over a real server.

STREAM_ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError)
"""The errors by which grpc.aio reports that a stream has ended. One of the causes here ends the stream."""

COUNT = 40
IDS = range(1, COUNT + 1)
PAIRS = [
    pytest.param(one, other, id=f"{one}-and-{other}")
    for one, other in combinations(("event", "expiry", "cancel", "disconnect", "shutdown"), 2)
]


class Contest:
    """`COUNT` waits of one session over a real server, each on its own key, and all reports about them."""

    def __init__(self, served: ServedHost, clock: ManualClock, peer: Peer) -> None:
        self.served = served
        self.host = served.host
        self.clock = clock
        self.peer = peer
        self.outcomes: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.not_cancelled: set[int] = set()
        self.ended_by_events: set[int] = set()
        self.happened: set[str] = set()
        """Causes that have been applied."""
        self.read_all = False
        """Whether the stream has ended."""
        self._last_sequence = 0
        self._writing = asyncio.Lock()
        """gRPC accepts one write at a time."""

    async def happen(self, cause: str, other: str = "") -> None:
        """Apply one cause to all of them. Causes that apply one by one start from opposite ends and meet in the middle;
        those that apply to all at once do so after half of the others.
        """
        if cause == "event":
            await self._signal_all(other)
        elif cause == "cancel":
            await self._cancel_all()
        elif other in {"event", "cancel"}:
            await eventually(lambda: self.host.engine.pending <= COUNT // 2, "half is over")
        if cause == "expiry":
            self.clock.jump(TIMEOUT_MS)
            self.host.reaper.wake()
        elif cause == "disconnect":
            self.peer.cancel()
            await eventually(lambda: self.host.sessions.connected == 0, "the stream is detached")
            self.clock.jump(1)
            await eventually(lambda: self.host.sessions.count == 0, "the session is dropped")
        elif cause == "shutdown":
            await drain(self.host, 5.0)
        self.happened.add(cause)

    async def _signal_all(self, other: str) -> None:
        for operation_id in IDS:
            if operation_id == IDS[3 * COUNT // 4] and other in {"disconnect", "shutdown"}:
                # On a busy machine, all events would otherwise be applied before the disconnect is noticed.
                await eventually(lambda: other in self.happened, f"the {other} has happened")
            signalled = event_pb2.Event(key_signalled=event_pb2.KeySignalled(key=f"k{operation_id}"))
            rows = event_pb2.EventRows(events=[signalled])
            try:
                answer: wire.AdvanceResponse = await self.served.stub.Advance(wire.AdvanceRequest(rows=rows))
            except grpc.aio.AioRpcError as error:
                # Shutdown refuses calls that wait for their turn, so this event and those after it are too late.
                if error.code() is grpc.StatusCode.UNAVAILABLE and self.host.draining:
                    return
                raise
            if answer.receipt.ended_total:
                self.ended_by_events.add(operation_id)

    async def _cancel_all(self) -> None:
        for operation_id in reversed(IDS):
            try:
                async with self._writing:
                    await self.peer.send(cancel=wire.CancelOperations(operation_ids=[operation_id]))
            except STREAM_ENDED:
                return
            await eventually(lambda one=operation_id: self._is_over(one), "a cancel is answered")

    def _is_over(self, operation_id: int) -> bool:
        return operation_id in self.cancelled | self.not_cancelled or self.read_all

    async def read(self) -> None:
        """Read and acknowledge until the stream ends, or every result has been received and every cancel answered."""
        try:
            while (message := await self.peer.read_raw()) is not grpc.aio.EOF:
                self.cancelled.update(message.cancelled.cancelled_operation_ids)
                self.not_cancelled.update(message.cancelled.not_pending_operation_ids)
                if message.HasField("results"):
                    await self._take(message.results)
        except STREAM_ENDED:
            return
        finally:
            self.read_all = True

    async def _take(self, batch: wire.ResultBatch) -> None:
        for place, result in enumerate(batch.rows.results):
            assert batch.first_sequence + place == self._last_sequence + 1
            assert result.operation_id not in self.outcomes, "a second result"
            self.outcomes[result.operation_id] = result.outcome
            self._last_sequence += 1
        async with self._writing:
            await self.peer.acknowledge(self._last_sequence)


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_all_that_is_told_agrees(one: str, other: str) -> None:
    """Two causes at once over a real server: every wait ends once, by one of them, and all receipts agree."""
    clock = ManualClock(1)
    gone = "disconnect" in {one, other}
    settings = HostSettings(
        session=SessionSettings(heartbeat_interval_ms=8 if gone else 3_600_000, ttl_ms=1 if gone else 3_600_000)
    )
    async with serving(settings, clock=clock) as served:
        peer = await Peer(served, "s").open()
        await peer.register(*(signal(operation_id, f"k{operation_id}", TIMEOUT_MS) for operation_id in IDS))
        await eventually(lambda: served.host.engine.pending == COUNT, "all are pending")
        contest = Contest(served, clock, peer)
        reader = asyncio.create_task(contest.read())
        await asyncio.gather(contest.happen(one, other), contest.happen(other, one))
        await eventually(lambda: served.host.engine.pending == 0, "all have ended")
        if not gone and "shutdown" not in {one, other}:
            await eventually(lambda: len(contest.outcomes) == COUNT, "every result has come")
            if "cancel" in {one, other}:
                await eventually(lambda: contest.cancelled | contest.not_cancelled == set(IDS), "cancels are answered")
            peer.cancel()
        await reader
        counted = outcomes_of(served.host, codes.SIGNAL)
        assert sum(counted.values()) == COUNT
        assert counted.keys() <= {FIRST_DECIDES[one], FIRST_DECIDES[other]}
        if FIRST_DECIDES[one] != FIRST_DECIDES[other] and {one, other} & {"event", "cancel"}:
            assert len(counted) == 2, "one was always first: this shows nothing"
        if not gone:
            assert Counter(contest.outcomes.values()) == counted
            by_outcome = {outcome: {i for i in IDS if contest.outcomes[i] == outcome} for outcome in codes.OUTCOMES}
            assert contest.ended_by_events == by_outcome[codes.SATISFIED]
            assert contest.cancelled == by_outcome[codes.CANCELLED]
            assert not contest.cancelled & contest.not_cancelled


@pytest.mark.parametrize("cause", ["event", "expiry", "cancel"])
async def test_what_ends_while_nobody_is_connected_is_told_once_on_return(cause: str) -> None:
    """A broken stream ends nothing while its session lives: on reconnecting, each result is received exactly once."""
    clock = ManualClock(1)
    async with serving(HostSettings(), clock=clock) as served:
        peer = await Peer(served, "s").open()
        await peer.register(*(signal(operation_id, f"k{operation_id}", TIMEOUT_MS) for operation_id in IDS))
        await eventually(lambda: served.host.engine.pending == COUNT, "all are pending")
        peer.cancel()
        await eventually(lambda: served.host.sessions.connected == 0, "nobody is connected")
        contest = Contest(served, clock, peer)
        if cause == "cancel":
            await served.stub.Cancel(wire.CancelRequest(session_id="s"))
        else:
            await contest.happen(cause)
        await eventually(lambda: served.host.engine.pending == 0, "all have ended")
        back = await Peer(served, "s").open()
        told = (await back.results()).rows.results
        assert {result.operation_id: result.outcome for result in told} == dict.fromkeys(IDS, FIRST_DECIDES[cause])
        assert len(told) == COUNT
        back.cancel()
        again = await Peer(served, "s").open(last_sequence=COUNT)
        key = "k1" if cause == "event" else "other"
        assert (await again.registered(signal(COUNT + 1, key, 1), batch_id=2)).accepted == 1
        clock.jump(1)
        served.host.reaper.wake()
        assert [result.operation_id for result in (await again.results()).rows.results] == [COUNT + 1]
