"""Engine time that continues across restarts, from where the last daemon with this journal stopped.

A journal's time starts as the wall clock of its first daemon and then follows the monotonic clock, so setting the wall
clock has no effect while a daemon runs. The time between two daemons is:

- within one boot of the machine: the difference of the boot clock; setting the wall clock has no effect;
- otherwise: the difference of the wall clock, but never negative. If the clock was set back, waits become longer, never
  shorter than requested. If it was set forward, that cannot be distinguished from a long pause and is accepted.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.journal.group import Moment

NS_PER_MS: Final = 1_000_000
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class ClockReading(NamedTuple):
    """The machine's clocks, milliseconds."""

    wall_ms: int
    boot_ms: int
    boot_id: str
    """Identifies the boot and therefore the machine; empty: unknown."""


ReadClocks = Callable[[], ClockReading]


def read_clocks() -> ClockReading:
    return ClockReading(time.time_ns() // NS_PER_MS, boot_ms(), _boot_id())


def boot_ms() -> int:
    """The boot clock. Unlike CLOCK_MONOTONIC, it also counts the time in which the machine is suspended, and timeouts
    keep running then.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // NS_PER_MS


@functools.cache
def _boot_id() -> str:
    """Cached: it cannot change during the life of a process."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def journal_now_ms(last: Moment | None, now: ClockReading) -> int:
    """The journal's current time, given the last moment that it recorded; milliseconds."""
    if last is None:
        return now.wall_ms
    # Two unknown boots are not the same boot.
    if now.boot_id and now.boot_id == last.boot_id:
        passed_ms = now.boot_ms - last.boot_ms
    else:
        passed_ms = now.wall_ms - last.wall_ms
    return last.engine_ms + max(0, passed_ms)
