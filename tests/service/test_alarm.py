"""The reaper's alarm, by the kernel's timer and by the loop's: it fires once, at the time of its last setting."""

import asyncio
import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from purgatory.clock import NS_PER_MS
from purgatory.service import reaper as alarm_module
from purgatory.service.reaper import Alarm, KernelAlarm, LoopAlarm, OnAlarm, make_alarm
from tests.kit.eventually import PATIENCE_S

LOOP_RESOLUTION_MS = 1
"""Loops may fire up to this much early, because of their own resolution in time."""

Make = Callable[[OnAlarm], Alarm]
both = pytest.mark.parametrize("make", [KernelAlarm, LoopAlarm])


class Rings:
    """Records when an alarm has fired."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.late_ms: list[float] = []
        self._rung = asyncio.Event()

    def ring(self, late_ms: float) -> None:
        """Record that the alarm has fired."""
        self.at_ns.append(time.monotonic_ns())
        self.late_ms.append(late_ms)
        self._rung.set()

    async def next(self) -> None:
        """Return after the next time the alarm fires."""
        await asyncio.wait_for(self._rung.wait(), PATIENCE_S)
        self._rung.clear()


@both
async def test_rings_at_the_beginning_of_a_millisecond_and_not_before(make: Make) -> None:
    """The alarm fires once the given millisecond has begun, and reports its lateness."""
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
    rings = Rings()
    alarm = make(rings.ring)
    alarm.set(3_600_000)
    alarm.set(1)
    await rings.next()
    alarm.set(1)
    time.sleep(0.005)  # noqa: ASYNC251 - the loop must not process the expired timer before
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
    """A closed alarm does not fire, even if it was about to, and leaves no file open."""
    files = open_files()
    rings, other = Rings(), Rings()
    closed = make(rings.ring)
    closed.set(1)
    time.sleep(0.005)  # noqa: ASYNC251 - it has fired, and the loop has not processed it
    closed.close()
    alarm = make(other.ring)
    alarm.set(5)
    await other.next()
    alarm.close()
    assert not rings.at_ns
    assert open_files() == files


async def test_the_loop_rings_where_the_kernel_has_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_alarm(print), KernelAlarm)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert isinstance(make_alarm(print), LoopAlarm)
    monkeypatch.undo()
    monkeypatch.setattr(alarm_module, "_checked", refuse)
    assert isinstance(make_alarm(print), LoopAlarm)


def refuse(_answer: int) -> int:
    """Fail as if libc had returned an error."""
    raise OSError(24, "too many open files")


def open_files() -> int:
    """Return the number of open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))
