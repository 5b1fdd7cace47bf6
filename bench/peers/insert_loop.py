"""The lower bound for an answer that is in a replicated log: a loop that inserts rows into PostgreSQL."""

import os
import time

import psycopg

from bench.drivers.latency import percentiles
from bench.measure.worker import Numbers, serve


def insert(url: str, turn_bytes: int, turns: int, rate: float) -> Numbers:
    """Insert a row of `turn_bytes` `turns` times, `rate` per second. Percentiles of the time of a commit."""
    octets = os.urandom(turn_bytes)
    taken: list[float] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (position bigserial PRIMARY KEY, content bytea)")
        next_s = time.perf_counter()
        for _ in range(turns):
            time.sleep(max(0.0, next_s - time.perf_counter()))
            started = time.perf_counter()
            connection.execute("INSERT INTO bare (content) VALUES (%s)", (octets,), binary=True)
            taken.append(time.perf_counter() - started)
            next_s += 1 / rate
    return percentiles(taken)


if __name__ == "__main__":
    serve({"insert": insert})
