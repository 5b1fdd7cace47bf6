"""Long uptimes and the edges of the wheel's levels, through the engine's own calls: nothing early, nothing late."""

import random
from collections.abc import Iterator

import pytest

from purgatory.engine.calls import Apply, PassTime
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.wheel import DEADLINE_MAX
from tests.engine import plain
from tests.engine.adapter import event_batch
from tests.engine.timer.test_wheel import GEOMETRIES
from tests.scripts.engine_level import EngineLevel

DAY_MS = 86_400_000
TWO_YEARS_MS = 730 * DAY_MS
TEN_YEARS_MS = 10 * 365 * DAY_MS


class Reaped:
    """An engine with a perfect reaper, and what has ended by operation id. In it, orders-0 has a leader and records,
    but its second replica has never fetched.
    """

    def __init__(self, settings: str = "") -> None:
        self.level = EngineLevel.played(
            f"settings timeout_ms_max={TEN_YEARS_MS} {settings}",
            "lead orders-0 1 leader_id=1 replicas=1,2",
            "high-watermark orders-0 5",
        )
        self.ended: dict[int, plain.Ended] = {}
        self._last_id = 0

    @property
    def now_ms(self) -> int:
        return self.level.pair.now_ms

    def one_of_each_kind(self, timeout_ms: int) -> set[int]:
        """A wait of each kind that nothing will satisfy."""
        waits = ("produce {} orders-0@1000", "fetch {} orders-0@0 min_bytes=1000", "delete-records {} orders-0@-1")
        for wait in (*waits, "await {} never"):
            self._last_id += 1
            assert self.level.answer(f"{wait.format(self._last_id)} timeout={timeout_ms}") == []
        return set(range(self._last_id - 3, self._last_id + 1))

    def reap(self, until_ms: int) -> int:
        """Move the clock exactly to each next expiration. Returns the number of calls."""
        calls = 0
        while 0 <= self.level.engine.next_expiration_ms() <= until_ms:
            self.level.pass_time(max(0, self.level.engine.next_expiration_ms() - self.now_ms))
            calls += 1
        self.level.pass_time(until_ms - self.now_ms)
        ended = {row.operation_id: row for _, row in self.level.ended()}
        assert not ended.keys() & self.ended.keys()
        self.ended |= ended
        return calls

    def assert_empty(self) -> None:
        assert self.level.engine.pending == 0
        self.level.pair.heal()


def test_sixty_days_with_a_timer_of_two_years() -> None:
    reaped = Reaped()
    years = reaped.one_of_each_kind(TWO_YEARS_MS)
    rng = random.Random(60)
    short: set[int] = set()
    while reaped.now_ms < 60 * DAY_MS:
        for _ in range(3):
            short |= reaped.one_of_each_kind(rng.choice([1, 19, 20, 50, 400, 7_999, 8_001, 1_800_000]))
        reaped.reap(reaped.now_ms + rng.choice([40, 7_999, DAY_MS // 3, DAY_MS, 5 * DAY_MS]))
    assert len(short) > 200
    reaped.reap(reaped.now_ms + DAY_MS)
    assert reaped.ended.keys() == short
    assert {(row.outcome, row.lateness_ms) for row in reaped.ended.values()} == {(plain.EXPIRED, 0)}
    reaped.reap(TWO_YEARS_MS - 1)
    assert reaped.ended.keys() == short
    reaped.reap(TWO_YEARS_MS)
    assert [reaped.ended[number].waited_ms for number in years] == [TWO_YEARS_MS] * 4
    reaped.assert_empty()


def test_idle_years_cost_a_handful_of_calls() -> None:
    reaped = Reaped()
    reaped.level.answer(f"produce 1 orders-0@9 timeout={TWO_YEARS_MS - 1}")
    assert reaped.reap(TWO_YEARS_MS) <= 10
    reaped.assert_empty()


def edges() -> Iterator[tuple[int, int, int]]:
    """(tick, wheel size, edge): where each level of each geometry ends, up to ten years."""
    for tick_ms, wheel_size in GEOMETRIES:
        edge = tick_ms
        while edge < TEN_YEARS_MS:
            yield tick_ms, wheel_size, edge
            edge *= wheel_size


@pytest.mark.parametrize(("tick_ms", "wheel_size", "edge_ms"), list(edges()))
@pytest.mark.parametrize("start_ms", [0, 1, 12_345_678_901, DEADLINE_MAX // 2])
def test_deadlines_around_every_level_edge(tick_ms: int, wheel_size: int, edge_ms: int, start_ms: int) -> None:
    """A deadline one before, on, and one after the edge ends on the first tick not before it.

    The origin of the clock is arbitrary: decades of uptime, or a clock with a large initial value, change nothing.
    """
    reaped = Reaped(f"now_ms={start_ms} tick_ms={tick_ms} wheel_size={wheel_size}")
    on_the_clock = (start_ms // edge_ms + 1) * edge_ms - start_ms
    timeouts = sorted({at + offset for at in (edge_ms, on_the_clock) for offset in (-1, 0, 1) if at + offset > 0})
    due: dict[int, set[int]] = {}
    for timeout_ms in timeouts:
        tick = -(-(start_ms + timeout_ms) // tick_ms)
        due.setdefault(tick * tick_ms, set()).update(reaped.one_of_each_kind(timeout_ms))
    for due_ms, ids in due.items():
        reaped.reap(max(reaped.now_ms, due_ms - 1))
        assert not ids & reaped.ended.keys()
        reaped.reap(due_ms)
        assert {reaped.ended[number].waited_ms for number in ids} == {due_ms - start_ms}
    reaped.assert_empty()


def test_clock_that_goes_back_is_an_assertion() -> None:
    engine = Engine(EngineLimits(), 10)
    for call in (PassTime(1), Apply(event_batch([plain.Event(plain.HIGH_WATERMARK, ("orders", 0), 5)]))):
        with pytest.raises(AssertionError, match="clock went back: now_ms=9 engine=10"):
            engine.perform(None, call, 9)
