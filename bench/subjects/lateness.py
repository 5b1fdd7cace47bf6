"""Lateness of expiring waits: the daemon's own host and reaper on a real clock, compared with bare `call_later` timers.

Both get timers at the same rate and at random moments, as a network would deliver them, but without a network. Lateness
is measured from the moment of registration, with a finer clock than the daemon's; a negative value is too early. No
wait may be early, nor is any timer of asyncio's own loop. Timers of uvloop, on which the daemon runs, are early by up
to a millisecond.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from bench.measure.worker import Numbers, on_uvloop, serve
from purgatory.clock import SystemClock
from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import EXPIRED, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.budget import garbage
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Completed, Listener
from purgatory.service.settings import HostSettings
from purgatory.service.translate.operations import OperationRun

TURN_S: Final = 0.005
"""Timers are set in batches, one at a random moment of each period of this length."""

TIMEOUT_MS: Final = 100
HOUR_MS: Final = 3_600_000
PARK_BATCH: Final = 10_000


class Watch(Listener):
    """Records the lateness of each measured wait that expires."""

    def __init__(self) -> None:
        self.due_s: Final[dict[int, float]] = {}
        self.late_s: Final[list[float]] = []

    def completed(self, event: Completed) -> None:
        completions = event.completions
        now_s = time.monotonic()
        for operation_id, outcome in zip(completions.operation_ids, completions.outcomes, strict=True):
            assert outcome == EXPIRED, f"operation {operation_id} ended with outcome {outcome}"
            self.late_s.append(now_s - self.due_s.pop(operation_id))


def summary(late_s: list[float]) -> Numbers:
    """Percentiles in milliseconds, and the earliest value."""
    ordered = sorted(late_s)
    return {
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1e3,
        "earliest_ms": ordered[0] * 1e3,
        "operations": float(len(ordered)),
    }


async def at_random_moments(turn: Callable[[], None], seconds: float) -> None:
    """Call `turn` on the running loop at a random moment of each period, triggered by another thread, as by a
    network.
    """
    loop, moment = asyncio.get_running_loop(), random.Random(1)

    def schedule() -> None:
        start_s = time.monotonic()
        for number in range(round(seconds / TURN_S)):
            time.sleep(max(0.0, start_s + (number + moment.random()) * TURN_S - time.monotonic()))
            loop.call_soon_threadsafe(turn)

    await asyncio.to_thread(schedule)


@on_uvloop
async def waits(rate: int, pending: int, seconds: float) -> Numbers:
    """`rate` waits per second that all expire, with `pending` others that do not, for `seconds`."""
    clock, watch = SystemClock(), Watch()
    engine = Engine(EngineLimits(pending_operations_max=2 * pending + rate), clock.now_ms())
    host = Host(engine, clock, HostSettings(), watch)
    session, _ = host.sessions.open("bench", clock.now_ms())
    partitions = [("bench", partition) for partition in range(100)]
    next_id = 1
    for first in range(0, pending, PARK_BATCH):
        ids = range(next_id, next_id + min(PARK_BATCH, pending - first))
        next_id = ids.stop
        indexes = [number % len(partitions) for number in ids]
        batch = OperationBatch(
            list(ids), partitions=partitions, item_indexes=indexes, offsets=[1], timeouts_ms=[HOUR_MS]
        )
        host.registration(session).register([OperationRun(PRODUCE, batch)], [])
    host.start()
    garbage.tune()
    each = round(rate * TURN_S)

    def register() -> None:
        nonlocal next_id
        ids = range(next_id, next_id + each)
        next_id = ids.stop
        batch = OperationBatch(list(ids), partitions=partitions[:1], offsets=[1], timeouts_ms=[TIMEOUT_MS])
        due_s = time.monotonic() + TIMEOUT_MS / 1_000
        watch.due_s.update(dict.fromkeys(ids, due_s))
        host.registration(session).register([OperationRun(PRODUCE, batch)], [])
        session.acknowledge(session.outbox.last_sequence)

    await at_random_moments(register, seconds)
    while watch.due_s:  # noqa: ASYNC110 - once, at the end
        await asyncio.sleep(TURN_S)
    await host.stop()
    assert min(watch.late_s) >= 0, f"a wait expired {-min(watch.late_s):.6f} s too early"
    return summary(watch.late_s)


def timers(rate: int, seconds: float) -> Numbers:
    """The same with one `call_later` per timer, and nothing else on asyncio's own loop."""
    return asyncio.run(_timers(rate, seconds))


async def _timers(rate: int, seconds: float) -> Numbers:
    loop = asyncio.get_running_loop()
    late_s: list[float] = []
    set_count = 0

    def fire(due_s: float) -> None:
        late_s.append(time.monotonic() - due_s)

    garbage.tune()

    def set_timers() -> None:
        nonlocal set_count
        set_count += each
        for _ in range(each):
            loop.call_later(TIMEOUT_MS / 1_000, fire, time.monotonic() + TIMEOUT_MS / 1_000)

    each = round(rate * TURN_S)
    await at_random_moments(set_timers, seconds)
    while len(late_s) < set_count:  # noqa: ASYNC110 - once, at the end
        await asyncio.sleep(TURN_S)
    return summary(late_s)


uvloop_timers = on_uvloop(_timers)

if __name__ == "__main__":
    serve({"waits": waits, "timers": timers, "uvloop-timers": uvloop_timers})
