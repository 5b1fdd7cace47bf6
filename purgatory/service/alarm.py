"""Rings once, at the beginning of a millisecond of the machine's monotonic clock; the reaper sleeps by it.

uvloop's own timers wait in whole milliseconds from a moment that lies up to one back, and so ring up to two late. Where
the kernel has timers that are files (Linux), one of those is used: it rings when it is time. Elsewhere the loop's.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from purgatory.clock import NS_PER_MS

NS_PER_S: Final = 1_000_000_000
COUNT_BYTES: Final = 8
"""What can be read of a timer that has rung: how often."""

ABSOLUTE: Final = 1
"""Of `timerfd_settime`: the time is one of the clock, not from now."""

Ring = Callable[[float], None]
"""Is told by how many milliseconds the ring is late."""


class Alarm(Protocol):
    """One alarm. It belongs to the loop that was running when it was made."""

    def set(self, in_ms: int) -> None:
        """Ring at the beginning of the millisecond that is so many from the present one, 1 or more; and not when it was
        set to before.
        """
        ...

    def close(self) -> None:
        """It will not ring any more."""
        ...


def make_alarm(ring: Ring) -> Alarm:
    """The best that this system has."""
    try:
        return KernelAlarm(ring)
    except (AttributeError, OSError):  # no such function here, or it is refused
        return LoopAlarm(ring)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    """When a timer rings first, and how often afterwards (0: never again)."""

    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class KernelAlarm:
    """A `timerfd` of Linux. Raises where there is none."""

    def __init__(self, ring: Ring) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime: Final = libc.timerfd_settime
        self._ring: Final = ring
        self._loop: Final = asyncio.get_running_loop()
        self._at_ns = 0
        self._file: Final = _checked(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.add_reader(self._file, self._rung)

    def set(self, in_ms: int) -> None:
        """As `Alarm` has it."""
        self._at_ns = _beginning_ns(in_ms)
        setting = _Setting(first=_Timespec(*divmod(self._at_ns, NS_PER_S)))
        _checked(self._settime(self._file, ABSOLUTE, ctypes.byref(setting), None))

    def close(self) -> None:
        """As `Alarm` has it."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _rung(self) -> None:
        try:
            os.read(self._file, COUNT_BYTES)
        except BlockingIOError:
            return  # it was set anew when it had rung already
        self._ring(_late_ms(self._at_ns))


class LoopAlarm:
    """The same by a timer of the loop."""

    def __init__(self, ring: Ring) -> None:
        self._ring: Final = ring
        self._loop: Final = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, in_ms: int) -> None:
        """As `Alarm` has it."""
        self.close()
        at_ns = _beginning_ns(in_ms)
        left_s = (at_ns - time.monotonic_ns()) / NS_PER_S
        self._timer = self._loop.call_later(left_s, self._rung, at_ns)

    def close(self) -> None:
        """As `Alarm` has it."""
        if self._timer is not None:
            self._timer.cancel()

    def _rung(self, at_ns: int) -> None:
        self._ring(_late_ms(at_ns))


def _beginning_ns(in_ms: int) -> int:
    return (time.monotonic_ns() // NS_PER_MS + in_ms) * NS_PER_MS


def _late_ms(at_ns: int) -> float:
    return max(0.0, (time.monotonic_ns() - at_ns) / NS_PER_MS)


def _checked(answer: int) -> int:
    """What libc has answered. Raises its error."""
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
