"""The time that the engine is told: whole milliseconds that never go back, and with which no wait expires early.

A wait is registered as of the end of the running millisecond, and expires as of the beginning of one: so the whole of
its timeout has gone by on however fine a clock. Between a registration and the end of its millisecond the engine is
ahead, and nothing expires.
"""

from __future__ import annotations

from typing import Final

from purgatory.clock import Clock


class EngineTime:
    """One engine's time, by a clock. What is told to the engine comes from here."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._told_ms = clock.now_ms()

    @property
    def is_ahead(self) -> bool:
        """True: the engine has been told a millisecond that is not over yet."""
        return self._told_ms > self._clock.now_ms()

    def now_ms(self) -> int:
        """For all that happens, but registrations."""
        self._told_ms = max(self._told_ms, self._clock.now_ms())
        return self._told_ms

    def registration_ms(self) -> int:
        """For registrations: rounded up."""
        self._told_ms = max(self._told_ms, self._clock.ceiling_ms())
        return self._told_ms
