"""The race table of docs/semantics.md: two causes reach one operation at the same instant, in either order.

The first cause decides, and the second has no effect. This is tested on the real host with a clock that does not
advance, so that "the same instant" is exact. tests/histories checks the reports of a real server, where the
order is unknown.
"""

from itertools import permutations

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.draining import drain
from purgatory.service.host import Host
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.kit.served_host import apply_events

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
        self.host.registration(self.session).register([operation_of(self.kind)], [])
        assert self.host.engine.pending == 1
        self.clock.jump(TIMEOUT_MS)

    async def happen(self, cause: str) -> int:
        """Apply one cause now; return the number of operations that it reports as ended."""
        host = self.host
        before = host.engine.pending
        if cause == "event":
            return (await apply_events(host, event_for(self.kind))).ended
        if cause == "removal":
            return (await apply_events(host, EventBatch([codes.PARTITION_REMOVED], partitions=[PARTITION]))).ended
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
    counts = host.engine.inspection.counts(kind)
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
        race.host.register_unary_wait(OperationRun(codes.PRODUCE, batch), race.host.sessions.accounts.nobody)
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
