"""The engine and its timer in one process, compared with those of Kafka, Netty and Python."""

import sys
from collections.abc import Mapping
from typing import Final

from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import ROOT, Worker, run_of

__all__ = ["engine", "memory", "python_versions", "requests", "timers", "uneven"]

ENGINE: Final = "bench.subjects.engine_runs"
PATTERNS: Final = "bench.subjects.engine_patterns"
REQUESTS: Final = "bench.subjects.request_load"
STREAM: Final = "bench.drivers.request_stream"
CONDITIONS: Final = "bench.peers.conditions"
TIMERS: Final = "bench.subjects.timers"
DAEMON_SLOPE_KEYS: Final = 1_000
LEFTOVERS_FEW: Final = 900
"""Fewer than Kafka's purge interval, so that its reaper leaves them where they are."""
UNEVEN: Final[dict[str, dict[str, float]]] = {
    "five-partitions": {"partitions": 100, "pending": 2_000},
    "zipf": {"keys": 1_000, "pending": 20},
    "falling": {"pending": 10_000, "step": 10},
}
"""Workloads with an uneven load, and their parameters."""
PYTHONS: Final = ROOT / ".build" / "pythons"
"""Where `make bench-pythons` makes an environment for each other version, named by it."""


def running(peers: Mapping[str, Worker | None], workload: str, **parameters: float) -> dict[str, Measure | None]:
    """The workload of each peer; None for peers that are not available."""
    return {name: None if worker is None else run_of(worker, workload, **parameters) for name, worker in peers.items()}


def shape(pending: int) -> dict[str, float]:
    """Keys and step for `pending` waits per key: many keys with few waits, or one key with many."""
    if pending <= 1_000:
        return {"keys": 100, "hot": 100, "pending": pending, "step": 1, "events": 100}
    return {"keys": 1, "hot": 1, "pending": pending, "step": 10, "events": 50}


def engine(lab: Lab) -> None:
    """Throughput: register and complete, hot keys, a million pending, expire all, cancel all; and fetch evaluations."""
    scale = lab.scale
    ours, kafka, conditions = lab.worker(ENGINE), lab.jvm("kafka"), lab.worker(CONDITIONS)
    register_complete: dict[str, dict[str, float]] = {
        **{f"pending={pending}": shape(pending) for pending in scale.register_complete},
        "hot-keys=1%": {"keys": 10_000, "hot": 100, "pending": scale.hot_pending, "step": 1, "events": 100},
    }
    for name, work in register_complete.items():
        work["seconds"] = scale.seconds
        is_slow = name.startswith("hot") and not scale.slow_peers
        lab.measure(
            [Figure(f"engine/register-complete/{name}", "ops/s")],
            ("engine", run_of(ours, "register-complete", **work)),
            running({"kafka": kafka, "asyncio": None if is_slow else conditions}, "register-complete", **work),
        )
    many = {"keys": 1_000, "hot": 1_000, "step": 1, "events": 1_000, "seconds": scale.seconds}
    lab.measure(
        [Figure(f"engine/register-complete/total={scale.total_pending}", "ops/s")],
        ("engine", run_of(ours, "register-complete", **many, pending=scale.total_pending // 1_000)),
        {"self": run_of(ours, "register-complete", **many, pending=1)},
    )
    single = {"keys": 1, "hot": 1, "pending": 10_000, "seconds": scale.seconds}
    lab.measure(
        [Figure("engine/register-complete/marks-of-1", "ops/s")],
        ("engine", run_of(ours, "register-complete", **single, step=1, events=500)),
        {"self": run_of(ours, "register-complete", **single, step=100, events=5)},
    )
    for workload in ("expire-all", "cancel-all"):
        work = {"count": scale.herd // 5, "keys": 100, "delay_ms": scale.delay_ms // 2}
        lab.measure(
            [Figure(f"engine/{workload}", "ops/s")],
            ("engine", run_of(ours, workload, **work)),
            running({"kafka": kafka}, workload, **work),
        )
    work = {"fetches": scale.fetches, "appends": 1_024}
    lab.measure(
        [
            Figure("engine/fetch-evaluations", "evaluations/fetch", "evaluations"),
            Figure("engine/fetch-appends", "ops/s"),
        ],
        ("engine", run_of(ours, "fetch-evaluations", **work)),
        running({"kafka": kafka}, "fetch-evaluations", **work),
        runs=1,
    )


def uneven(lab: Lab) -> None:
    """Throughput with several partitions per operation, skewed keys, and falling offsets."""
    patterns, kafka = lab.worker(PATTERNS), lab.jvm("kafka")
    for workload, parameters in UNEVEN.items():
        work = {**parameters, "seconds": lab.scale.seconds}
        lab.measure(
            [Figure(f"engine/{workload}", "ops/s")],
            ("engine", run_of(patterns, workload, **work)),
            running({"kafka": kafka}, workload, **work),
        )


def python_versions(lab: Lab) -> None:
    """Register and complete on other versions of Python, each compared with this one."""
    work = {**shape(100), "seconds": lab.scale.seconds}
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = sorted(path for path in PYTHONS.glob("*") if path.name != here)
    if not others:
        lab.skip("engine/python-versions: no other Python, see make bench-pythons")
    for other in others:
        if not list(ROOT.glob(f"purgatory_engine__mypyc.cpython-{other.name.replace('.', '')}-*.so")):
            lab.skip(f"engine/python-versions/{other.name}: the engine is not compiled for it, see make bench-pythons")
            continue
        worker = lab.worker(ENGINE, interpreter=str(other / "bin" / "python"))
        lab.measure(
            [Figure(f"engine/python-versions/{other.name}", "ops/s")],
            ("engine", run_of(worker, "register-complete", **work)),
            {here: run_of(lab.worker(ENGINE), "register-complete", **work)},
        )


def requests(lab: Lab) -> None:
    """The load of Kafka's own benchmark of its purgatory, on the engine and through the daemon: processor time of a
    request at two rates, and throughput.
    """
    kafka, process = lab.jvm("kafka"), lab.daemon()
    subjects: dict[str, tuple[Worker, dict[str, str | float]]] = {
        "engine": (lab.worker(REQUESTS), {}),
        "service": (lab.worker(STREAM), {"address": process.address, "process_id": process.process_id}),
    }
    for subject, (ours, where) in subjects.items():
        for rate in (10_000, 50_000):
            work: dict[str, float] = {
                "rate": rate,
                "count": int(2 * rate * lab.scale.seconds),
                "keys": 100,
                "p50_ms": 20,
                "p75_ms": 30,
            }
            name = f"{subject}/requests/rate={rate}"
            lab.measure(
                [Figure(f"{name}/cpu", "us", "cpu_us"), Figure(f"{name}/late-p99", "us", "late_p99_us")],
                (subject, run_of(ours, "request-load", **where, **work)),
                running({"kafka": kafka}, "request-load", **work),
            )
        work = {"rate": 0, "count": int(300_000 * lab.scale.seconds), "keys": 100, "p50_ms": 20, "p75_ms": 20.001}
        lab.measure(
            [Figure(f"{subject}/requests/all-at-once", "ops/s")],
            (subject, run_of(ours, "request-load", **where, **work)),
            running({"kafka": kafka}, "request-load", **work),
        )


def timers(lab: Lab) -> None:
    """Add and cancel, add and expire, and expiring one deadline: the wheel compared with four other timers."""
    scale = lab.scale
    jvm = {name: lab.jvm(name) for name in ("kafka", "netty")}
    figures = {
        "timer-add-cancel": [Figure("timer/add-cancel", "ops/s")],
        "timer-add-expire": [Figure("timer/add-expire", "ops/s"), Figure("timer/drain", "ops/s", "drain_rate")],
    }
    works: dict[str, dict[str, float]] = {
        "timer-add-cancel": {"pending": scale.timers, "seconds": scale.seconds},
        "timer-add-expire": {"count": scale.herd, "delay_ms": scale.delay_ms},
    }
    for workload, work in works.items():
        in_python = {
            name: run_of(lab.worker(TIMERS, name), workload, timer=name, **work)
            for name in ("wheel", "asyncio", "heapq")
        }
        ours = in_python.pop("wheel")
        lab.measure(figures[workload], ("wheel", ours), {**running(jvm, workload, **work), **in_python})


def memory(lab: Lab) -> None:
    """Bytes per pending single-partition produce: in the engine's process, in Kafka's heap, in the whole daemon; and
    what remains under one of two keys after the operations have ended through the other.
    """
    work = {"count": lab.scale.memory, "keys": DAEMON_SLOPE_KEYS}

    def of_engine() -> dict[str, float]:
        with lab.fresh_worker(ENGINE) as worker:
            return worker.run("memory", **work)

    lab.measure(
        [Figure("memory/engine", "B", "bytes")],
        ("engine", of_engine),
        running({"kafka": lab.jvm("kafka")}, "memory", **work),
        runs=1,
        warm_up=False,
    )
    burst, few = lab.scale.timers, LEFTOVERS_FEW
    for count, figures in {
        burst: [Figure(f"memory/leftovers/burst={burst}", "entries", "entries")],
        few: [
            Figure(f"memory/leftovers/{few}", "entries", "later"),
            Figure(f"memory/leftovers/{few}/bytes", "B", "bytes"),
        ],
    }.items():
        lab.measure(
            figures,
            ("engine", run_of(lab.worker(ENGINE), "leftovers", count=count)),
            running({"kafka": lab.jvm("kafka")}, "leftovers", count=count),
            runs=1,
        )
    process = lab.daemon()
    driver = lab.worker("bench.drivers.parked")
    lab.measure_once(
        [Figure("memory/daemon", "B", "bytes")],
        "daemon",
        lambda: driver.run("park", address=process.address, process_id=process.process_id, **work),
    )
