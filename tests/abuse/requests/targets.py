"""The targets of fuzzed requests: a daemon, and daemons with tiny limits. Each run ends with checks of their state."""

import asyncio
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.abuse.requests.caller import SERVICE, FuzzingCaller, Tally
from tests.abuse.requests.daemon_checks import check_metrics, check_serves, faults_in
from tests.abuse.requests.random_messages import RandomMessages
from tests.abuse.result import Result, memory_mb
from tests.kit.daemon import DaemonProcess
from tests.kit.served_host import DaemonChannel

LIMITS: Final[dict[str, dict[str, float]]] = tomllib.loads(Path(__file__).with_name("limits.toml").read_text("utf-8"))

SERVICES: Final = (
    SERVICE,
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
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


async def call(
    daemon: DaemonProcess,
    messages: RandomMessages,
    tally: Tally,
    requests: int,
    callers: int = 1,
    tasks: int = 24,
    services: Sequence[ServiceDescriptor] = (SERVICE,),
) -> None:
    """Let some callers make this many requests together, each over a connection of its own."""
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(DaemonChannel(daemon.address)) for _ in range(callers)]
        fuzzing = [FuzzingCaller(one.channel, messages, tally, services) for one in channels]
        await asyncio.gather(*(one.run(requests, tasks) for one in fuzzing))


async def fuzz_daemon(folder: Path, seed: int, requests: int, tally: Tally, *, warm_up: int) -> str:
    """Fuzz every service of the real daemon. `requests` are in addition to those of the warm-up.

    Returns a description of its memory use. Growth after the warm-up is a finding.
    """
    messages = RandomMessages(seed)
    flags = limit_flags(LIMITS["daemon"])
    flags += ["--session-ttl-ms", "600", "--session-heartbeat-interval-ms", "200", "--shutdown-grace-ms", "2000"]
    with DaemonProcess(folder, flags, constants=LIMITS["daemon_constants"]) as daemon:
        used_mb = [memory_mb(daemon)]
        for count in (warm_up, requests):
            await call(daemon, messages, tally, count, services=SERVICES)
            await check_serves(daemon)
            used_mb.append(memory_mb(daemon))
        growth = used_mb[2] / used_mb[1] - 1
        start, warm, end = (f"{figure:.1f} MiB" for figure in used_mb)
        memory = f"{start} at start, {warm} warm, {end} at the end ({growth:+.1%})"
        if warm_up and abs(growth) > GROWTH_MAX:
            tally.find(f"memory: {memory}")
        check_metrics(daemon)
        note_end(daemon, daemon.stop(), "the daemon", tally)
    return f"{memory}; "


def limit_flags(limits: dict[str, float]) -> list[str]:
    return [flag for name, value in limits.items() for flag in (f"--limits-{name.replace('_', '-')}", str(value))]


def note_end(daemon: DaemonProcess, exit_code: int, which: str, tally: Tally) -> None:
    if exit_code != 0:
        tally.find(f"{which} ended with {exit_code}")
    for fault in faults_in(daemon.log):
        tally.find(f"in the log of {which}: {fault}")


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
            name: value
            for name, value in LIMITS["crowd"].items()
            if messages.rng.random() < 0.5 or name == "sessions_max"
        }
        constants = {name: value for name, value in limits.items() if "." in name}
        flags = limit_flags({name: value for name, value in limits.items() if "." not in name})
        with DaemonProcess(folder / f"life-{life}", [*arguments, *flags], constants=constants) as daemon:
            await call(daemon, messages, tally, round(requests * LIVING_SHARE), CALLERS, CALLS_OF_EACH)
            async with DaemonChannel(daemon.address) as one:
                await one.status()
            check_metrics(daemon)
            rest = call(daemon, messages, tally, round(requests * (1 - LIVING_SHARE)), CALLERS, CALLS_OF_EACH)
            exit_code, _ = await asyncio.gather(asyncio.to_thread(daemon.stop), rest)
        note_end(daemon, exit_code, f"life {life} ({limits})", tally)


async def _daemon(folder: Path, seed: int, requests: int, tally: Tally) -> str:
    warm_up = round(requests * WARM_UP_SHARE)
    return await fuzz_daemon(folder, seed, requests - warm_up, tally, warm_up=warm_up)


async def _crowd(folder: Path, seed: int, requests: int, tally: Tally) -> str:
    """Many lives of daemons: in memory, and with both modes of the journal."""
    lives = max(1, round(requests * CROWD_SHARE) // REQUESTS_PER_LIFE // 3)
    for journal in (None, "sync", "async"):
        await fuzz_crowd(folder / str(journal), seed, lives, REQUESTS_PER_LIFE, tally, journal)
    return ""


TARGETS: Final[dict[str, Callable[[Path, int, int, Tally], Awaitable[str]]]] = {
    "requests-daemon": _daemon,
    "requests-crowd": _crowd,
}


def fuzz(name: str, seed: int, requests: int, folder: Path) -> Result:
    """Run one of `TARGETS`. Returns a row of the table; its faults are the findings."""
    tally, result = Tally(), Result(name)

    async def run() -> str:
        return await TARGETS[name](folder, seed, requests, tally)

    result.figures = f"{asyncio.run(run())}{tally.total:,} requests; {dict(tally.items)}"
    result.tally = {f"{rpc} {status}": count for (rpc, status), count in tally.requests.items()}
    result.faults = list(tally.findings)
    return result
