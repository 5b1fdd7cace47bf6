"""The alarm by which the reaper sleeps, the kernel's and the loop's: it rings once, when it was last set to."""

import asyncio
import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from purgatory.clock import NS_PER_MS
from purgatory.service import alarm as alarm_module
from purgatory.service.alarm import Alarm, KernelAlarm, LoopAlarm, OnAlarm, make_alarm

PATIENCE_S = 60.0
LOOP_RESOLUTION_MS = 1
"""Loops may ring so much too early, by their own reckoning in time."""

Make = Callable[[OnAlarm], Alarm]
both = pytest.mark.parametrize("make", [KernelAlarm, LoopAlarm])


class Rings:
    """When an alarm has rung."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.late_ms: list[float] = []
        self._rung = asyncio.Event()

    def ring(self, late_ms: float) -> None:
        """It rings."""
        self.at_ns.append(time.monotonic_ns())
        self.late_ms.append(late_ms)
        self._rung.set()

    async def next(self) -> None:
        """Returns after the next ring."""
        await asyncio.wait_for(self._rung.wait(), PATIENCE_S)
        self._rung.clear()


@both
async def test_rings_at_the_beginning_of_a_millisecond_and_not_before(make: Make) -> None:
    """Set to so many milliseconds from now, it rings once that millisecond has begun, and says how late it is."""
    rings = Rings()
    alarm = make(rings.ring)
    for in_ms in (1, 2, 20):
        set_ms = time.monotonic_ns() // NS_PER_MS
        alarm.set(in_ms)
        await rings.next()
        early_ms_max = LOOP_RESOLUTION_MS if make is LoopAlarm else 0
        assert rings.at_ns[-1] // NS_PER_MS >= set_ms + in_ms - early_ms_max
        late_ms_max = (rings.at_ns[-1] - (set_ms + in_ms) * NS_PER_MS) / NS_PER_MS
        assert 0 <= rings.late_ms[-1] <= max(0.0, late_ms_max)
    alarm.close()
    assert len(rings.at_ns) == 3


@both
async def test_only_the_last_setting_rings(make: Make) -> None:
    """Set again, it rings then, earlier or later, and not when it was set to before."""
    rings = Rings()
    alarm = make(rings.ring)
    alarm.set(3_600_000)
    alarm.set(1)
    await rings.next()
    alarm.set(1)
    time.sleep(0.005)  # noqa: ASYNC251 - the loop has not looked at what has rung by then
    alarm.set(3_600_000)
    other = Rings()
    later = make(other.ring)
    later.set(5)
    await other.next()
    assert len(rings.at_ns) == 1
    alarm.close()
    later.close()


@both
async def test_closed_alarm_is_silent(make: Make) -> None:
    """Closed, it does not ring, even if it was about to; nothing of it stays open."""
    files = open_files()
    rings, other = Rings(), Rings()
    closed = make(rings.ring)
    closed.set(1)
    time.sleep(0.005)  # noqa: ASYNC251 - it has rung, and the loop has not looked yet
    closed.close()
    alarm = make(other.ring)
    alarm.set(5)
    await other.next()
    alarm.close()
    assert not rings.at_ns
    assert open_files() == files


async def test_the_loop_rings_where_the_kernel_has_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without the call has an alarm, too; and one that refuses it."""
    assert isinstance(make_alarm(print), KernelAlarm)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert isinstance(make_alarm(print), LoopAlarm)
    monkeypatch.undo()
    monkeypatch.setattr(alarm_module, "_checked", refuse)
    assert isinstance(make_alarm(print), LoopAlarm)


def refuse(_answer: int) -> int:
    """What libc has answered is an error."""
    raise OSError(24, "too many open files")


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
