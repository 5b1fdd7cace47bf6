"""The step size of the clock makes no difference: one big step ends the same operations as many small ones.

Two engines run the same history, drawn by hypothesis over all kinds of operation and event. In one, the reaper runs
only before the next call; in the other, it runs every few milliseconds and may expire only a few operations at a time.
"""

from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import plain
from tests.engine.adapter import EngineUnderTest
from tests.engine.test_against_oracle import EVENT, OPERATION
from tests.engine.timer.wheel_steps import GEOMETRIES

FEW = st.integers(1, 3)
TIMEOUTS = st.one_of(st.integers(1, 12), st.sampled_from([19, 20, 21, 26, 27, 28, 80, 399, 400, 401, 2_000]))
GAPS = st.one_of(st.just(0), st.integers(1, 30), st.sampled_from([57, 400, 1_021]))
UNLIMITED = 1_000_000


class Happening(NamedTuple):
    """A call on the engine, a number of milliseconds after the previous one.

    With `snaps_to_ms`, an operation's deadline is rounded up to a multiple of it, so that many deadlines coincide.
    """

    after_ms: int
    what: plain.Operation | plain.Event
    snaps_to_ms: int = 1


class Pace(NamedTuple):
    """How often the reaper runs (maximum interval in milliseconds) and how much it may expire per call."""

    step_ms: int
    limit: int


LEAPS = Pace(UNLIMITED, UNLIMITED)
OPERATIONS = st.builds(lambda one, timeout_ms: one._replace(timeout_ms=timeout_ms), OPERATION, TIMEOUTS)
SNAPS = st.sampled_from([1, 10, 100])
LIFE = st.lists(st.builds(Happening, GAPS, st.one_of(OPERATIONS, OPERATIONS, EVENT), SNAPS), max_size=25)
PACES = st.builds(Pace, st.sampled_from([1, 1, 2, 7, 20, 100]), st.sampled_from([1, 2, 5, UNLIMITED]))


class EndedRow(NamedTuple):
    """The end of one operation, without the fields that depend on when the reaper ran."""

    operation_id: int
    kind: int
    outcome: int
    deadline_ms: int
    """Expired operations only; else -1."""
    items: tuple[plain.EndedItem, ...]


class TimedRun:
    """One engine from its first call to the end of all waits."""

    def __init__(self, pace: Pace, tick_ms: int, wheel_size: int) -> None:
        self.pace = pace
        self.under_test = EngineUnderTest(plain.Settings(tick_ms=tick_ms, wheel_size=wheel_size))
        self.owner_id = self.under_test.add_owner()
        self.registered_ms: dict[int, int] = {}
        self.ends: list[EndedRow] = []

    def live(self, happenings: list[Happening]) -> None:
        """Run the whole history, and then advance the time until nothing is pending."""
        for operation_id, happening in enumerate(happenings, 1):
            self.pass_time(happening.after_ms)
            if isinstance(happening.what, plain.Event):
                self.under_test.apply([happening.what])
            else:
                self.register(operation_id, happening.what, happening.snaps_to_ms)
            self.collect()
        self.pass_time(3_000)
        assert self.under_test.engine.pending == 0

    def register(self, operation_id: int, drawn: plain.Operation, snaps_to_ms: int) -> None:
        """Register one operation, which must be accepted."""
        deadline_ms = -(-(self.under_test.now_ms + drawn.timeout_ms) // snaps_to_ms) * snaps_to_ms
        operation = drawn._replace(operation_id=operation_id, timeout_ms=deadline_ms - self.under_test.now_ms)
        self.registered_ms[operation_id] = self.under_test.now_ms
        assert self.under_test.register(self.owner_id, [operation]).accepted == 1

    def pass_time(self, ms: int) -> None:
        """Advance the clock step by step; the reaper expires everything that is due at each step."""
        until_ms = self.under_test.now_ms + ms
        while True:
            self.under_test.now_ms = min(until_ms, self.under_test.now_ms + self.pace.step_ms)
            while 0 <= self.under_test.engine.next_expiration_ms() <= self.under_test.now_ms:
                assert self.under_test.advance(0, self.pace.limit) <= self.pace.limit
                self.collect()
            if self.under_test.now_ms == until_ms:
                return

    def collect(self) -> None:
        """Collect the ended operations. Expired ones must have ended at their deadline or later."""
        for row in self.under_test.take_ended():
            deadline_ms = -1
            if row.outcome == plain.EXPIRED:
                deadline_ms = self.registered_ms[row.operation_id] + row.waited_ms - row.lateness_ms
                assert row.lateness_ms >= 0, f"{row} ended {-row.lateness_ms} ms early"
                assert deadline_ms <= self.under_test.now_ms
            items = tuple(item._replace(remaining_ms=-1, pace=-1.0) for item in row.items)
            self.ends.append(EndedRow(row.operation_id, row.kind, row.outcome, deadline_ms, items))

    def seen(self) -> list[object]:
        """All other visible state."""
        engine = self.under_test.engine
        marks = [self.under_test.marks(name) for name in engine.partition_names()]
        return [*marks, *(self.under_test.counts(kind) for kind in plain.KINDS), engine.next_expiration_ms()]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(LIFE, PACES, st.sampled_from(GEOMETRIES))
def test_one_leap_equals_many_steps(happenings: list[Happening], pace: Pace, geometry: tuple[int, int]) -> None:
    """The same operations end in the same order with the same results, and the engines have equal state afterwards.

    The earlier deadline, in ticks, expires first; of equal ones, the operation registered first.
    """
    leaping, stepping = TimedRun(LEAPS, *geometry), TimedRun(pace, *geometry)
    leaping.live(happenings)
    stepping.live(happenings)
    assert stepping.ends == leaping.ends
    assert stepping.seen() == leaping.seen()
    tick_ms = geometry[0]
    expired = [end for end in stepping.ends if end.outcome == plain.EXPIRED]
    order = [(-(-end.deadline_ms // tick_ms), end.operation_id) for end in expired]
    assert order == sorted(order)
