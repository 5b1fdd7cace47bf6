"""The timing wheel: arithmetic at every edge, the worked example, cases 1 to 19 of docs/semantics.md, and limits.

test_wheel_properties.py compares cases 3, 10, 13, 14 and 15 after each step: the count, cancelled and moved entries
that do not fire, and deadlines that are already due when they are added, including on an idle wheel.
"""

import ast
import re
from pathlib import Path

import pytest

from purgatory.engine.waiting import wheel as wheel_module
from purgatory.engine.waiting.wheel import (
    DEADLINE_MAX,
    TICK_MS_MAX,
    WHEEL_SIZE_MAX,
    TimingWheel,
    bucket_index,
    floor_to_tick,
    level_tick_ms,
    levels_needed,
    round_up_to_tick,
)
from tests.engine.timer.wheel_steps import GEOMETRIES, Place, advance, make, path
from tests.parsing import parsed

# Arithmetic


@pytest.mark.parametrize("tick_ms", [1, 2, 7, 20, 1000])
def test_rounding_goes_up_to_the_next_tick(tick_ms: int) -> None:
    """A multiple of the tick is unchanged, one more goes to the next: never early, late by less than a tick."""
    for k in (0, 1, 2, 19, 20, 21, 10**9):
        edge = k * tick_ms
        assert round_up_to_tick(edge, tick_ms) == edge
        assert round_up_to_tick(edge + 1, tick_ms) == edge + tick_ms
        assert round_up_to_tick(edge - 1, tick_ms) == (edge if tick_ms > 1 else edge - 1)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), GEOMETRIES)
def test_buckets_at_every_level_edge(tick_ms: int, wheel_size: int) -> None:
    """At tick * size**k - 1, + 0 and + 1 the bucket is the last, the first, and the first again (tick 1: the next)."""
    for level in range(1, levels_needed(tick_ms, wheel_size)):
        tick = level_tick_ms(level, tick_ms, wheel_size)
        interval = tick * wheel_size
        assert tick == tick_ms * wheel_size ** (level - 1)
        assert bucket_index(interval - 1, tick, wheel_size) == wheel_size - 1
        assert bucket_index(interval, tick, wheel_size) == 0
        assert bucket_index(interval + 1, tick, wheel_size) == (1 if tick == 1 else 0)
        assert floor_to_tick(interval - 1, tick) == interval - tick
        assert floor_to_tick(interval, tick) == interval
        assert floor_to_tick(interval + 1, tick) == interval + (1 if tick == 1 else 0)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [*GEOMETRIES, (2**31, 2**16), (2**31, 2)])
def test_the_levels_reach_the_latest_deadline(tick_ms: int, wheel_size: int) -> None:
    """The last level's interval exceeds DEADLINE_MAX, its tick does not: nothing overflows 64 bits."""
    levels = levels_needed(tick_ms, wheel_size)
    assert level_tick_ms(levels, tick_ms, wheel_size) <= DEADLINE_MAX
    assert level_tick_ms(levels, tick_ms, wheel_size) * wheel_size > DEADLINE_MAX


# The worked examples


def test_worked_example_in_module_docstring() -> None:
    """The wheel does what every line of the example in wheel.py's docstring says."""
    # Compiled modules have no docstring; their source is next to them.
    source = Path(wheel_module.__file__).parent / "wheel.py"
    text = ast.get_docstring(parsed(source.read_text(encoding="utf-8"))) or ""
    adds = re.findall(r"add (\d+) +-> level (\d), bucket (\d), due at (\d+)", text)
    assert len(adds) == 4
    wheel = make(1, 3)
    for deadline, level, bucket, due in adds:
        assert wheel.add(int(deadline), int(deadline))
        assert wheel.bucket_of(int(deadline)) == (int(level), int(bucket), int(due))

    assert len(re.findall(r"advance to \d+ +:", text)) == 5
    assert advance(wheel, 2) == [2]
    assert advance(wheel, 3) == []
    assert wheel.bucket_of(5) == (1, 2, 5)
    assert advance(wheel, 17) == [5, 8]
    assert wheel.level_clock(1) == 8
    assert advance(wheel, 18) == []
    assert wheel.bucket_of(26) == (2, 2, 24)
    assert advance(wheel, 26) == [26]


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "start_ms", "deadline_ms", "places", "fires_at"),
    [
        (1, 20, 0, 2, [(1, 2, 2)], 2),  # case 1: levels 1 and 2
        (1, 20, 0, 19, [(1, 19, 19)], 19),
        (1, 20, 0, 20, [(2, 1, 20)], 20),
        (1, 20, 0, 237, [(2, 11, 220), (1, 17, 237)], 237),  # case 2: moves down at 220 without firing
        (1, 20, 0, 350, [(2, 17, 340), (1, 10, 350)], 350),
        (1, 20, 0, 450, [(3, 1, 400), (2, 2, 440), (1, 10, 450)], 450),
        (1, 20, 0, 7999, [(3, 19, 7600), (2, 19, 7980), (1, 19, 7999)], 7999),
        (1, 20, 0, 8000, [(4, 1, 8000)], 8000),
        (20, 20, 0, 437, [(2, 1, 400), (1, 2, 440)], 440),  # case 5: never early; Kafka fires it at 420
        (20, 20, 0, 19, [(1, 1, 20)], 20),  # case 6: below one tick; Kafka fires it in add, 19 ms early
        (20, 20, 7, 27, [(1, 2, 40)], 40),
        (1, 3, 0, 3, [(2, 1, 3)], 3),
        (1, 3, 0, 8, [(2, 2, 6), (1, 2, 8)], 8),
        (1, 3, 0, 9, [(3, 1, 9)], 9),
        (1, 3, 0, 26, [(3, 2, 18), (2, 2, 24), (1, 2, 26)], 26),
        (1, 3, 0, 27, [(4, 1, 27)], 27),
        (1, 3, 100, 103, [(2, 1, 102), (1, 1, 103)], 103),  # case 7: level 2 is at 99
    ],
)
def test_paths_of_semantics_1_6(
    tick_ms: int, wheel_size: int, start_ms: int, deadline_ms: int, places: list[Place], fires_at: int
) -> None:
    """An entry passes exactly the buckets of the table in 1.6 (rounded up if the tick is more than 1 ms)."""
    wheel = make(tick_ms, wheel_size, start_ms)
    assert wheel.add(0, deadline_ms)
    assert path(wheel, 0) == (places, fires_at)


def test_case_04_levels_are_made_on_demand() -> None:
    """A deadline of 7999 needs three levels, 8000 a fourth."""
    wheel = make(1, 20)
    assert wheel.levels == 1
    wheel.add(0, 7999)
    assert (wheel.bucket_of(0), wheel.levels) == ((3, 19, 7600), 3)
    wheel.add(1, 8000)
    assert (wheel.bucket_of(1), wheel.levels) == ((4, 1, 8000), 4)


def test_case_08_one_bucket_fires_one_and_cascades_another() -> None:
    """3 and 5 share L2[1]@3, queued once; at 3 the first fires straight from level 2, the other moves to L1[2]@5."""
    wheel = make(1, 3)
    wheel.add(0, 3)
    wheel.add(1, 5)
    assert wheel.bucket_of(0) == wheel.bucket_of(1) == (2, 1, 3)
    assert len(wheel._queue) == 1
    assert advance(wheel, 3) == [0]
    assert wheel.bucket_of(1) == (1, 2, 5)


def test_case_09_insertion_order_in_a_bucket() -> None:
    """Equal deadlines fire in insertion order, from a bucket queued once."""
    wheel = make(1, 20)
    for slot in (3, 1, 2):
        wheel.add(slot, 5)
    assert len(wheel._queue) == 1
    assert advance(wheel, 5) == [3, 1, 2]


def test_case_11_emptied_bucket_is_not_queued_twice() -> None:
    """A bucket emptied by cancel and filled again in the same lap is queued once and fires the second only."""
    wheel = make(1, 20)
    wheel.add(0, 5)
    wheel.remove(0)
    wheel.add(1, 5)
    assert len(wheel._queue) == 1
    assert advance(wheel, 5) == [1]
    assert wheel.next_expiration_ms() == -1


def test_case_12_bucket_is_used_again_next_lap() -> None:
    """At clock 6, 25 is in L1[5] again, now with expiration 25; at clock 5 it would be in L2[1]@20."""
    wheel = make(1, 20)
    wheel.add(0, 5)
    advance(wheel, 5)
    wheel.add(2, 25)
    assert wheel.bucket_of(2) == (2, 1, 20)
    wheel.remove(2)
    wheel.add(1, 6)
    advance(wheel, 6)
    wheel.add(2, 25)
    assert wheel.bucket_of(2) == (1, 5, 25)
    assert advance(wheel, 25) == [2]


def test_case_16_idle_wheel_catches_up_in_hops() -> None:
    """Idle since 0, at 1000, until 1005: L3[2]@800 and L2[10]@1000 cascade together, it fires at 1005."""
    wheel = make(1, 20)
    wheel.add(0, 1005)
    assert wheel.bucket_of(0) == (3, 2, 800)
    assert advance(wheel, 1000) == []
    assert wheel.bucket_of(0) == (1, 5, 1005)
    assert wheel.level_clock(1) == 1000
    assert advance(wheel, 1004) == []
    assert advance(wheel, 1005) == [0]


def test_case_17_nothing_due() -> None:
    """An advance with no due bucket leaves the clocks unchanged."""
    wheel = make(1, 20)
    wheel.add(0, 100)
    assert advance(wheel, 50) == []
    assert wheel.level_clock(1) == wheel.level_clock(2) == 0
    assert wheel.now_ms == 50


def test_case_18_late_reaper() -> None:
    """After a stall, one advance fires everything due in order; the clock is that of the last bucket, not now."""
    wheel = make(1, 20)
    for deadline in range(350, 339, -1):
        wheel.add(deadline - 340, deadline)
    assert advance(wheel, 5000) == list(range(11))
    assert wheel.level_clock(1) == 350


def test_case_19_cancel_while_its_bucket_is_half_flushed() -> None:
    """An entry cancelled between two slices of one bucket never fires, and is no longer counted."""
    wheel = make(1, 20)
    for slot in range(4):
        wheel.add(slot, 5)
    assert advance(wheel, 5, limit=1) == [0]
    assert wheel.remove(2)
    assert wheel.count == 2
    assert advance(wheel, 5) == [1, 3]
    assert wheel.count == 0


def test_add_while_a_bucket_is_half_flushed() -> None:
    """An entry added between two slices fires in time; a flushed bucket is empty."""
    wheel = make(1, 20)
    for slot in range(4):
        wheel.add(slot, 20)
    assert advance(wheel, 20, limit=1) == [0]
    assert not wheel.add(10, 20)
    assert wheel.add(11, 21)
    assert wheel.add(12, 40)
    assert wheel.add(13, 420)
    assert advance(wheel, 20) == [1, 2, 3]
    assert wheel.next_expiration_ms() == 21
    assert advance(wheel, 21) == [11]
    assert advance(wheel, 40) == [12]
    assert advance(wheel, 420) == [13]
    assert wheel.count == 0


def test_next_expiration_skips_buckets_emptied_by_cancel() -> None:
    """An engine whose timers were all cancelled has no next expiration."""
    wheel = make(1, 20)
    for slot, deadline in enumerate((3, 30, 300, 3000)):
        wheel.add(slot, deadline)
    wheel.remove(0)
    assert wheel.next_expiration_ms() == 20
    wheel.remove(1)
    wheel.remove(2)
    assert wheel.next_expiration_ms() == 2800
    wheel.remove(3)
    assert wheel.next_expiration_ms() == -1
    assert wheel.add(0, 3)
    assert wheel.next_expiration_ms() == 3
    assert advance(wheel, 3) == [0]


@pytest.mark.slow
def test_one_call_moves_a_bounded_number() -> None:
    """A cascade of more than MOVES_MAX entries takes several calls, and next_expiration_ms shows that more is due."""
    herd = wheel_module.MOVES_MAX + 10
    wheel = make(1, 20, slots=herd)
    for slot in range(herd):
        wheel.add(slot, 25)
    assert advance(wheel, 25) == []
    assert wheel.next_expiration_ms() == 20
    fired = advance(wheel, 25)
    while wheel.next_expiration_ms() >= 0:
        fired += advance(wheel, 25)
    assert sorted(fired) == list(range(herd))


def test_clock_must_not_go_back() -> None:
    """A clock that goes back is an assertion error with both times."""
    wheel = make(1, 20)
    advance(wheel, 10)
    with pytest.raises(AssertionError, match="now_ms=9 wheel=10"):
        advance(wheel, 9)


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "start_ms"), [(0, 20, 0), (1, 1, 0), (1, 20, -1), (2**31 + 1, 20, 0)]
)
def test_impossible_wheels_are_refused(tick_ms: int, wheel_size: int, start_ms: int) -> None:
    """An invalid geometry is refused with the faulty value."""
    with pytest.raises(AssertionError, match="is not in"):
        TimingWheel(tick_ms, wheel_size, start_ms)


@pytest.mark.parametrize(("tick_ms", "wheel_size"), GEOMETRIES)
def test_extreme_deadlines(tick_ms: int, wheel_size: int) -> None:
    """The largest 64-bit deadline is capped and does not overflow; 0 and negative ones are due immediately."""
    wheel = make(tick_ms, wheel_size)
    assert wheel.add(0, 2**63 - 1)
    assert DEADLINE_MAX <= wheel.deadline_ms(0) < DEADLINE_MAX + tick_ms
    assert wheel.add(1, 2**62 - tick_ms)
    assert not wheel.add(2, 0)
    assert not wheel.add(3, -(2**62))
    assert advance(wheel, 2**40) == []
    assert advance(wheel, DEADLINE_MAX - 1) == ([1] if wheel.deadline_ms(1) < DEADLINE_MAX else [])
    assert 0 in advance(wheel, DEADLINE_MAX + tick_ms)
    assert wheel.count == 0


def test_ensure_keeps_what_is_linked() -> None:
    """Growing the arrays while slots are linked loses none."""
    wheel = make(1, 20, slots=1)
    wheel.add(0, 50)
    for slot in range(1, 500):
        wheel.ensure(slot + 1)
        wheel.add(slot, 50)
    wheel.ensure(10)
    assert advance(wheel, 50) == list(range(500))


def test_a_far_deadline_does_not_hide_a_near_one() -> None:
    """Two deadlines that would share a bucket on a lower level each fire in time."""
    tick = TICK_MS_MAX
    near, far = 5 * tick, (8 * WHEEL_SIZE_MAX + 5) * tick
    wheel = make(tick, WHEEL_SIZE_MAX)
    wheel.add(0, far)
    wheel.add(1, near)
    assert wheel.next_expiration_ms() == near
    assert advance(wheel, near) == [1]
    assert advance(wheel, far - 1) == []
    assert advance(wheel, far) == [0]
