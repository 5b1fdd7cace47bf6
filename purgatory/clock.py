"""Sources of time. The engine never reads a clock; its owner does, through this interface.

Time is monotonic milliseconds with an arbitrary origin. Wall-clock time is used for records only, and does not come
from here.
"""

import random
import time
from typing import Final, Protocol

NS_PER_MS: Final = 1_000_000
OFFSET_MS_MAX: Final = 2**40
"""35 years: beyond any real uptime, far below any limit of the engine."""

PAUSE_MS_MIN: Final = 250
"""A longer time between two ticks is a pause, milliseconds. Ticks come at least every 100 ms, see `Reaper`."""
SETTLE_MS: Final = 500
"""What arrived during a pause is read in this time after it, which belongs to the pause, milliseconds."""


class Clock(Protocol):
    """A source of monotonic milliseconds."""

    def now_ms(self) -> int:
        """Whole milliseconds since an arbitrary origin; never decreases."""

    def ceiling_ms(self) -> int:
        """The first whole millisecond that is not in the past."""


def given_or_system_clock(clock: Clock | None) -> Clock:
    """Return `clock`, or the machine's clock if it is None. Raises TypeError if it is not a clock."""
    if clock is None:
        return SystemClock()
    if not (hasattr(clock, "now_ms") and hasattr(clock, "ceiling_ms")):
        raise TypeError(f"clock: something with now_ms() and ceiling_ms() is expected, not {clock!r}")
    return clock


class ContinuedClock:
    """Another clock, shifted so that it continues from `start_ms`."""

    def __init__(self, clock: Clock, start_ms: int) -> None:
        self._clock: Final = clock
        self._ahead_ms: Final = start_ms - clock.now_ms()

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms

    def ceiling_ms(self) -> int:
        return self._clock.ceiling_ms() + self._ahead_ms


class SystemClock:
    """The machine's monotonic clock.

    With `debug` each instance adds a random offset of its own, so that code which confuses it with another clock, or
    with wall-clock time, fails loudly instead of being right by chance.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self._offset_ms: Final = random.randrange(OFFSET_MS_MAX) if debug else 0  # noqa: S311 - not a secret

    def now_ms(self) -> int:
        """Milliseconds since the machine's arbitrary origin, plus the offset."""
        return time.monotonic_ns() // NS_PER_MS + self._offset_ms

    def ceiling_ms(self) -> int:
        return -(-time.monotonic_ns() // NS_PER_MS) + self._offset_ms


class EngineTime:
    """The source of every `now_ms` that is passed to one engine: it never goes back, and no wait expires early.

    A wait is registered as of the end of the current millisecond and expires as of the beginning of one, so its whole
    timeout has passed on a clock of any resolution. From a registration to the end of its millisecond the engine is
    ahead of the clock, and nothing expires. The service uses this time for everything: a time read from the clock
    itself may be a millisecond behind the engine, which rejects it.
    """

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


class ListeningTime:
    """Engine time without the pauses of its owner. Silences and staleness are measured by it, so that nobody is called
    silent whose messages could not be read.

    A pause is a time without ticks, which come from the event loop whenever it has polled its sockets: the process was
    stopped, or something held the loop. Nothing is a pause before the first tick.
    """

    def __init__(self, time: EngineTime) -> None:
        self._time: Final = time
        self._ticked_ms = -1
        self._paused_ms = 0
        self._settled_ms = -1
        """End of the last pause. May be in the future."""
        self._latest_ms = -1

    def tick(self) -> None:
        """Call once `take_pause` has returned 0."""
        self._ticked_ms = self._time.now_ms()

    def take_pause(self, now_ms: int) -> int:
        """Return the length of the pause that ends at this engine time, with the time to settle; 0: there was none."""
        if self._ticked_ms < 0 or now_ms - self._ticked_ms <= PAUSE_MS_MIN:
            return 0
        pause_ms = now_ms + SETTLE_MS - max(self._ticked_ms, self._settled_ms)
        self._paused_ms += pause_ms
        self._ticked_ms, self._settled_ms = now_ms, now_ms + SETTLE_MS
        return pause_ms

    def now_ms(self) -> int:
        """The listening time. It stands still in a pause."""
        now_ms = self._time.now_ms()
        if self._ticked_ms >= 0 and now_ms - self._ticked_ms > PAUSE_MS_MIN:
            now_ms = self._ticked_ms  # a pause that has not been taken yet
        self._latest_ms = max(self._latest_ms, now_ms - self._paused_ms)
        return self._latest_ms
