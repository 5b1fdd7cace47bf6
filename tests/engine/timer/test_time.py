"""Long uptimes and the edges of the wheel's levels, through the engine's own calls: nothing early, nothing late."""

import random
from collections.abc import Iterator

import pytest

from purgatory.engine.calls import Apply, PassTime
from purgatory.engine.waiting.wheel import DEADLINE_MAX
from tests.engine import plain
from tests.engine.adapter import event_batch
from tests.engine.timer.wheel_steps import GEOMETRIES
from tests.engine.world import World

DAY_MS = 86_400_000
TWO_YEARS_MS = 730 * DAY_MS
TEN_YEARS_MS = 10 * 365 * DAY_MS


def led(*, now_ms: int = 0, tick_ms: int = 1, wheel_size: int = 20) -> World:
    """A world in which orders-0 has a leader and records, but its second replica has never fetched."""
    world = World(now_ms=now_ms, tick_ms=tick_ms, wheel_size=wheel_size, timeout_ms_max=TEN_YEARS_MS)
    world.lead("orders-0", 1, replicas=(1, 2))
    world.high_watermark("orders-0", 5)
    return world


def one_of_each_kind(world: World, timeout_ms: int) -> list[int]:
    """A wait of each kind that nothing will satisfy."""
    return [
        world.produce({"orders-0": 1_000}, timeout_ms=timeout_ms),
        world.fetch({"orders-0": 0}, min_bytes=1_000, timeout_ms=timeout_ms),
        world.delete_records({"orders-0": -1}, timeout_ms=timeout_ms),
        world.wait_signal({"never": 1}, timeout_ms=timeout_ms),
    ]


def reap(world: World, until_ms: int) -> int:
    """A perfect reaper: advances the clock exactly at each next expiration. Returns the number of calls."""
    calls = 0
    while 0 <= world.engine.next_expiration_ms() <= until_ms:
        world.wait(max(0, world.engine.next_expiration_ms() - world.now_ms))
        calls += 1
    world.wait(until_ms - world.now_ms)
    return calls


def test_sixty_days_with_a_timer_of_two_years() -> None:
    """For 60 days, short waits of every kind expire on their millisecond, with waits of two years pending."""
    world = led()
    years = one_of_each_kind(world, TWO_YEARS_MS)
    rng = random.Random(60)
    short: list[int] = []
    while world.now_ms < 60 * DAY_MS:
        for _ in range(3):
            short += one_of_each_kind(world, rng.choice([1, 19, 20, 50, 400, 7_999, 8_001, 1_800_000]))
        reap(world, world.now_ms + rng.choice([40, 7_999, DAY_MS // 3, DAY_MS, 5 * DAY_MS]))
    assert len(short) > 200
    reap(world, world.now_ms + DAY_MS)
    assert {world.outcome(handle) for handle in short} == {"expired"}
    assert {world.result(handle).lateness_ms for handle in short} == {0}
    assert {world.outcome(handle) for handle in years} == {"pending"}
    reap(world, TWO_YEARS_MS - 1)
    assert {world.outcome(handle) for handle in years} == {"pending"}
    reap(world, TWO_YEARS_MS)
    assert [world.result(handle).waited_ms for handle in years] == [TWO_YEARS_MS] * 4
    world.assert_empty()


def test_idle_years_cost_a_handful_of_calls() -> None:
    """A wait of two years wakes the reaper once per level through which it cascades, not once per tick."""
    world = World(timeout_ms_max=TEN_YEARS_MS)
    world.produce({"orders-0": 5}, timeout_ms=TWO_YEARS_MS - 1)
    assert reap(world, TWO_YEARS_MS) <= 10
    world.assert_empty()


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
    world = led(now_ms=start_ms, tick_ms=tick_ms, wheel_size=wheel_size)
    on_the_clock = (start_ms // edge_ms + 1) * edge_ms - start_ms
    timeouts = sorted({at + offset for at in (edge_ms, on_the_clock) for offset in (-1, 0, 1) if at + offset > 0})
    due: dict[int, list[int]] = {}
    for timeout_ms in timeouts:
        tick = -(-(start_ms + timeout_ms) // tick_ms)
        due.setdefault(tick * tick_ms, []).extend(one_of_each_kind(world, timeout_ms))
    for due_ms, handles in due.items():
        reap(world, max(world.now_ms, due_ms - 1))
        assert {world.outcome(handle) for handle in handles} == {"pending"}
        reap(world, due_ms)
        assert {world.result(handle).waited_ms for handle in handles} == {due_ms - start_ms}
    world.assert_empty()


def test_time_that_stands_still_or_goes_back() -> None:
    """Repeated calls in one millisecond expire nothing twice; a clock that goes back is an assertion error."""
    world = World()
    handle = world.produce({"orders-0": 5}, timeout_ms=10)
    for _ in range(5):
        assert world.wait(0) == 0
    assert [world.wait(10), world.wait(0), world.wait(0)] == [1, 0, 0]
    assert world.outcome(handle) == "expired"
    for call in (
        lambda: world.engine.perform(None, PassTime(1), 9).ended,
        lambda: world.engine.perform(
            None, Apply(event_batch([plain.Event(plain.HIGH_WATERMARK, ("orders", 0), 5)])), 9
        ),
    ):
        with pytest.raises(AssertionError, match="clock went back: now_ms=9 engine=10"):
            call()
