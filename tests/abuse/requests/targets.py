"""The targets of fuzzed requests: a daemon, daemons with tiny limits, and the host without gRPC. Each run ends with
checks of the target's state.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.abuse.requests.caller import SERVICE, FuzzingCaller
from tests.abuse.requests.crowd import fuzz_crowd
from tests.abuse.requests.direct import fuzz_direct
from tests.abuse.requests.plausible import PlausibleValues
from tests.abuse.requests.raw_bytes import send_grpc_garbage, send_http_garbage
from tests.abuse.requests.tally import Tally
from tests.abuse.requests.verdict import CHANNEL_OPTIONS, check_metrics, check_serves, faults_in, wait_until_tidy
from tests.abuse.result import Result, memory_mb
from tests.kit.daemon import DaemonProcess

# Low limits, so that each of them is reached, and the daemon's state reaches its maximum early in a run.
ENGINE_LIMITS: Final = {
    "pending_operations_max": 100,
    "partitions_max": 50,
    "signal_keys_max": 60,
    "items_per_operation_max": 100,
}
HOST_LIMITS: Final = {
    "sessions_max": 24,
    "unacknowledged_results_max": 200,
    "operations_per_batch_max": 5_000,
    "events_per_batch_max": 5_000,
}

SESSION_TTL_MS: Final = 600
TIDY_INTERVAL_MS: Final = 250
HEARTBEAT_INTERVAL_MS: Final = 200
WARM_UP_SHARE: Final = 0.3
CROWD_SHARE: Final = 0.1
"""Share of the requests that this target gets, because it is slower; the others get all of them."""
REQUESTS_PER_LIFE: Final = 5_000
GROWTH_MAX: Final = 0.05
"""Maximum growth of the daemon's memory after its warm-up."""


async def fuzz_daemon(seed: int, requests: int, tally: Tally, *, warm_up: int) -> str:
    """Fuzz every service and both ports of the real daemon. `requests` are in addition to those of the warm-up.

    Returns a description of its memory use. Growth after the warm-up is a finding.
    """
    world = PlausibleValues(seed)
    with tempfile.TemporaryDirectory() as folder:
        daemon = DaemonProcess(Path(folder), daemon_arguments())
        try:
            start = memory_mb(daemon)
            if warm_up:
                await _fuzz_address(daemon, world, tally, warm_up)
            warm = memory_mb(daemon)
            await _fuzz_address(daemon, world, tally, requests)
            end = memory_mb(daemon)
            growth = end / warm - 1
            figures = [f"{figure:.1f} MiB" for figure in (start, warm, end)]
            memory = f"{figures[0]} at start, {figures[1]} warm, {figures[2]} at the end ({growth:+.1%})"
            check_metrics(daemon)
            if warm_up and abs(growth) > GROWTH_MAX:
                tally.find(f"memory: {memory}")
            exit_code = daemon.stop()
            if exit_code != 0:
                tally.find(f"the daemon ended with {exit_code}")
            for fault in faults_in(daemon.log):
                tally.find(f"in the daemon's log: {fault}")
        finally:
            daemon.kill()
    return memory


def daemon_arguments() -> list[str]:
    """Flags of a daemon with limits that are reached."""
    all_limits = ENGINE_LIMITS | HOST_LIMITS
    limits = [flag for name, value in all_limits.items() for flag in (f"--limits-{name.replace('_', '-')}", str(value))]
    session = ["--session-ttl-ms", str(SESSION_TTL_MS), "--session-heartbeat-interval-ms", str(HEARTBEAT_INTERVAL_MS)]
    return [*limits, *session, "--gc-tidy-interval-ms", str(TIDY_INTERVAL_MS), "--shutdown-grace-ms", "2000"]


async def _fuzz_address(daemon: DaemonProcess, world: PlausibleValues, tally: Tally, requests: int) -> None:
    """Send `requests` requests and bytes at both ports at the same time, then check that the daemon still serves."""
    health, reflection = health_pb2.DESCRIPTOR.services_by_name, reflection_pb2.DESCRIPTOR.services_by_name
    services = [SERVICE, health["Health"], reflection["ServerReflection"]]
    raw = max(20, min(2_000, requests // 200))
    async with grpc.aio.insecure_channel(daemon.address, CHANNEL_OPTIONS) as channel:
        async with asyncio.TaskGroup() as group:
            group.create_task(FuzzingCaller(channel, world, tally, services).run(requests))
            group.create_task(send_grpc_garbage(daemon.address, world.rng, tally, raw))
            group.create_task(send_http_garbage(daemon.http_address, world.rng, tally, raw))
        assert daemon.process.poll() is None, f"the daemon ended with {daemon.process.returncode}:\n{daemon.log}"
        await check_serves(channel)
        await wait_until_tidy(channel, daemon)


def fuzz(name: str, seed: int, requests: int, folder: Path) -> Result:
    """Run one of `TARGETS`. Returns a row of the table; its faults are the findings."""
    tally, result = Tally(), Result(name)
    result.figures = TARGETS[name](seed, requests, tally, folder)
    result.tally = {f"{rpc} {status}": count for (rpc, status), count in tally.requests.items()}
    result.figures += f"{tally.total:,} requests; {dict(tally.items)}"
    result.faults = list(tally.findings)
    return result


def _daemon(seed: int, requests: int, tally: Tally, _folder: Path) -> str:
    warm_up = round(requests * WARM_UP_SHARE)
    return f"{asyncio.run(fuzz_daemon(seed, requests - warm_up, tally, warm_up=warm_up))}; "


def _crowd(seed: int, requests: int, tally: Tally, folder: Path) -> str:
    """Many lives of daemons: in memory, and with both modes of the journal."""
    lives = max(1, round(requests * CROWD_SHARE) // REQUESTS_PER_LIFE // 3)
    for journal in (None, "sync", "async"):
        asyncio.run(fuzz_crowd(folder / str(journal), seed, lives, REQUESTS_PER_LIFE, tally, journal))
    return ""


def _direct(seed: int, requests: int, tally: Tally, _folder: Path) -> str:
    for what, count in fuzz_direct(seed, requests).items():
        step, _, end = what.partition(": ")
        tally.count(step, end, count)
    return ""


TARGETS: Final[dict[str, Callable[[int, int, Tally, Path], str]]] = {
    "requests-daemon": _daemon,
    "requests-crowd": _crowd,
    "requests-direct": _direct,
}
