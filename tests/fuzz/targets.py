"""What is fuzzed: the real servicer on a loopback channel in this process, and the real daemon as a process."""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from bench.measure.worker import resident_bytes
from purgatory.engine.limits import EngineLimits
from purgatory.service.settings import HostSettings, LimitsSettings, SessionSettings
from tests.daemon_process import DaemonProcess
from tests.fuzz.fuzzing_caller import SERVICE, FuzzingCaller
from tests.fuzz.plausible import PlausibleValues
from tests.fuzz.raw_bytes import send_grpc_garbage, send_http_garbage
from tests.fuzz.tally import Tally
from tests.fuzz.verdict import check_metrics, check_serves, faults_in, wait_until_tidy
from tests.service.serving import serving

# Low, so that every limit is met, and that the daemon holds early in a run all that it may hold.
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

SESSION_TTL_MS: Final = 1_500
TIDY_INTERVAL_MS: Final = 1_000
HEARTBEAT_INTERVAL_MS: Final = 400
GROWTH_MAX: Final = 0.05
"""How much more memory the daemon may hold after the run than after its warm-up."""

CHANNEL_OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Records(logging.Handler):
    """Records errors logged in this process as findings."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(logging.ERROR)
        self._tally: Final = tally

    def emit(self, record: logging.LogRecord) -> None:
        self._tally.find(f"logged: {logging.Formatter().format(record)}")


@asynccontextmanager
async def faults_noted(tally: Tally) -> AsyncIterator[None]:
    """While the block runs, errors logged and exceptions that reach the event loop are findings."""
    loop = asyncio.get_running_loop()

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tally.find(f"unhandled: {context.get('message')}: {context.get('exception')!r}")

    handler = Records(tally)
    logging.getLogger().addHandler(handler)
    loop.set_exception_handler(note)
    try:
        yield
    finally:
        loop.set_exception_handler(None)
        logging.getLogger().removeHandler(handler)


async def fuzz_servicer(seed: int, requests: int, tally: Tally) -> None:
    """The real servicer and host in this process, over a loopback channel."""
    settings = HostSettings(
        limits=LimitsSettings(**HOST_LIMITS),
        session=SessionSettings(ttl_ms=SESSION_TTL_MS, heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS),
    )
    async with (
        faults_noted(tally),
        serving(settings, EngineLimits(**ENGINE_LIMITS)) as served,
        grpc.aio.insecure_channel(served.address, CHANNEL_OPTIONS) as channel,
    ):
        await FuzzingCaller(channel, PlausibleValues(seed), tally).run(requests)
        await check_serves(channel)


async def fuzz_daemon(seed: int, requests: int, tally: Tally, *, warm_up: int) -> str:
    """The real daemon: every service it has, and its ports. `requests` come on top of those of the warm-up.

    Returns how its memory went. Growth after a warm-up is a finding.
    """
    world = PlausibleValues(seed)
    with tempfile.TemporaryDirectory() as folder:
        daemon = DaemonProcess(Path(folder), daemon_arguments())
        try:
            start = resident_bytes(daemon.process.pid)
            await _fuzz_address(daemon, world, tally, warm_up)
            warm = resident_bytes(daemon.process.pid)
            await _fuzz_address(daemon, world, tally, requests)
            end = resident_bytes(daemon.process.pid)
            growth = end / warm - 1
            figures = [f"{figure / 2**20:.1f} MiB" for figure in (start, warm, end)]
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
    """Flags of a daemon whose limits are met."""
    all_limits = ENGINE_LIMITS | HOST_LIMITS
    limits = [flag for name, value in all_limits.items() for flag in (f"--limits-{name.replace('_', '-')}", str(value))]
    session = ["--session-ttl-ms", str(SESSION_TTL_MS), "--session-heartbeat-interval-ms", str(HEARTBEAT_INTERVAL_MS)]
    return [*limits, *session, "--gc-tidy-interval-ms", str(TIDY_INTERVAL_MS), "--shutdown-grace-ms", "2000"]


async def _fuzz_address(daemon: DaemonProcess, world: PlausibleValues, tally: Tally, requests: int) -> None:
    """So many requests, bytes at both ports meanwhile, then proof that it still serves."""
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
