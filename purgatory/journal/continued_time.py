"""Time that continues over restarts: the engine's milliseconds go on where the last daemon with this journal stopped.

A journal's time begins as the wall clock of its first daemon and then follows the monotonic clock, so setting the wall
clock changes nothing while a daemon runs. The time between two daemons is:

- within one boot of the machine: exactly what the boot clock says; setting the wall clock changes nothing;
- otherwise: what the wall clock says, but never negative. A clock that was set back makes waits that much longer, never
  shorter than asked; one that was set forward cannot be distinguished from a long pause, and is
  believed.
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
    """What the machine's clocks say now, milliseconds."""

    wall_ms: int
    boot_ms: int
    boot_id: str
    """Identifies the boot, and with it the machine; empty: not known."""


ReadClocks = Callable[[], ClockReading]


def read_clocks() -> ClockReading:
    return ClockReading(time.time_ns() // NS_PER_MS, _boot_ms(), _boot_id())


def _boot_ms() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // NS_PER_MS


@functools.cache
def _boot_id() -> str:
    """Read once: it cannot change while a process lives."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def journal_now_ms(last: Moment | None, now: ClockReading) -> int:
    """The journal's time now, given the last moment that it recorded."""
    if last is None:
        return now.wall_ms
    if now.boot_id and now.boot_id == last.boot_id:
        passed_ms = now.boot_ms - last.boot_ms
    else:
        passed_ms = now.wall_ms - last.wall_ms
    return last.engine_ms + max(0, passed_ms)
