"""The timing wheel beyond Kafka's cases: limits, emptied buckets, and bugs of other projects (docs/lessons.md)."""

import pytest

from purgatory.engine.waiting import wheel as wheel_module
from purgatory.engine.waiting.wheel import DEADLINE_MAX, TICK_MS_MAX, WHEEL_SIZE_MAX, TimingWheel
from tests.engine.timer.wheel_steps import GEOMETRIES, advance, make


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
