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

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.abuse.requests.caller import SERVICE, FuzzingCaller, Tally
from tests.abuse.requests.direct import fuzz_direct
from tests.abuse.requests.random_messages import RandomMessages
from tests.abuse.requests.raw_bytes import send_grpc_garbage, send_http_garbage
from tests.abuse.requests.verdict import CHANNEL_OPTIONS, check_metrics, check_serves, faults_in, wait_until_tidy
from tests.abuse.result import Result, memory_mb
from tests.kit.daemon import DaemonProcess
from tests.kit.served_host import check_counts

# Low limits, so that each of them is reached, and the daemon's state reaches its maximum early in a run.
DAEMON_LIMITS: Final = {
    "pending_operations_max": 100,
    "partitions_max": 50,
    "signal_keys_max": 60,
    "items_per_operation_max": 100,
    "sessions_max": 24,
    "unacknowledged_results_max": 200,
}

WARM_UP_SHARE: Final = 0.3
CROWD_SHARE: Final = 0.1
"""Share of the requests that this target gets, because it is slower; the others get all of them."""
REQUESTS_PER_LIFE: Final = 5_000
GROWTH_MAX: Final = 0.05
"""Maximum growth of the daemon's memory after its warm-up."""

CALLERS: Final = 10
CALLS_OF_EACH: Final = 3
LIVING_SHARE: Final = 0.8
"""SIGTERM is sent after this share of a life's requests."""

CROWD_LIMITS: Final = {
    "pending_operations_max": 30,
    "pending_items_max": 60,
    "partitions_max": 10,
    "signal_keys_max": 6,
    "items_per_operation_max": 4,
    "timeout_ms_max": 30_000,
    "purgatory.service.translate.batch_limits.OPERATIONS_MAX": 10,
    "purgatory.service.translate.batch_limits.EVENTS_MAX": 10,
    "purgatory.service.translate.batch_limits.ITEMS_MAX": 30,
    "memory_bytes_max": 128 * 2**20,
    "purgatory.service.budget.shares.UNARY_WAITS_MAX": 3,
    "purgatory.service.rpc.call_gate.CALLS_MAX": 20,
    "purgatory.service.rpc.call_gate.CALLS_PER_CALLER_MAX": 2,
    "purgatory.service.rpc.call_gate.CALLS_QUEUED_PER_CALLER_MAX": 1,
    "sessions_max": 16,
    "purgatory.service.sources.source_links.SOURCES_MAX": 1,
    "unacknowledged_results_max": 10,
}
"""Settings, and constants by their full names."""
DAEMON_CONSTANTS: Final = {
    "purgatory.service.budget.garbage.TRIM_INTERVAL_S": 0.25,
    "purgatory.service.translate.batch_limits.OPERATIONS_MAX": 5_000,
    "purgatory.service.translate.batch_limits.EVENTS_MAX": 5_000,
}


async def fuzz_daemon(seed: int, requests: int, tally: Tally, *, warm_up: int) -> str:
    """Fuzz every service and both ports of the real daemon. `requests` are in addition to those of the warm-up.

    Returns a description of its memory use. Growth after the warm-up is a finding.
    """
    messages = RandomMessages(seed)
    flags = limit_flags(DAEMON_LIMITS)
    flags += ["--session-ttl-ms", "600", "--session-heartbeat-interval-ms", "200", "--shutdown-grace-ms", "2000"]
    with (
        tempfile.TemporaryDirectory() as folder,
        DaemonProcess(Path(folder), flags, constants=DAEMON_CONSTANTS) as daemon,
    ):
        start = memory_mb(daemon)
        if warm_up:
            await _fuzz_address(daemon, messages, tally, warm_up)
        warm = memory_mb(daemon)
        await _fuzz_address(daemon, messages, tally, requests)
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
    return memory


def limit_flags(limits: dict[str, int]) -> list[str]:
    return [flag for name, value in limits.items() for flag in (f"--limits-{name.replace('_', '-')}", str(value))]


async def _fuzz_address(daemon: DaemonProcess, messages: RandomMessages, tally: Tally, requests: int) -> None:
    """Send `requests` requests and bytes at both ports at the same time, then check that the daemon still serves."""
    health, reflection = health_pb2.DESCRIPTOR.services_by_name, reflection_pb2.DESCRIPTOR.services_by_name
    services = [SERVICE, health["Health"], reflection["ServerReflection"]]
    raw = max(20, min(2_000, requests // 200))
    async with grpc.aio.insecure_channel(daemon.address, CHANNEL_OPTIONS) as channel:
        async with asyncio.TaskGroup() as group:
            group.create_task(FuzzingCaller(channel, messages, tally, services).run(requests))
            group.create_task(send_grpc_garbage(daemon.address, messages.rng, tally, raw))
            group.create_task(send_http_garbage(daemon.http_address, messages.rng, tally, raw))
        assert daemon.process.poll() is None, f"the daemon ended with {daemon.process.returncode}:\n{daemon.log}"
        await check_serves(channel)
        await wait_until_tidy(channel, daemon)


class CrowdedMessages(RandomMessages):
    """The messages of all callers together. A third of their sessions are new, so that finished ones are evicted."""

    opened = 0

    def session_id(self) -> str:
        self.opened += 1
        return f"new-{self.opened}" if self.rng.random() < 1 / 3 else super().session_id()


async def fuzz_crowd(folder: Path, seed: int, lives: int, requests: int, tally: Tally, journal: str | None) -> None:
    """Let ten callers call `lives` daemons, one after the other and each with random tiny limits.

    Each caller has its own connection. Some sessions are shared, so that callers take them over from each other. A
    daemon gets `requests` requests, and is ended by SIGTERM while calls are in flight.

    `journal` is its mode; None: the daemon has no journal.
    """
    messages = CrowdedMessages(seed)
    arguments = ["--session-ttl-ms", "300", "--shutdown-grace-ms", "2000"]
    if journal is not None:
        arguments += ["--data-dir", str(folder / "data"), "--journal-mode", journal]
    for life in range(lives):
        limits = {
            name: value for name, value in CROWD_LIMITS.items() if messages.rng.random() < 0.5 or name == "sessions_max"
        }
        constants = {name: value for name, value in limits.items() if "." in name}
        flags = limit_flags({name: value for name, value in limits.items() if "." not in name})
        with DaemonProcess(folder / f"life-{life}", [*arguments, *flags], constants=constants) as daemon:
            await _live(daemon, messages, tally, requests)
        for fault in faults_in(daemon.log):
            tally.find(f"in the log of life {life} ({limits}): {fault}")


async def _live(daemon: DaemonProcess, messages: CrowdedMessages, tally: Tally, requests: int) -> None:
    """One life: requests, a check of all counts, and SIGTERM during further requests."""
    goal = round(requests * LIVING_SHARE)
    channels = [grpc.aio.insecure_channel(daemon.address, CHANNEL_OPTIONS) for _ in range(CALLERS)]
    callers = [FuzzingCaller(channel, messages, tally) for channel in channels]
    try:
        await _call(callers, goal)
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channels[0])
        check_counts(await stub.GetStatus(wire.GetStatusRequest()))
        check_metrics(daemon)
        calling = asyncio.create_task(_call(callers, requests - goal))
        exit_code = await asyncio.to_thread(daemon.stop)
        await calling
        if exit_code != 0:
            tally.find(f"the daemon ended with {exit_code}")
    finally:
        for channel in channels:
            await channel.close()


async def _call(callers: list[FuzzingCaller], requests: int) -> None:
    async with asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(caller.run(requests, CALLS_OF_EACH))


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
    for what, count in asyncio.run(fuzz_direct(seed, requests)).items():
        step, _, end = what.partition(": ")
        tally.count(step, end, count)
    return ""


TARGETS: Final[dict[str, Callable[[int, int, Tally, Path], str]]] = {
    "requests-daemon": _daemon,
    "requests-crowd": _crowd,
    "requests-direct": _direct,
}
