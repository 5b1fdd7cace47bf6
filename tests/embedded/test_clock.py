"""The clocks of an embedded purgatory."""

import time

import pytest

from purgatory.clock import OFFSET_MS_MAX, SystemClock
from purgatory.testing import ManualClock
from tests.engine.generic.recording_operation import DEADLINE_S


def test_manual_clock_moves_only_forward() -> None:
    clock = ManualClock(5)
    assert clock.now_ms() == clock.now_ms() == 5
    assert clock.jump(10) == clock.now_ms() == 15
    assert clock.jump(0) == 15
    with pytest.raises(ValueError, match=r"jump\(-1\)"):
        clock.jump(-1)


def test_system_clock_is_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now_ms()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.now_ms() <= before + DEADLINE_S * 1000
    assert abs(clock.now_ms() - time.monotonic_ns() // 1_000_000) <= DEADLINE_S * 1000


def test_debug_clocks_have_offsets_of_their_own() -> None:
    clocks = [SystemClock(debug=True) for _ in range(3)]
    offsets = {clock.now_ms() // 1000 for clock in clocks}
    assert len(offsets) == 3
    assert all(0 <= clock._offset_ms < OFFSET_MS_MAX for clock in clocks)
