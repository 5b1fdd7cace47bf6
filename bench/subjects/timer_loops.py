"""What is measured of every timer: add and cancel, and add and expire. Ours and the peers' in Python share these loops.

A timer is driven by a `TimerDriver`; the loops around it cost the same for all.
"""

import gc
import time
from typing import Final, Protocol

from bench.measure.worker import Numbers, Workload, measured

__all__ = ["TimerDriver", "timer_workloads"]

FAR_MS: Final = 30_000
TURNS: Final = 1_000


class TimerDriver(Protocol):
    """A timer with places for `count` timers; time is told in milliseconds and is not the machine's."""

    def add_all(self, places: range, delays_ms: list[int]) -> None:
        """Sets a timer at each place."""

    def replace_all(self, places: range, delays_ms: list[int]) -> None:
        """Cancels the timer at each place and sets a new one there, one after the other."""

    def turn(self) -> None:
        """What the timer needs now and then to keep up, with nothing due."""

    def expire(self, after_ms: int) -> int:
        """Runs what is due at `after_ms`; returns how many."""

    def close(self) -> None:
        """Releases what it holds."""


def timer_workloads(make: type[TimerDriver]) -> dict[str, Workload]:
    """The workloads for one kind of timer, made with its number of places."""

    def add_cancel(pending: int, seconds: float) -> Numbers:
        """One more timer and one less, over and over, beside `pending` others."""
        driver = make(pending)  # type: ignore[call-arg]
        delays = [FAR_MS + place % FAR_MS for place in range(pending)]
        driver.add_all(range(pending), delays)
        parts = [range(first, min(first + TURNS, pending)) for first in range(0, pending, TURNS)]
        parts_delays = [delays[part.start : part.stop] for part in parts]
        gc.collect()
        operations, at, taken_s = 0, 0, 0.0
        started = time.perf_counter()
        while taken_s < seconds:
            driver.replace_all(parts[at], parts_delays[at])
            operations += len(parts[at])
            at = at + 1 if at + 1 < len(parts) else 0
            driver.turn()
            taken_s = time.perf_counter() - started
        driver.close()
        return measured(taken_s, operations)

    def add_expire(count: int, delay_ms: int) -> Numbers:
        """`count` timers with one same deadline: the time to add them, and to run them all once they are due."""
        driver = make(count)  # type: ignore[call-arg]
        delays = [delay_ms] * count
        gc.collect()
        started = time.perf_counter()
        driver.add_all(range(count), delays)
        added = time.perf_counter()
        fired = driver.expire(delay_ms)
        ended = time.perf_counter()
        driver.close()
        assert fired == count, f"{fired} of {count} timers fired"
        return {**measured(ended - started, count), "drain_rate": count / (ended - added)}

    return {"timer-add-cancel": add_cancel, "timer-add-expire": add_expire}
