"""Helpers for tests of programs that embed the purgatory: a clock that is advanced by hand."""

from typing import Final

__all__ = ["ManualClock"]


class ManualClock:
    """A `Clock` in milliseconds that only `jump` moves."""

    is_manual: Final = True
    """A thread that sleeps in real time cannot follow this clock, and refuses it."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """The current time, in milliseconds."""
        return self._now_ms

    def ceiling_ms(self) -> int:
        """The same as `now_ms`: the time is always a whole millisecond."""
        return self._now_ms

    def jump(self, ms: int) -> int:
        """Move forward by `ms` (0 or more) and return the new time. Raises ValueError for a negative jump."""
        if ms < 0:
            raise ValueError(f"time does not go back: jump({ms})")
        self._now_ms += ms
        return self._now_ms
