"""For tests of programs that embed the purgatory: a clock that is moved by hand."""

from typing import Final


class ManualClock:
    """A `Clock` that only `jump` moves. Milliseconds."""

    is_manual: Final = True
    """A thread that sleeps by real time cannot follow this clock, and refuses it."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """The time set by the last `jump`."""
        return self._now_ms

    def ceiling_ms(self) -> int:
        """The same as `now_ms`, which is always at a whole millisecond."""
        return self._now_ms

    def jump(self, ms: int) -> int:
        """Move forward by `ms` (0 or more) and return the new time. Raises ValueError for a negative jump."""
        if ms < 0:
            raise ValueError(f"time does not go back: jump({ms})")
        self._now_ms += ms
        return self._now_ms
