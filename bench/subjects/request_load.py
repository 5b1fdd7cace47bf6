"""The load of Kafka's own benchmark of its purgatory (TestPurgatoryPerformance), on the engine.

    python -m bench.subjects.request_load  # then: run request-load rate=10000 count=50000 keys=100 p50_ms=20 p75_ms=30

Requests arrive at a rate (Poisson; 0: as fast as possible), are watched on three of the keys, and are completed from
outside after a log-normal time. Here, a request is a composite that waits for any of three marks to reach the time of
its completion, in microseconds; at that time, the mark of one of its keys is reported. Arrivals and marks that are due
are handed over together, as a client or a broker does that has several: on the next millisecond, or at once when the
last batch has taken longer.
"""

import asyncio
import heapq
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from bench.measure.worker import Numbers, serve
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.codes import COMPOSITE, HIGH_WATERMARK
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits

TIMEOUT_MS: Final = 600_000
EACH: Final = 3
BATCH_MAX: Final = 2_000
NORMAL_P75: Final = 0.674489750196082


@dataclass
class Draws:
    """Requests in order of arrival: when each arrives and how long it takes (microseconds), and its keys."""

    starts_us: list[int] = field(default_factory=list)
    takes_us: list[int] = field(default_factory=list)
    keys_of: list[tuple[int, ...]] = field(default_factory=list)


def draw(count: int, keys: int, rate: float, p50_ms: float, p75_ms: float) -> Draws:
    """The same draws as in bench/peers/kafka."""
    state, at_s, draws = 1, 0.0, Draws()
    mu = math.log(p50_ms)
    sigma = (math.log(p75_ms) - mu) / NORMAL_P75

    def uniform() -> float:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 11) / 2**53

    for _ in range(count):
        at_s += -math.log(1 - uniform()) / rate if rate else 0
        normal = math.sqrt(-2 * math.log(1 - uniform())) * math.cos(2 * math.pi * uniform())
        draws.starts_us.append(int(at_s * 1e6))
        draws.takes_us.append(max(1, int(math.exp(mu + sigma * normal) * 1e3)))
        draws.keys_of.append(tuple(int(uniform() * keys) for _ in range(EACH)))
    return draws


def now_us() -> int:
    return time.monotonic_ns() // 1_000


@dataclass
class Turn:
    """What is due: requests that arrive, each with the time of its completion, and marks to report."""

    first: int
    required: list[int]
    keys: list[int]
    """Three for each request."""
    marked: list[int]
    marks: list[int]


class Load:
    """Hands out what is due, and notes how late each request has ended."""

    def __init__(self, draws: Draws) -> None:
        self._draws: Final = draws
        self._due: Final[list[tuple[int, int]]] = []
        self._due_us: Final = [0] * len(draws.starts_us)
        self._arrived = 0
        self.late_us: Final[list[int]] = []
        self.started_us: Final = now_us()

    def turn(self) -> Turn:
        draws, at_us, first = self._draws, now_us(), self._arrived
        last = min(first + BATCH_MAX, len(draws.starts_us))
        turn = Turn(first, [], [], [], [])
        while self._arrived < last and draws.starts_us[self._arrived] <= at_us - self.started_us:
            place = self._arrived
            due_us = self._due_us[place] = at_us + draws.takes_us[place]
            heapq.heappush(self._due, (due_us, place))
            turn.required.append(due_us)
            turn.keys += draws.keys_of[place]
            self._arrived += 1
        while self._due and self._due[0][0] <= at_us and len(turn.marks) < BATCH_MAX:
            due_us, place = heapq.heappop(self._due)
            turn.marked.append(draws.keys_of[place][0])
            turn.marks.append(due_us)
        return turn

    def next_s(self) -> float:
        """Seconds until something is due."""
        starts_us = self._draws.starts_us
        due_us = [self._due[0][0]] if self._due else []
        if self._arrived < len(starts_us):
            due_us.append(self.started_us + starts_us[self._arrived])
        return (min(due_us) - now_us()) / 1e6 if due_us else 0

    def ended(self, places: list[int]) -> None:
        at_us = now_us()
        self.late_us.extend([at_us - self._due_us[place] for place in places])

    @property
    def has_more(self) -> bool:
        return len(self.late_us) < len(self._due_us)

    def numbers(self, cpu_s: float) -> Numbers:
        count, late_us = len(self.late_us), sorted(self.late_us)
        seconds = (now_us() - self.started_us) / 1e6
        quantiles = {"late_p50_us": late_us[count // 2], "late_p99_us": late_us[-1 - count // 100]}
        return {"seconds": seconds, "operations": count, "cpu_us": cpu_s * 1e6 / count, **quantiles}


async def run(load: Load, perform: Callable[[Turn], Awaitable[None]]) -> None:
    """Perform turns until all requests have ended."""
    while load.has_more:
        turn = load.turn()
        if turn.required or turn.marks:
            await perform(turn)
        if len(turn.required) < BATCH_MAX and len(turn.marks) < BATCH_MAX:
            await asyncio.sleep(max(0.001, load.next_s()))


def engine(rate: float, count: int, keys: int, p50_ms: float, p75_ms: float) -> Numbers:
    """The engine in this process."""
    draws = draw(count, keys, rate, p50_ms, p75_ms)
    subject = Engine(EngineLimits(pending_operations_max=count + 1_000), time.monotonic_ns() // 1_000_000)
    owner = subject.add_owner()
    names: list[PartitionName] = [("bench", key) for key in range(keys)]
    load = Load(draws)

    async def perform(turn: Turn) -> None:
        at_ms = time.monotonic_ns() // 1_000_000
        if turn.marks:
            events = EventBatch(
                [HIGH_WATERMARK] * len(turn.marks), partitions=names, item_indexes=turn.marked, offsets=turn.marks
            )
            subject.perform(None, Apply(events), at_ms)
        if turn.required:
            batch = OperationBatch(
                list(range(turn.first + 1, turn.first + 1 + len(turn.required))),
                partitions=names,
                item_indexes=turn.keys,
                item_counts=[EACH],
                offsets=[due_us for due_us in turn.required for _ in range(EACH)],
                required_terms=[1],
                timeouts_ms=[TIMEOUT_MS],
            )
            assert subject.perform(owner, Register(COMPOSITE, batch), at_ms).accepted == len(turn.required)
        subject.perform(None, PassTime(BATCH_MAX), at_ms)
        for completions in subject.take_completions():
            load.ended([operation_id - 1 for operation_id in completions.operation_ids])

    began_s = time.process_time()
    asyncio.run(run(load, perform))
    return load.numbers(time.process_time() - began_s)


if __name__ == "__main__":
    serve({"request-load": engine})
