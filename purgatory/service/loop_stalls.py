"""Detects calls that hold the event loop for too long, which delays everything else that the daemon does.

Stalls are measured in processor time of the loop's thread, so a busy machine is not mistaken for a busy daemon. Shorter
pieces of work are measured by the wall clock, which takes no system call.
"""

import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

LOGGER: Final = logging.getLogger(__name__)

COUNTED_NS: Final = 10_000_000
"""Longer stalls are counted."""
LOGGED_NS: Final = 20_000_000
"""Longer stalls are logged,"""
LOG_INTERVAL_NS: Final = 10_000_000_000
"""but at most once in this interval."""
READING_NS: Final = 1_000_000
"""A reading of the processor time is used for this long, because each is a system call. So a stall may be measured as
up to this much longer.
"""

CALLS: Final = (
    "Wait", "Register", "Cancel", "Advance", "AttachSource",
    "ListOperations", "ListPartitions", "ListHotNames", "GetStatus",
    "results", "expiry", "stale waits", "session drop", "journal",
)  # fmt: skip
"""Exported as metrics from the start. "journal" is the sealing of its groups."""


class StallTimer:
    """Context manager that times one uninterrupted piece of work of a call. There must be no await inside."""

    def __init__(self, call: str, stalls: "LoopStalls") -> None:
        self.call: Final = call
        self.longest_ns = 0
        self.holds = 0
        """Number of stalls that were counted."""
        self._stalls: Final = stalls
        self._began_ns = 0
        self._read_ns = 0

    def __enter__(self) -> None:
        self._began_ns, self._read_ns = self._stalls.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held_ns = self._stalls.now_ns() - self._began_ns
        if held_ns > COUNTED_NS:
            # Processor time of this thread: a task switch inside the block would count the work of others, hence no
            # await.
            held_ns = min(held_ns, self._stalls.clock_ns() - self._read_ns)
        self.longest_ns = max(self.longest_ns, held_ns)
        if held_ns > COUNTED_NS:
            self.holds += 1
            self._stalls.on_hold(self.call, held_ns)


class LoopStalls:
    """The stall timers, by name of the call. For the event loop's thread only; a timer must not be nested in itself."""

    def __init__(
        self, clock_ns: Callable[[], int] = time.thread_time_ns, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.clock_ns: Final = clock_ns
        """Processor time of the thread."""
        self.now_ns: Final = now_ns
        self._read_at_ns = -READING_NS
        self._read_ns = 0
        self._by_call: Final = {call: StallTimer(call, self) for call in CALLS}
        self._logged_at_ns = -LOG_INTERVAL_NS
        self._unlogged = 0

    def __iter__(self) -> Iterator[StallTimer]:
        return iter(self._by_call.values())

    def begin(self) -> tuple[int, int]:
        """Return the time, and the processor time as it was last read, at most `READING_NS` ago."""
        now_ns = self.now_ns()
        if now_ns - self._read_at_ns >= READING_NS:
            self._read_at_ns, self._read_ns = now_ns, self.clock_ns()
        return now_ns, self._read_ns

    def of(self, call: str) -> StallTimer:
        watched = self._by_call.get(call)
        if watched is None:
            watched = self._by_call[call] = StallTimer(call, self)
        return watched

    def on_hold(self, call: str, held_ns: int) -> None:
        if held_ns <= LOGGED_NS:
            return
        # Counted although it may not be logged: the next line says how many there were.
        self._unlogged += 1
        now_ns = time.monotonic_ns()
        if now_ns - self._logged_at_ns < LOG_INTERVAL_NS:
            return
        LOGGER.warning(
            "%s held the event loop for %d ms (%d stalls since this was last logged)",
            call, held_ns // 1_000_000, self._unlogged,
        )  # fmt: skip
        self._logged_at_ns = now_ns
        self._unlogged = 0
