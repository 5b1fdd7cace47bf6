"""The task that advances the engine's time: it expires due operations in slices and sleeps until the next expiry.

An exception is logged and counted, and the turn is retried. Many expiries at once hold the event loop for no longer
than a slice. The reaper wakes at least every `SLEEP_MS_MAX`, so that loop lag is measured, and pauses of the process
are noticed, even while idle.
"""

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

from purgatory.clock import NS_PER_MS, Clock
from purgatory.engine.engine import Engine
from purgatory.service.listeners.listener import Listener

LOGGER: Final = logging.getLogger(__name__)

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
    """A Linux timerfd. The constructor raises AttributeError or OSError where it is not available.

    It fires on time. uvloop's own timers count whole milliseconds from a time that may be up to one millisecond in the
    past, so they fire up to two milliseconds late.
    """

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


SLEEP_MS_MAX: Final = 100
RETRY_S: Final = 0.1


class Reaper:
    """Calls `expire_slice` whenever an operation is due."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        listeners: Listener,
        expire_slice: Callable[[], None],
        tick: Callable[[], None],
    ) -> None:
        """`tick` is called before each turn; the event loop has polled its sockets since the last one."""
        self._engine: Final = engine
        self._clock: Final = clock
        self._listeners: Final = listeners
        self.turn: Final = expire_slice
        """Expire a slice of the due operations."""
        self._tick: Final = tick
        self._woken: Final = asyncio.Event()
        self._sleeping_until_ms = -1
        """-1: awake."""

    def deadline_may_be_earlier(self) -> None:
        """Wake the reaper if an operation is due before it would wake by itself. Call after registrations."""
        # While it is awake it need not be woken: it asks the engine again before it sleeps.
        if self._sleeping_until_ms >= 0:
            next_ms = self._engine.next_expiration_ms()
            if 0 <= next_ms < self._sleeping_until_ms:
                self._woken.set()

    def wake(self) -> None:
        """Make the reaper read the clock now, for clocks that are moved by hand."""
        self._woken.set()

    async def run(self) -> None:
        alarm = make_alarm(self._on_alarm)
        try:
            while True:
                try:
                    self._tick()
                    self.turn()
                    await self._sleep(alarm)
                except Exception:
                    LOGGER.exception("expiring operations failed; will be retried")
                    self._listeners.reaper_failed()
                    await asyncio.sleep(RETRY_S)
        finally:
            alarm.close()

    async def _sleep(self, alarm: Alarm) -> None:
        """Sleep until the next expiry. If it is already due, only let other tasks run."""
        # No await from here to the sleep: a registration in between would neither be in `next_ms` nor end the sleep.
        self._woken.clear()
        now_ms = self._clock.now_ms()
        next_ms = self._engine.next_expiration_ms()
        # Also while the engine is ahead of the clock, where nothing may expire: the reaper then turns for the rest of
        # that millisecond.
        if 0 <= next_ms <= now_ms:
            await asyncio.sleep(0)
            return
        until_ms = now_ms + SLEEP_MS_MAX
        self._sleeping_until_ms = min(next_ms, until_ms) if next_ms >= 0 else until_ms
        alarm.set(self._sleeping_until_ms - now_ms)
        try:
            await self._woken.wait()
        finally:
            self._sleeping_until_ms = -1

    def _on_alarm(self, late_ms: float) -> None:
        self._listeners.loop_lag_ms(late_ms)
        self._woken.set()
