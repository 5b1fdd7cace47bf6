"""Ten callers at once, with every limit tiny, over drains and restarts of a real daemon, with or without a journal.

Each life of the daemon has other limits: that of sessions, and a random subset of the other `LIMITS`. The callers send
random plausible requests of every RPC, each over its own connection. Some of their sessions are shared, so that callers
take them over from each other. The others are new, so that finished sessions are evicted all the time. A life ends by
SIGTERM while calls are in flight.
"""

import asyncio
from pathlib import Path
from typing import Final

import grpc

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.abuse.requests.caller import FuzzingCaller
from tests.abuse.requests.plausible import PlausibleValues
from tests.abuse.requests.tally import Tally
from tests.abuse.requests.verdict import CHANNEL_OPTIONS, check_metrics, faults_in
from tests.kit.daemon import DaemonProcess
from tests.kit.served_host import check_counts

CALLERS: Final = 10
CALLS_OF_EACH: Final = 3
LIVING_SHARE: Final = 0.8
"""SIGTERM is sent after this share of a life's requests."""

LIMITS: Final = {
    "pending_operations_max": 30,
    "pending_items_max": 60,
    "partitions_max": 10,
    "signal_keys_max": 6,
    "items_per_operation_max": 4,
    "timeout_ms_max": 30_000,
    "operations_per_batch_max": 10,
    "events_per_batch_max": 10,
    "items_per_batch_max": 30,
    "memory_bytes_max": 128 * 2**20,
    "unary_waits_max": 3,
    "calls_max": 20,
    "calls_per_caller_max": 2,
    "calls_queued_per_caller_max": 1,
    "sessions_max": 16,
    "sources_max": 1,
    "unacknowledged_results_max": 10,
}


class CrowdedValues(PlausibleValues):
    """The values of all callers together. A third of their sessions are new."""

    opened = 0

    def session_id(self) -> str:
        self.opened += 1
        return f"new-{self.opened}" if self.rng.random() < 1 / 3 else super().session_id()


async def fuzz_crowd(folder: Path, seed: int, lives: int, requests: int, tally: Tally, journal: str | None) -> None:
    """Start a daemon `lives` times and send `requests` requests to each.

    `journal` is its mode; None: the daemon has no journal.
    """
    world = CrowdedValues(seed)
    arguments = ["--session-ttl-ms", "300", "--shutdown-grace-ms", "2000"]
    if journal is not None:
        arguments += ["--data-dir", str(folder / "data"), "--journal-mode", journal]
    for life in range(lives):
        limits = {name: value for name, value in LIMITS.items() if world.rng.random() < 0.5 or name == "sessions_max"}
        flags = [flag for name, value in limits.items() for flag in (f"--limits-{name.replace('_', '-')}", str(value))]
        daemon = DaemonProcess(folder / f"life-{life}", [*arguments, *flags])
        try:
            await _live(daemon, world, tally, requests)
        finally:
            daemon.kill()
        for fault in faults_in(daemon.log):
            tally.find(f"in the log of life {life} ({' '.join(flags)}): {fault}")


async def _live(daemon: DaemonProcess, world: CrowdedValues, tally: Tally, requests: int) -> None:
    """One life: requests, a check of all counts, and SIGTERM during further requests."""
    goal = round(requests * LIVING_SHARE)
    channels = [grpc.aio.insecure_channel(daemon.address, CHANNEL_OPTIONS) for _ in range(CALLERS)]
    callers = [FuzzingCaller(channel, world, tally) for channel in channels]
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
