"""The last level of the wheel: deadlines at the far end of time beside near ones."""

from __future__ import annotations

from purgatory.engine.waiting.wheel import TICK_MS_MAX, WHEEL_SIZE_MAX
from tests.engine.timer.wheel_steps import advance, make


def test_a_far_deadline_does_not_hide_a_near_one() -> None:
    """Two deadlines whose buckets would be the same one on a lower level fire each in its time."""
    tick = TICK_MS_MAX
    near, far = 5 * tick, (8 * WHEEL_SIZE_MAX + 5) * tick
    wheel = make(tick, WHEEL_SIZE_MAX)
    wheel.add(0, far)
    wheel.add(1, near)
    assert wheel.next_expiration_ms() == near
    assert advance(wheel, near) == [1]
    assert advance(wheel, far - 1) == []
    assert advance(wheel, far) == [0]
