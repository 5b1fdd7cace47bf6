"""Python's garbage collector: set for a process that holds millions of packed entries, and its pauses measured.

With the thresholds Python starts with, registering a million operations costs pauses of hundreds of milliseconds. What
the daemon stores is free of reference cycles, so rare collections lose nothing but what gRPC leaves of each call, some
hundred bytes. That, and the memory that a burst has left free, is dealt with while nobody waits.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable
from typing import Final

from purgatory.service.listeners.histogram import Histogram
from purgatory.service.settings import GcSettings

YOUNG: Final = 1
"""The oldest generation that is collected while nobody waits: a full collection would walk all that is known."""

M_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""

PAUSE_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)


def tune(settings: GcSettings) -> None:
    """To be called once all of start-up is done: with `freeze`, what is alive now is never looked at again."""
    gc.set_threshold(settings.threshold_0, settings.threshold_1, settings.threshold_2)
    if settings.freeze:
        gc.collect()
        gc.freeze()


def use_one_arena() -> None:
    """Threads that start from now on allocate from one pool. To be called before there are any.

    Else glibc gives each of gRPC's threads a pool of its own. Each keeps what it has free, and the little that gRPC
    never gives back of a call that was cut (grpc/grpc#43360) keeps whole pages from the system, in all of them.
    """
    _function("mallopt")(M_ARENA_MAX, 1)


class PauseWatch:
    """Measures every collection of this process from `start` to `stop`."""

    def __init__(self) -> None:
        self.pauses: Final = Histogram(PAUSE_BOUNDS_MS)
        self._began: float | None = None

    def start(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._collection)

    def stop(self) -> None:
        """End it."""
        gc.callbacks.remove(self._collection)

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:
            self.pauses.observe((time.perf_counter() - self._began) * 1_000)
            self._began = None


class Tidying:
    """Collects young garbage and gives free memory back to the system, at an interval, while `pending` says 0.

    The event loop stands still meanwhile: some milliseconds, some tens after a burst of half a gigabyte. Nobody waits.
    """

    def __init__(self, interval_ms: int, pending: Callable[[], int]) -> None:
        self._interval_s: Final = interval_ms / 1_000
        self._pending: Final = pending
        self._trim: Final = _function("malloc_trim")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, on the running loop; with an interval of 0 it never does."""
        if self._interval_s > 0:
            self._task = asyncio.create_task(self._run(), name="tidying")

    def stop(self) -> None:
        """Ends it."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if not self._pending():
                gc.collect(YOUNG)
                self._trim(0)


def _function(name: str) -> Callable[..., int]:
    """A function of glibc's allocator; where there is another one, nothing."""
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return function if function is not None else lambda *_: 0
