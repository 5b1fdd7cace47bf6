"""Daemons that are stopped for seconds, again and again.

Callers do not count as silent because their daemon is stopped.
Workers send heartbeats and a source sends reports all the time, so none of their waits may fail. With each stop, one
worker is really gone and one mark is really stale, and both waits must fail: silence is counted while the daemon runs.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import grpc
from purgatory_client import AsyncClient
from purgatory_client.results import HEARTBEAT_MISSED, MARK_STALE, Result
from purgatory_client.sources.source_link import SourceLink, SourceState, StaleMarks

from purgatory.clock import SETTLE_MS
from tests.histories.history import History
from tests.kit.daemon import DaemonProcess
from tests.kit.faults import stopped
from tests.kit.messages import advance_request, key_signalled
from tests.kit.served_host import DaemonChannel

PATHS = ("client", "unary")
FAULTS = ("stop",)
FEATURES = ("produce", "signal", "heartbeat", "stale timeout")
AT_ONCE: Final = 4
"""Daemons per history."""
STOPS: Final = 3
"""Stops per daemon."""
TIMEOUT_S: Final = 2.0
"""Silence after which a wait fails."""
BEAT_S: Final = 0.3
REPORT_S: Final = 0.5
PATIENCE_S: Final = 1.0
"""How long a unary heartbeat waits for its answer: shorter than a stop, which then ends it."""
STOP_S: Final = (2.0, 6.0)
LATE_S_MAX: Final = 1.0
HOPS: Final = 4
"""Stalls that may delay one failure, of the daemon and of its client."""
LOOK_S: Final = 0.05
SETTLE_S: Final = SETTLE_MS / 1_000
"""Time after a stop in which the daemon reads what has arrived, so that silence does not count yet."""
FOREVER_S: Final = 3_600.0


class StopsWorld:
    def __init__(self, folder: Path, seed: int) -> None:
        self.late_s: Final[list[float]] = []
        """For each worker that was gone: how long after its timeout its wait failed, in listening time, which counts
        neither the stop nor the time to settle after it."""
        self.stalled_s = 0.0
        """The longest delay of a short sleep: a busy machine stalls the daemon as long as this process."""
        self.faults: Final[list[str]] = []
        self._folder: Final = folder
        self._chance: Final = random.Random(seed)

    async def run(self, stops: int, stop_s: tuple[float, float] = STOP_S) -> None:
        async with AsyncExitStack() as stack:
            daemon = stack.enter_context(DaemonProcess(self._folder))
            client = await stack.enter_async_context(AsyncClient(daemon.address))
            unary = await stack.enter_async_context(DaemonChannel(daemon.address))
            link = await stack.enter_async_context(client.attach_source("stopped", ["m/"]))
            await link.report(SourceState.LIVE)
            await client.advance(("m/seen", 0), high_watermark=1)
            alive = {key: asyncio.create_task(self._wait(client, key)) for key in ("beats", "beats-unary")}
            seen = client.produce({("m/seen", 0): 2}, timeout=FOREVER_S, fail_when_stale=TIMEOUT_S)
            alive["seen"] = asyncio.create_task(seen)
            reports = (
                _repeat(lambda: client.signal_key("beats", 0)),
                _repeat(lambda: _beat_once(unary, "beats-unary")),
                _repeat(partial(_report, link, time.monotonic()), REPORT_S),
            )
            reporting = [asyncio.create_task(report) for report in reports]
            reporting.append(asyncio.create_task(self._measure_stalls()))
            for number in range(stops):
                await self._stop_once(daemon, client, f"gone-{number}", self._chance.uniform(*stop_s))
            for name, waiting in alive.items():
                if waiting.done():
                    self.faults.append(f"{name}: {waiting.result().outcome.name} though it was reported")
            for task in (*alive.values(), *reporting):
                task.cancel()
            await asyncio.gather(*alive.values(), *reporting, return_exceptions=True)

    async def _stop_once(self, daemon: DaemonProcess, client: AsyncClient, key: str, stop_s: float) -> None:
        """Stop the daemon in the silence of a worker that is gone, and wait until both waits have failed."""
        silent = asyncio.create_task(self._wait(client, key))
        stale = asyncio.create_task(client.produce({("m/gone", 0): 1}, timeout=FOREVER_S, fail_when_stale=TIMEOUT_S))
        await client.signal_key(key, 0)
        last_s = time.monotonic()
        await asyncio.sleep(self._chance.uniform(0.0, TIMEOUT_S / 2))
        not_listening_s = await stopped(daemon.process, stop_s) + SETTLE_S
        result = await silent
        self.late_s.append(time.monotonic() - last_s - not_listening_s - TIMEOUT_S)
        codes = result.partitions[key].error_code, (await stale).partitions["m/gone-0"].error_code
        if codes != (HEARTBEAT_MISSED, MARK_STALE):
            self.faults.append(f"{key} and its mark: {codes}")

    async def _measure_stalls(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            self.stalled_s = max(self.stalled_s, time.monotonic() - began_s - LOOK_S)

    @staticmethod
    async def _wait(client: AsyncClient, key: str) -> Result:
        return await client.signal([key], timeout=FOREVER_S, heartbeat_timeout=TIMEOUT_S)


async def _repeat(call: Callable[[], Awaitable[object]], every_s: float = BEAT_S) -> None:
    while True:
        await call()
        await asyncio.sleep(every_s)


async def _beat_once(unary: DaemonChannel, key: str) -> None:
    """Send a heartbeat that is given up when the daemon does not answer."""
    try:
        await unary.stub.Advance(advance_request(key_signalled(key, count=0)), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error.code()  # noqa: PT017 - the expected one


async def _report(link: SourceLink, began_s: float) -> None:
    """Report that all marks but one are seen."""
    stale_ms = round((time.monotonic() - began_s) * 1_000)
    await link.report(
        SourceState.STALE, "one is gone", [StaleMarks("m/gone", exact=True, stale_ms=stale_ms, reason="it is gone")]
    )


def run(history: History) -> None:
    """Stop several daemons at once."""

    async def run_all(folder: Path) -> list[StopsWorld]:
        worlds = [StopsWorld(folder / str(number), history.seed + number) for number in range(AT_ONCE)]
        await asyncio.gather(*(world.run(STOPS) for world in worlds))
        return worlds

    with tempfile.TemporaryDirectory() as name:
        for world in asyncio.run(run_all(Path(name))):
            history.judge.complaints.extend(world.faults)
            late_s = max(world.late_s)
            history.figures["silences noticed late"] += late_s > LATE_S_MAX
            if late_s > LATE_S_MAX + HOPS * world.stalled_s:
                history.judge.complain("silence", f"was noticed {late_s:.2f} s late; allowed: {LATE_S_MAX:g} s")
    history.seen.note(["signal", "heartbeat"], "client", "unary", "stop")
    history.seen.note(["produce", "stale timeout"], "client", "stop")
    history.figures["stops"] += AT_ONCE * STOPS
