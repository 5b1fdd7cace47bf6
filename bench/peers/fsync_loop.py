"""The least that a durable answer can take: a loop that appends some bytes to a file and waits for the disk."""

import os
import tempfile
import time

from bench.drivers.latency import percentiles
from bench.measure.worker import Numbers, Parameters, serve


def append(parameters: Parameters) -> Numbers:
    """`turns` times `bytes` more in a file in `folder`, `rate` times a second: percentiles of write and sync."""
    octets = os.urandom(parameters.integer("bytes"))
    interval_s = 1 / parameters.number("rate")
    taken: list[float] = []
    with tempfile.TemporaryFile(dir=parameters.text("folder"), buffering=0) as file:
        next_s = time.perf_counter()
        for _ in range(parameters.integer("turns")):
            time.sleep(max(0.0, next_s - time.perf_counter()))
            started = time.perf_counter()
            file.write(octets)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
            next_s += interval_s
    return percentiles(taken)


if __name__ == "__main__":
    serve({"append": append})
