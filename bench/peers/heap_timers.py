"""The timer most people write: `heapq` of (deadline, number), cancelled ones marked and dropped when they come up.

Where more than half are cancelled the heap is built anew, as asyncio does, or it would only grow.
"""

import heapq
from typing import Final

from bench.measure.worker import serve
from bench.subjects.timer_loops import timer_workloads

SLACK: Final = 64


class HeapDriver:
    """A heap of timers, with the live one of each place."""

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
        """Forgets the live entry of each place and pushes another."""
        self._cancelled += len(places)
        self.add_all(places, delays_ms)
        if self._cancelled * 2 > len(self._heap) + SLACK:
            live = self._live
            self._heap = [entry for entry in self._heap if live[entry[2]] == entry[1]]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def turn(self) -> None:
        """Nothing to do."""

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

    def close(self) -> None:
        """Nothing to do."""


if __name__ == "__main__":
    serve(timer_workloads(HeapDriver))
