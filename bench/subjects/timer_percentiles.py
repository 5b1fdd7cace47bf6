"""The time of each operation of the wheel, called from plain Python, as bench/timer_table.py describes it."""

import gc
import time
from array import array
from typing import Final

from bench.measure.worker import Numbers, serve
from purgatory.engine.waiting.wheel import TimingWheel

FAR_MS: Final = 600_000
DUE_MS: Final = 2_000
PARTS: Final = {"p50": 500, "p99": 990, "p999": 999}


def percentiles(pending: int, samples: int) -> Numbers:
    """Measure the wheel, called from plain Python."""
    wheel = TimingWheel(1, 20, 0)
    herd = range(pending, pending + samples // 10)
    wheel.ensure(herd.stop)
    random = 1

    def draw() -> int:
        nonlocal random
        random = random * 25_214_903_917 + 11 & (1 << 48) - 1
        return random >> 16

    for place in range(pending):
        wheel.add(place, FAR_MS + draw() % FAR_MS)
    clock, now_ms = time.perf_counter_ns, 0
    gc.collect()
    for _ in range(2):
        taken = {name: array("q") for name in ("clock", "add", "cancel", "expire")}
        for _ in range(samples):
            place, deadline_ms = draw() % pending, now_ms + FAR_MS + draw() % FAR_MS
            began = clock()
            started = clock()
            wheel.remove(place)
            cancelled = clock()
            wheel.add(place, deadline_ms)
            added = clock()
            taken["clock"].append(started - began)
            taken["add"].append(added - cancelled)
            taken["cancel"].append(cancelled - started)
        now_ms += DUE_MS
        for place in herd:
            wheel.add(place, now_ms)
        fired: list[int] = []
        while len(fired) < len(herd):
            started = clock()
            wheel.advance(now_ms, 1, fired)
            taken["expire"].append(clock() - started)
    return {
        f"{name}_{part}": float(values[len(values) * share // 1_000])
        for name, values in ((name, sorted(values)) for name, values in taken.items())
        for part, share in PARTS.items()
    }


if __name__ == "__main__":
    serve({"timer-percentiles": percentiles})
