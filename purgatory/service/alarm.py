"""An alarm that fires at the beginning of a millisecond of the machine's monotonic clock. The reaper sleeps by it.

uvloop's own timers count whole milliseconds from a time that may be up to one millisecond in the past, so they fire up
to two milliseconds late. On kernels with timerfd (Linux), timerfd is used: it fires on time. Elsewhere, the loop's
timers are used.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from purgatory.clock import NS_PER_MS

NS_PER_S: Final = 1_000_000_000
COUNT_BYTES: Final = 8
"""Size of the counter that is read from a timerfd that has fired."""

TFD_TIMER_ABSTIME: Final = 1
"""For `timerfd_settime`: the time is absolute, not from now."""

OnAlarm = Callable[[float], None]
"""Called with the lateness of the alarm in milliseconds."""


class Alarm(Protocol):
    """One alarm. It belongs to the event loop that was running when it was created."""

    def set(self, in_ms: int) -> None:
        """Fire once, at the beginning of the millisecond `in_ms` (at least 1) after the current one.

        Replaces an earlier setting.
        """

    def close(self) -> None:
        """Cancel the alarm and free its resources."""


def make_alarm(on_alarm: OnAlarm) -> Alarm:
    """Create the most precise alarm that this system supports."""
    try:
        return KernelAlarm(on_alarm)
    except (AttributeError, OSError):  # the function is missing here, or calls to it are refused
        return LoopAlarm(on_alarm)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    """`struct itimerspec`: an interval of 0 fires once."""

    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class KernelAlarm:
    """A Linux timerfd. The constructor raises AttributeError or OSError where it is not available."""

    def __init__(self, on_alarm: OnAlarm) -> None:
        # With a copy of errno for ctypes: the one of the C library may be overwritten before `_checked` reads it.
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime: Final = libc.timerfd_settime
        self._on_alarm: Final = on_alarm
        self._loop: Final = asyncio.get_running_loop()
        self._at_ns = 0
        self._file: Final = _checked(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.add_reader(self._file, self._fired)

    def set(self, in_ms: int) -> None:
        self._at_ns = _beginning_ns(in_ms)
        # Absolute: the time that passes on the way into the kernel does not make the alarm later.
        setting = _Setting(first=_Timespec(*divmod(self._at_ns, NS_PER_S)))
        _checked(self._settime(self._file, TFD_TIMER_ABSTIME, ctypes.byref(setting), None))

    def close(self) -> None:
        # First: a descriptor that is closed may be given to another file, which the loop would then watch.
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _fired(self) -> None:
        try:
            os.read(self._file, COUNT_BYTES)
        except BlockingIOError:
            return  # it was set again after it had fired, and before this callback ran
        self._on_alarm(_late_ms(self._at_ns))


class LoopAlarm:
    """A timer of the event loop."""

    def __init__(self, on_alarm: OnAlarm) -> None:
        self._on_alarm: Final = on_alarm
        self._loop: Final = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, in_ms: int) -> None:
        self.close()
        at_ns = _beginning_ns(in_ms)
        # From the present time and not `in_ms`: the current millisecond may be nearly over.
        left_s = (at_ns - time.monotonic_ns()) / NS_PER_S
        self._timer = self._loop.call_later(left_s, self._fired, at_ns)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self, at_ns: int) -> None:
        self._on_alarm(_late_ms(at_ns))


def _beginning_ns(in_ms: int) -> int:
    # Milliseconds of the same clock as `SystemClock`: a fraction earlier, and the reaper would find nothing due.
    return (time.monotonic_ns() // NS_PER_MS + in_ms) * NS_PER_MS


def _late_ms(at_ns: int) -> float:
    return max(0.0, (time.monotonic_ns() - at_ns) / NS_PER_MS)


def _checked(result: int) -> int:
    """Return the result of a libc function; raises OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
