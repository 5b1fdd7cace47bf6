"""The least that a durable answer can take: a loop that appends some bytes to a file and waits for the disk."""

import os
import tempfile
import time

from bench.drivers.latency import percentiles
from bench.measure.worker import Numbers, serve


def append(folder: str, turn_bytes: int, turns: int, rate: float) -> Numbers:
    """`turns` times `turn_bytes` more in a file in `folder`, `rate` times a second: percentiles of write and sync."""
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
