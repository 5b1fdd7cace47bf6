"""Who held the event loop for too long: everything else that the daemon does waits meanwhile.

Measured in processor time of the loop's thread, so that a busy machine is not taken for a busy daemon.
"""

import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

WORK_PER_SLICE: Final = 6_000
"""Events and units of the engine's work (see `Engine`) that are processed before the loop is free again: 2,000 plain
waits that events end, or 5,000 items. A slice takes a few milliseconds with the compiled engine. One operation (2,000
items by default) and the effects of one event cannot be split.
"""

LOGGER: Final = logging.getLogger(__name__)

COUNTED_NS: Final = 10_000_000
"""Longer holds are counted."""
LOGGED_NS: Final = 20_000_000
"""Longer ones are logged,"""
LOG_INTERVAL_NS: Final = 10_000_000_000
"""but not more often than this."""

CALLS: Final = (
    "Wait", "Register", "Cancel", "Advance", "AttachSource",
    "ListOperations", "ListPartitions", "ListHotNames", "GetStatus",
    "results", "expiry", "stale waits", "session drop", "journal",
)  # fmt: skip
"""Shown from the start. "journal" is the sealing of its groups."""


class Watched:
    """What is done within `with watched:` is one call's, and is done without letting anybody else have the loop."""

    def __init__(self, call: str, clock_ns: Callable[[], int], on_hold: Callable[[str, int], None]) -> None:
        self.call: Final = call
        self.longest_ns = 0
        self.holds = 0
        """Those that were too long."""
        self._clock_ns: Final = clock_ns
        self._on_hold: Final = on_hold
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = self._clock_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held_ns = self._clock_ns() - self._began_ns
        self.longest_ns = max(self.longest_ns, held_ns)
        if held_ns > COUNTED_NS:
            self.holds += 1
            self._on_hold(self.call, held_ns)


class LoopHolds:
    """Watches the calls by name. To be used on the event loop's thread only; no name may be watched within itself."""

    def __init__(self, clock_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._clock_ns: Final = clock_ns
        self._by_call: Final = {call: Watched(call, clock_ns, self._on_hold) for call in CALLS}
        self._logged_at_ns = -LOG_INTERVAL_NS
        self._unlogged = 0

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._by_call.values())

    def of(self, call: str) -> Watched:
        """The one watch of a call."""
        watched = self._by_call.get(call)
        if watched is None:
            watched = self._by_call[call] = Watched(call, self._clock_ns, self._on_hold)
        return watched

    def _on_hold(self, call: str, held_ns: int) -> None:
        if held_ns <= LOGGED_NS:
            return
        self._unlogged += 1
        now_ns = time.monotonic_ns()
        if now_ns - self._logged_at_ns < LOG_INTERVAL_NS:
            return
        LOGGER.warning(
            "%s held the event loop for %d ms (%d such holds since this was last said)",
            call, held_ns // 1_000_000, self._unlogged,
        )  # fmt: skip
        self._logged_at_ns = now_ns
        self._unlogged = 0
