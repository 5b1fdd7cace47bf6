"""Monitors the actual size of the process, as a backstop of the memory budget; see `shares`.

While the process is over the budget, nothing new is admitted and free memory is returned to the system. It can be over
the budget although everything counted is within it, when gRPC holds much uncounted memory: incomplete messages, and
answers that callers do not read. Calls whose messages are late are therefore ended before the budget is full, so that
one caller's incomplete messages do not cause refusals for another.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from purgatory.service.budget.garbage import YOUNG, trim_function
from purgatory.service.budget.shares import MemoryBudget

LOGGER: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 0.1
TRIM_INTERVAL_S: Final = 1.0
"""Minimum interval between trims, seconds: returning half a gigabyte takes some tens of milliseconds."""
FILLING_SHARE: Final = 0.75
"""Late calls are ended if the process uses this share of the budget,"""
UNCOUNTED_SHARE: Final = 0.125
"""and uncounted memory takes this share of it."""
LOG_INTERVAL_S: Final = 10.0
RESIDENT_FIELD: Final = 1
"""Index of the number of resident pages in statm."""

STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Resident memory of the process, bytes; 0 if the system does not report it."""
    try:
        return int(STATM.read_bytes().split()[RESIDENT_FIELD]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class MemoryWatch:
    """Measures at an interval, while it runs, and updates the budget."""

    def __init__(
        self,
        budget: MemoryBudget,
        measure: Callable[[], int] = resident_bytes,
        trim: Callable[..., int] | None = None,
        end_late_calls: Callable[..., int] = lambda *, is_short: 0,  # noqa: ARG005 - called by that name
    ) -> None:
        self._budget: Final = budget
        self._measure: Final = measure
        self._trim: Final = trim or trim_function()
        self._end_late_calls: Final = end_late_calls
        self._has_ended_calls = False
        self._trimmed_s = -TRIM_INTERVAL_S
        self._logged_s = -LOG_INTERVAL_S
        self._told_s = -LOG_INTERVAL_S
        self._calls_ended = 0
        """Calls ended since the last log line about it."""

    async def run(self) -> None:
        """Measure until cancelled. The present size of the process is taken as the size of the program."""
        # At the start, before callers arrive: later it would count their memory as that of the program.
        self._budget.program_bytes = self._measure()
        loop = asyncio.get_running_loop()
        while True:
            self.look(loop.time())
            await asyncio.sleep(INTERVAL_S)

    def look(self, now_s: float) -> None:
        """Measure once. Over the budget, or if much of it is uncounted, trim; in the second case end late calls too."""
        budget = self._budget
        measured = self._measure()
        # Also after calls were ended: what they held is free memory of the allocator until it is trimmed. And before
        # uncounted memory reduces the shares: what is free must not.
        worth_it = measured > budget.bytes_max or self._has_ended_calls or self._uncounted_bytes(measured) > 0
        if worth_it and now_s - self._trimmed_s >= TRIM_INTERVAL_S:
            self._trimmed_s, self._has_ended_calls = now_s, False
            gc.collect(YOUNG)
            self._trim(0)
            # Again: what the trim gave back must not count as used until the next look.
            measured = self._measure()
        budget.uncounted_bytes = self._uncounted_bytes(measured)
        budget.is_short = measured > budget.bytes_max
        if budget.is_short or budget.uncounted_bytes:
            ended = self._end_late_calls(is_short=budget.is_short)
            if ended:
                self._has_ended_calls = True
                self._calls_ended += ended
        if self._calls_ended and now_s - self._told_s >= LOG_INTERVAL_S:
            LOGGER.warning(
                "%d calls ended since this was last logged because their messages were late; "
                "memory use is %d of %d bytes",
                self._calls_ended,
                measured,
                budget.bytes_max,
            )
            self._told_s, self._calls_ended = now_s, 0
        if budget.is_short and now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            parts = ", ".join(f"{name} {size}" for name, size in budget.parts().items() if size)
            LOGGER.warning(
                "memory use of %d bytes exceeds the budget of %d; new work is refused (by part: %s)",
                measured,
                budget.bytes_max,
                parts,
            )

    def _uncounted_bytes(self, measured: int) -> int:
        """Memory that nothing counts, in bytes, if it is much and the process nears its budget; otherwise 0."""
        budget = self._budget
        if measured <= FILLING_SHARE * budget.bytes_max:
            return 0
        uncounted = measured - budget.taken_bytes()
        return uncounted if uncounted > UNCOUNTED_SHARE * budget.bytes_max else 0
