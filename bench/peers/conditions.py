"""A hand-written purgatory: an `asyncio.Condition` per key, and a task per wait that calls `wait_for`."""

import asyncio
import gc
import time
from typing import Final

from bench.measure.worker import Numbers, measured, serve

TIMEOUT_S: Final = 600.0


class Conditions:
    def __init__(self, keys: int) -> None:
        self._conditions: Final = [asyncio.Condition() for _ in range(keys)]
        self._marks: Final = [0] * keys
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self.ended = 0

    async def _wait(self, key: int, required: int) -> None:
        condition, marks = self._conditions[key], self._marks
        async with asyncio.timeout(TIMEOUT_S), condition:
            await condition.wait_for(lambda: marks[key] >= required)
        self.ended += 1

    def register(self, key: int, required: int) -> None:
        task = asyncio.create_task(self._wait(key, required))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def raise_mark(self, key: int, mark: int) -> None:
        self._marks[key] = mark
        async with self._conditions[key]:
            self._conditions[key].notify_all()

    async def ended_at_least(self, count: int) -> None:
        """Return when at least `count` waits have ended."""
        while self.ended < count:  # noqa: ASYNC110 - a turn of the loop each
            await asyncio.sleep(0)

    async def cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def register_complete(keys: int, hot: int, pending: int, step: int, events: int, seconds: float) -> Numbers:
    """The workload of bench/subjects/engine_runs.py. After each event it waits until the event's waits have ended."""
    return asyncio.run(_register_complete(keys, hot, pending, step, events, seconds))


async def _register_complete(keys: int, hot: int, pending: int, step: int, events: int, seconds: float) -> Numbers:
    conditions = Conditions(keys)
    marks = [0] * hot
    for key in range(keys):
        for required in range(1, pending + 1):
            conditions.register(key, required)
    await asyncio.sleep(0)
    gc.collect()
    taken_s, registered = 0.0, 0
    started = time.perf_counter()
    while taken_s < seconds:
        first_mark = marks[:]
        for event in range(events):
            key = event % hot
            marks[key] += step
            await conditions.raise_mark(key, marks[key])
            registered += step
            await conditions.ended_at_least(registered)
            taken_s = time.perf_counter() - started
            if taken_s >= seconds:
                break
        for key in range(hot):
            for required in range(first_mark[key] + 1, marks[key] + 1):
                conditions.register(key, pending + required)
        await asyncio.sleep(0)
        taken_s = time.perf_counter() - started
    numbers = measured(taken_s, conditions.ended)
    await conditions.cancel_all()
    return numbers


if __name__ == "__main__":
    serve({"register-complete": register_complete})
