"""The task that advances the engine's time: it expires due operations in slices and sleeps until the next expiry.

An exception is logged and counted, and the turn is retried. Many expiries at once hold the event loop for no longer
than a slice. The reaper wakes at least every `SLEEP_MS_MAX`, so that loop lag is measured, and pauses of the process
are noticed, even while idle.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from purgatory.clock import Clock
from purgatory.engine.engine import Engine
from purgatory.service.alarm import Alarm, make_alarm
from purgatory.service.listeners.listener import Listener

LOGGER: Final = logging.getLogger(__name__)

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
        """Run until cancelled."""
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
