"""The daemon over loopback, compared with an echo server, Redis, and a simple asyncio service."""

import time
from typing import Final

from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import WorkerFailed, run_of
from bench.measure.worker import Numbers

__all__ = ["herd", "latency", "lateness", "throughput"]

CLIENT: Final = "bench.drivers.client"
UNARY: Final = "bench.drivers.unary"
LATENCY: Final = "bench.drivers.latency"
PARKED: Final = "bench.drivers.parked"
REDIS: Final = "bench.drivers.redis_load"
ECHO: Final = "bench.peers.echo_server"
LANES: Final = 8
CALLERS: Final = 64
INTERVAL_MS: Final = 10
ATTEMPTS: Final = 4
CALIBRATION: Final = 4
"""Duration of the load, as a multiple of the time the probes take without it."""


def throughput(lab: Lab) -> None:
    """Operations per second: in columns, awaited one by one, and as unary calls."""
    scale = lab.scale
    seconds = 2 * scale.seconds
    ours, http, echo = lab.daemon().address, lab.daemon().http_address, lab.server(ECHO).address
    client, unary = lab.worker(CLIENT), lab.worker(UNARY)
    batches = {"batch": 500, "lanes": LANES, "seconds": seconds}
    conditions = lab.server("bench.peers.conditions_server").address
    lab.measure(
        [Figure("service/columns/batch=500", "ops/s")],
        ("daemon", run_of(client, "columns", address=ours, **batches)),
        {
            "echo": run_of(client, "columns", address=echo, **batches),
            "redis": _redis_columns(lab, seconds, together=1),
            "asyncio": run_of(unary, "conditions", address=conditions, batch=100, lanes=LANES, seconds=seconds),
        },
    )
    lab.measure(
        [Figure("service/columns/batch=500/one-script-call", "ops/s")],
        ("daemon", run_of(client, "columns", address=ours, **batches)),
        {"redis": _redis_columns(lab, seconds, together=500)},
    )
    single = {"in_flight": scale.in_flight, "seconds": seconds}
    lab.measure(
        [Figure(f"service/individual/in-flight={scale.in_flight}", "ops/s")],
        ("daemon", run_of(client, "individual", address=ours, **single)),
        {"echo": run_of(client, "individual", address=echo, **single)},
    )
    calls = {"callers": CALLERS, "seconds": seconds}
    lab.measure(
        [Figure("service/wait-satisfied", "calls/s")],
        ("daemon", run_of(unary, "wait-satisfied", address=ours, **calls)),
        {"echo": run_of(unary, "empty", address=echo, **calls)},
    )
    lab.measure(
        [Figure("service/wait-satisfied/json", "calls/s")],
        ("daemon", run_of(unary, "wait-satisfied-json", address=ours, http=http, **calls)),
        {"grpc": run_of(unary, "wait-satisfied", address=ours, **calls)},
    )


def _redis_columns(lab: Lab, seconds: float, together: int) -> Measure | None:
    server = lab.redis()
    if server is None:
        return None
    driver = lab.worker(REDIS)
    return run_of(driver, "columns", address=server.address, together=together, batch=500, lanes=LANES, seconds=seconds)


def latency(lab: Lab) -> None:
    """Time from an event to its result: idle, and at half the maximum throughput with a million pending."""
    scale = lab.scale
    process, echo = lab.daemon(), lab.server(ECHO).address
    probe, ping, client = lab.worker(LATENCY), lab.worker(LATENCY, "ping"), lab.worker(CLIENT)
    pinging = run_of(ping, "ping", address=echo, count=scale.probes)
    relaying = run_of(ping, "relay", address=lab.server("bench.peers.relay_server").address, count=scale.probes)
    probing = run_of(probe, "event-to-result", address=process.address, count=scale.probes)
    at_the_wire = run_of(probe, "wire-to-wire", address=process.address, count=scale.probes)
    for name, measured in (("event-to-result", probing), ("event-to-result-wire", at_the_wire)):
        lab.measure(
            [
                Figure(f"service/{name}/p50", "us", "p50_us", "p50_us"),
                Figure(f"service/{name}/p99", "us", "p99_us", "p50_us", ("echo",)),
                Figure(f"service/{name}/p99", "us", "p99_us", "p99_us", ("relay",)),
            ],
            ("daemon", measured),
            {"echo": pinging, "relay": relaying},
        )
    work: dict[str, str | float] = {"address": process.address, "batch": 500, "lanes": LANES}
    lab.worker(PARKED).run("park", address=process.address, count=scale.total_pending, keys=1_000)
    best = client.run("columns", **work, seconds=scale.seconds)
    rate = best["operations"] / best["seconds"] / 2
    begun = time.monotonic()
    probing()
    load_s = CALIBRATION * (time.monotonic() - begun)

    def loaded() -> Numbers:
        client.begin("columns", **work, seconds=load_s, rate=rate)
        time.sleep(min(1.0, load_s / 10))  # the load must be running before the first probe
        until = time.monotonic() + load_s * 9 / 10
        numbers = probing()
        ended = time.monotonic()
        client.result()
        if ended > until:
            lab.skip(
                f"the half-load probes ran {ended - until:.1f} s longer than the load, so that row is not reliable"
            )
        return numbers

    lab.measure(
        [
            Figure("service/event-to-result-half-load/p50", "us", "p50_us", "p50_us"),
            Figure("service/event-to-result-half-load/p99", "us", "p99_us", "p50_us"),
        ],
        ("daemon", loaded),
        {"echo": pinging},
        runs=min(3, scale.runs),
        warm_up=False,
    )


def lateness(lab: Lab) -> None:
    """Lateness of expiring waits with a million others pending, compared with bare timers at the same rate."""
    scale = lab.scale
    ours, bare = lab.worker("bench.subjects.lateness"), lab.worker("bench.subjects.lateness", "bare")
    rate = scale.expire_rate
    seconds = 3 * scale.seconds
    lab.measure(
        [Figure("service/expiry-lateness/p50", "ms", "p50_ms"), Figure("service/expiry-lateness/p99", "ms", "p99_ms")],
        ("daemon", run_of(ours, "waits", rate=rate, pending=scale.total_pending, seconds=seconds)),
        {
            "asyncio": run_of(bare, "timers", rate=rate, seconds=seconds),
            "uvloop": run_of(bare, "uvloop-timers", rate=rate, seconds=seconds),
        },
        runs=min(3, scale.runs),
        warm_up=False,
    )


def herd(lab: Lab) -> None:
    """Many operations with the same deadline: how fast they expire, and how long an `Advance` takes at that time."""
    scale = lab.scale
    address = lab.daemon().address
    driver, prober, redis_driver = lab.worker(PARKED), lab.worker(LATENCY), lab.worker(REDIS)
    kafka, redis = lab.jvm("kafka"), lab.redis()
    drain_s, filling_s = 1.0, scale.delay_ms / 1_000

    def advances(start_s: float, seconds: float) -> Numbers:
        prober.begin("advances", address=address, interval_ms=INTERVAL_MS, start_s=start_s, seconds=seconds)
        return prober.result()

    def stampede() -> Numbers:
        nonlocal drain_s, filling_s
        for attempt in range(ATTEMPTS):
            deadline_s = time.monotonic() + filling_s
            driver.begin("herd", address=address, count=scale.herd, keys=100, deadline_s=deadline_s)
            advanced = advances(deadline_s, 0.9 * drain_s)
            try:
                numbers = driver.result()
            except WorkerFailed:
                if attempt + 1 == ATTEMPTS:
                    raise
                filling_s *= 2  # the deadline passed before all were registered
                continue
            drain_s = numbers["seconds"]
            break
        return {**numbers, "p99_us": advanced["p99_us"]}

    expire = {"count": scale.herd, "delay_ms": scale.delay_ms}
    lab.measure(
        [
            Figure("service/herd/drain", "ops/s", "rate", "drain_rate", ("kafka",)),
            Figure("service/herd/drain", "ops/s", peers=("redis",)),
            Figure("service/herd/advance-p99", "us", "p99_us", peers=("self",)),
        ],
        ("daemon", stampede),
        {
            "kafka": None if kafka is None else run_of(kafka, "timer-add-expire", **expire),
            "redis": None if redis is None else run_of(redis_driver, "herd", address=redis.address, count=scale.herd),
            "self": lambda: advances(time.monotonic(), max(1.0, drain_s)),
        },
        runs=min(3, scale.runs),
    )
