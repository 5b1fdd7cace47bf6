"""Python's garbage collector, tuned for a process that holds millions of packed entries, and measurement of its pauses.

With Python's default thresholds, registering a million operations costs pauses of hundreds of milliseconds. The
daemon's data has no reference cycles, so rare collections leak only the few hundred bytes that gRPC leaves behind for
each call. These, and the memory freed after a burst, are reclaimed while no operation is pending.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable
from typing import Final

from purgatory.service.histogram import Histogram

THRESHOLDS: Final = (50_000, 50, 1_000)
"""New objects before the youngest generation is collected, its collections for each of the middle one, and those of the
middle one for each full one.
"""
YOUNG: Final = 1
"""The oldest generation collected while nothing is pending. A full collection would scan everything held."""

TRIM_INTERVAL_S: Final = 10.0

M_ARENA_MAX: Final = -8
"""Constant of glibc's malloc.h."""

PAUSE_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)


def tune() -> None:
    """Tune the collector of this process. Call at the end of start-up: all live objects are exempt from later
    collections.
    """
    gc.set_threshold(*THRESHOLDS)
    # Collected first, because frozen garbage would never be freed.
    gc.collect()
    gc.freeze()


def use_one_arena() -> None:
    """Make all threads allocate from one arena. Call before any thread starts.

    By default glibc gives each of gRPC's threads an arena of its own. Each arena keeps its free memory, and the little
    that gRPC leaks for a call that was cut off (grpc/grpc#43360) pins whole pages in every arena.
    """
    _function("mallopt")(M_ARENA_MAX, 1)


class PauseWatch:
    """Measures every collection of this process from `start` to `stop`."""

    def __init__(self) -> None:
        self.pauses: Final = Histogram(PAUSE_BOUNDS_MS)
        self._began: float | None = None

    def start(self) -> None:
        gc.callbacks.append(self._collection)

    def stop(self) -> None:
        gc.callbacks.remove(self._collection)

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:
            self.pauses.observe((time.perf_counter() - self._began) * 1_000)
            self._began = None


async def trim_while_idle(pending: Callable[[], int]) -> None:
    """Collect young garbage and return free memory to the system, every `TRIM_INTERVAL_S`, while `pending()` is 0.

    This blocks the event loop for some milliseconds, and for some tens of milliseconds after a burst of half a
    gigabyte, but no caller is waiting then.
    """
    trim = trim_function()
    while True:
        await asyncio.sleep(TRIM_INTERVAL_S)
        # Never under load: the pause would come on top of the latency of waits that are being served.
        if not pending():
            gc.collect(YOUNG)
            trim(0)


def trim_function() -> Callable[..., int]:
    """Return glibc's `malloc_trim`, which returns free memory to the system. Its argument is the number of bytes to
    keep.
    """
    return _function("malloc_trim")


def _function(name: str) -> Callable[..., int]:
    """Return a function of glibc's allocator; with another allocator, one that does nothing."""
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function if function is not None else lambda *_: 0
