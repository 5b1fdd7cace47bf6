"""One time for all lives of a journal: the engine's milliseconds go on where the last daemon left them.

A journal's time begins as the wall clock of its first daemon, and then passes with the monotonic clock, so setting the
wall clock moves nothing while a daemon runs. What has passed between two daemons is:

- on the same boot of the same machine: what the boot clock says, exactly; setting the wall clock changes nothing;
- otherwise: what the wall clock says, but never less than nothing. A clock that was set back makes waits that much
  longer, never shorter than asked; one that was set forward cannot be told from a long pause, and is believed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.journal.group import Moment

NS_PER_MS: Final = 1_000_000
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Reading(NamedTuple):
    """What the machine's clocks say now, milliseconds."""

    wall_ms: int
    boot_ms: int
    boot_id: str
    """Which boot of which machine; empty: not known."""


ReadClocks = Callable[[], Reading]


def read_clocks() -> Reading:
    """The machine's own."""
    return Reading(time.time_ns() // NS_PER_MS, _boot_ms(), _boot_id())


def _boot_ms() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // NS_PER_MS


@functools.cache
def _boot_id() -> str:
    """Of this boot, which is one and the same while a process lives."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def time_now_ms(last: Moment | None, now: Reading) -> int:
    """The journal's time now, given the last moment that it knows of."""
    if last is None:
        return now.wall_ms
    if now.boot_id and now.boot_id == last.boot_id:
        passed = now.boot_ms - last.boot_ms
    else:
        passed = now.wall_ms - last.wall_ms
    return last.engine_ms + max(0, passed)
