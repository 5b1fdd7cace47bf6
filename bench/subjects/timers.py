"""The timing wheel and Python's own timers behind one driver interface: add and cancel, add and expire.

    python -m bench.subjects.timers     # then lines such as: run timer-add-cancel timer=wheel pending=1000 seconds=1

The wheel is called from plain Python, once per timer. The engine calls it from compiled code, without the cost of such
calls, so its cost here is an upper bound. The loops around the drivers cost the same for all.
"""

import asyncio
import gc
import heapq
import time
from abc import ABC, abstractmethod
from typing import Final

from bench.measure.worker import Numbers, measured, serve
from purgatory.engine.waiting.wheel import TimingWheel

__all__ = ["TIMERS", "add_cancel", "add_expire"]

FAR_MS: Final = 30_000
TURNS: Final = 1_000
FIRED_PER_CALL: Final = 100_000
HEAP_SLACK: Final = 64


class TimerDriver(ABC):
    """A timer with places for `count` timers. Its clock is simulated: milliseconds from 0."""

    @abstractmethod
    def __init__(self, count: int) -> None: ...

    @abstractmethod
    def add_all(self, places: range, delays_ms: list[int]) -> None:
        """Set a timer at each place."""

    @abstractmethod
    def replace_all(self, places: range, delays_ms: list[int]) -> None:
        """Cancel the timer at each place and set a new one there, one after another."""

    @abstractmethod
    def expire(self, after_ms: int) -> int:
        """Run the timers that are due at `after_ms`; returns their number."""

    def turn(self) -> None:  # noqa: B027 - not all need it
        """Periodic maintenance that the timer needs, with no timer due."""

    def close(self) -> None:  # noqa: B027 - not all need it
        """Release its resources."""


class WheelDriver(TimerDriver):
    """The wheel with the daemon's settings: tick of 1 ms, 20 buckets."""

    def __init__(self, count: int) -> None:
        self._wheel: Final = TimingWheel(1, 20, 0)
        self._wheel.ensure(count)

    def add_all(self, places: range, delays_ms: list[int]) -> None:
        add = self._wheel.add
        for place, delay_ms in zip(places, delays_ms, strict=True):
            add(place, delay_ms)

    # One call for each: adding unlinks the timer that is there.
    replace_all = add_all

    def turn(self) -> None:
        """Let the wheel drop its empty buckets."""
        self._wheel.next_expiration_ms()

    def expire(self, after_ms: int) -> int:
        """Take the due timers, in slices, until none is left."""
        wheel = self._wheel
        count = 0
        while 0 <= wheel.next_expiration_ms() <= after_ms:
            fired: list[int] = []
            wheel.advance(after_ms, FIRED_PER_CALL, fired)
            count += len(fired)
        return count


class HeapDriver(TimerDriver):
    """The common hand-written timer: a `heapq` of (deadline, number) that drops cancelled entries when they reach the
    top.

    If more than half of the entries are cancelled, the heap is rebuilt, as asyncio does; otherwise it would only grow.
    """

    def __init__(self, count: int) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._live: Final = [-1] * count
        self._number = 0
        self._cancelled = 0
        self._now_ms = 0

    def add_all(self, places: range, delays_ms: list[int]) -> None:
        heap, live, push, now_ms = self._heap, self._live, heapq.heappush, self._now_ms
        number = self._number
        for place, delay_ms in zip(places, delays_ms, strict=True):
            number += 1
            live[place] = number
            push(heap, (now_ms + delay_ms, number, place))
        self._number = number

    def replace_all(self, places: range, delays_ms: list[int]) -> None:
        """Drop the live entry of each place and push another."""
        self._cancelled += len(places)
        self.add_all(places, delays_ms)
        if self._cancelled * 2 > len(self._heap) + HEAP_SLACK:
            live = self._live
            self._heap = [entry for entry in self._heap if live[entry[2]] == entry[1]]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def expire(self, after_ms: int) -> int:
        heap, live, pop = self._heap, self._live, heapq.heappop
        now_ms = self._now_ms = self._now_ms + after_ms
        count = 0
        while heap and heap[0][0] <= now_ms:
            _, number, place = pop(heap)
            if live[place] == number:
                live[place] = -1
                count += 1
        return count


class HandLoop(asyncio.SelectorEventLoop):
    """The standard library's event loop with a simulated clock, so that no time is spent waiting."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__()

    def time(self) -> float:
        """Seconds, as last set."""
        return self.now_s


class AsyncioDriver(TimerDriver):
    """asyncio's own timers: `call_later` on its event loop."""

    def __init__(self, count: int) -> None:
        self._loop: Final = HandLoop()
        self._handles: Final[list[asyncio.TimerHandle | None]] = [None] * count
        self._count = 0

    def _fire(self) -> None:
        self._count += 1

    def add_all(self, places: range, delays_ms: list[int]) -> None:
        call_later, fire, handles = self._loop.call_later, self._fire, self._handles
        for place, delay_ms in zip(places, delays_ms, strict=True):
            handles[place] = call_later(delay_ms / 1_000, fire)

    def replace_all(self, places: range, delays_ms: list[int]) -> None:
        call_later, fire, handles = self._loop.call_later, self._fire, self._handles
        for place, delay_ms in zip(places, delays_ms, strict=True):
            handle = handles[place]
            if handle is not None:
                handle.cancel()
            handles[place] = call_later(delay_ms / 1_000, fire)

    def turn(self) -> None:
        """One iteration of the loop, which drops cancelled timers if there are many."""
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def expire(self, after_ms: int) -> int:
        """Move the clock and run the loop until no timer is due."""
        self._loop.now_s += after_ms / 1_000 + 1e-6
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)
        self._loop.run_forever()
        return self._count

    def close(self) -> None:
        self._loop.close()


TIMERS: Final[dict[str, type[TimerDriver]]] = {"wheel": WheelDriver, "heapq": HeapDriver, "asyncio": AsyncioDriver}


def add_cancel(timer: str, pending: int, seconds: float) -> Numbers:
    """Add one timer and cancel one, repeatedly, with `pending` others."""
    driver = TIMERS[timer](pending)
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


def add_expire(timer: str, count: int, delay_ms: int) -> Numbers:
    """`count` timers with one deadline: the time to add them, and to run all of them once they are due."""
    driver = TIMERS[timer](count)
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


if __name__ == "__main__":
    serve({"timer-add-cancel": add_cancel, "timer-add-expire": add_expire})
