"""The engine's time: whole milliseconds that never go back, and with which no wait expires early.

A wait is registered as of the end of the current millisecond and expires as of the beginning of one, so its whole
timeout has passed on a clock of any resolution. From a registration to the end of its millisecond the engine is ahead
of the clock, and nothing expires.

The service uses this time for everything, sessions and streams included. A time read from the clock itself may be a
millisecond behind the engine, which rejects it.
"""

from typing import Final

from purgatory.clock import Clock


class EngineTime:
    """The source of every `now_ms` that is passed to one engine."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._latest_ms = clock.now_ms()

    @property
    def is_ahead(self) -> bool:
        """Whether the engine was given a millisecond that is not over yet."""
        return self._latest_ms > self._clock.now_ms()

    def now_ms(self) -> int:
        """The time for everything but registrations."""
        self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        return self._latest_ms

    def registration_ms(self) -> int:
        """The time for registrations: rounded up."""
        self._latest_ms = max(self._latest_ms, self._clock.ceiling_ms())
        return self._latest_ms
