"""The subject of the timer benchmarks: the timing wheel alone, one call from plain Python for each timer.

The engine calls it from compiled code, without the cost of such calls; so these figures are the wheel's upper bound.
"""

from typing import Final

from bench.measure.worker import serve
from bench.subjects.timer_loops import timer_workloads
from purgatory.engine.waiting.wheel import TimingWheel

FIRED_PER_CALL: Final = 100_000


class WheelDriver:
    """A wheel as the daemon has it: tick of 1 ms, 20 buckets."""

    def __init__(self, count: int) -> None:
        self._wheel: Final = TimingWheel(1, 20, 0)
        self._wheel.ensure(count)

    def add_all(self, places: range, delays_ms: list[int]) -> None:
        add = self._wheel.add
        for place, delay_ms in zip(places, delays_ms, strict=True):
            add(place, delay_ms)

    def replace_all(self, places: range, delays_ms: list[int]) -> None:
        """One call for each: adding unlinks the timer that is there, as the heap's forgets it."""
        self.add_all(places, delays_ms)

    def turn(self) -> None:
        """Lets the wheel drop the buckets that ran empty."""
        self._wheel.next_expiration_ms()

    def expire(self, after_ms: int) -> int:
        """Takes what is due, in slices, until nothing is."""
        wheel = self._wheel
        count = 0
        while 0 <= wheel.next_expiration_ms() <= after_ms:
            fired: list[int] = []
            wheel.advance(after_ms, FIRED_PER_CALL, fired)
            count += len(fired)
        return count

    def close(self) -> None:
        """Nothing to do."""


if __name__ == "__main__":
    serve(timer_workloads(WheelDriver))
