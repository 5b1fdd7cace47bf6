"""asyncio's own timers: `call_later` on its event loop, whose clock is moved by hand so that nothing is waited for."""

import asyncio
from typing import Final

from bench.measure.worker import serve
from bench.subjects.timer_loops import timer_workloads


class HandLoop(asyncio.SelectorEventLoop):
    """The loop of the standard library with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__()

    def time(self) -> float:
        """Seconds, as last set."""
        return self.now_s


class AsyncioDriver:
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
        """One turn of the loop: it drops cancelled timers when they are many."""
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def expire(self, after_ms: int) -> int:
        """Moves the clock and lets the loop turn until nothing is due."""
        self._loop.now_s += after_ms / 1_000 + 1e-6
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)
        self._loop.run_forever()
        return self._count

    def close(self) -> None:
        self._loop.close()


if __name__ == "__main__":
    serve(timer_workloads(AsyncioDriver))
