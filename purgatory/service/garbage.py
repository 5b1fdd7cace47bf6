"""Python's garbage collector: set for a process that holds millions of packed entries, and its pauses measured.

With the thresholds Python starts with, registering a million operations costs pauses of hundreds of milliseconds. What
the daemon stores is free of reference cycles, so rare collections lose nothing.
"""

from __future__ import annotations

import gc
import time
from typing import Final

from purgatory.service.histogram import Histogram
from purgatory.service.settings import GcSettings

PAUSE_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)


def tune(settings: GcSettings) -> None:
    """To be called once all of start-up is done: with `freeze`, what is alive now is never looked at again."""
    gc.set_threshold(settings.threshold_0, settings.threshold_1, settings.threshold_2)
    if settings.freeze:
        gc.collect()
        gc.freeze()


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
