"""The lower bound for a durable answer: a loop that appends bytes to a file and syncs it."""

import os
import tempfile
import time

from bench.drivers.latency import percentiles
from bench.measure.worker import Numbers, serve


def append(folder: str, turn_bytes: int, turns: int, rate: float) -> Numbers:
    """Append `turn_bytes` to a file in `folder` `turns` times, `rate` per second. Percentiles of the time to write
    and sync.
    """
    octets = os.urandom(turn_bytes)
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        next_s = time.perf_counter()
        for _ in range(turns):
            time.sleep(max(0.0, next_s - time.perf_counter()))
            started = time.perf_counter()
            file.write(octets)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
            next_s += 1 / rate
    return percentiles(taken)


if __name__ == "__main__":
    serve({"append": append})
