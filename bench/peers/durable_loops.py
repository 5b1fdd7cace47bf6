"""The lower bounds for a durable answer: loops that sync bytes to a file, or insert them into PostgreSQL."""

import os
import tempfile
import time
from collections.abc import Callable

import psycopg

from bench.drivers.latency import percentiles
from bench.measure.worker import Numbers, serve


def steady(store: Callable[[], object], turns: int, rate: float) -> Numbers:
    """Call `store` `turns` times, `rate` per second. Percentiles of its duration."""
    taken: list[float] = []
    next_s = time.perf_counter()
    for _ in range(turns):
        time.sleep(max(0.0, next_s - time.perf_counter()))
        started = time.perf_counter()
        store()
        taken.append(time.perf_counter() - started)
        next_s += 1 / rate
    return percentiles(taken)


def append(folder: str, turn_bytes: int, turns: int, rate: float) -> Numbers:
    """Append `turn_bytes` to a file in `folder` and sync it."""
    octets = os.urandom(turn_bytes)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:

        def store() -> None:
            file.write(octets)
            os.fdatasync(file.fileno())

        return steady(store, turns, rate)


def insert(url: str, turn_bytes: int, turns: int, rate: float) -> Numbers:
    """Insert a row of `turn_bytes` into PostgreSQL and commit it."""
    octets = os.urandom(turn_bytes)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (position bigserial PRIMARY KEY, content bytea)")
        return steady(
            lambda: connection.execute("INSERT INTO bare (content) VALUES (%s)", (octets,), binary=True), turns, rate
        )


if __name__ == "__main__":
    serve({"append": append, "insert": insert})
