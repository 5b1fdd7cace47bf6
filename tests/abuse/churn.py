"""Callers that connect and leave for hours, at a daemon with a journal.

Every wait is accounted for, the callers leave nothing behind, and the daemon's memory and open files do not grow.
"""

import asyncio
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from purgatory_client import AsyncClient
from purgatory_client.views import Status

from tests.abuse.churn_callers import CallersPlace, ClientCallersPlace, WireCallersPlace
from tests.abuse.result import Result, memory_mb, open_files
from tests.crash.wire_caller import TOPICS, Broken, PushedMarks
from tests.kit.daemon import DaemonProcess

SETTINGS: Final = ("--limits-memory-bytes-max", str(512 * 1024 * 1024), "--session-heartbeat-interval-ms", "1000")
TTL_MS: Final = 8_000
"""Time to live of a session: longer than this machine may stall between two connections of a caller."""
INTERVAL_S: Final = 10.0
ADVANCE_S: Final = 0.02
SETTLE_S: Final = 60.0
WARM_S: Final = 600.0
"""Memory must not grow after this time."""
SPAN_S: Final = 60.0
"""Memory is the median of the samples of this time span, because a single sample may include a journal checkpoint."""
MEMORY_GROWTH_MAX: Final = 1.03
FILES_GROWTH_MAX: Final = 1.25
"""About 45 files are open, plus or minus ten: sockets of former callers may wait for the garbage collector."""


class Sample(NamedTuple):
    """Resource use of the daemon at one time."""

    at_s: float
    memory_mb: float
    files: int


class ChurnRun:
    """One daemon, with twice `places` callers at a time. With a `pace` below 1, connections and sessions live shorter.

    All random choices come from the seed; the interleaving depends on the clock.
    """

    def __init__(self, folder: Path, seed: int, places: int = 2, pace: float = 1.0) -> None:
        self.tally: Final[Counter[str]] = Counter()
        self.samples: Final[list[Sample]] = []
        self._folder: Final = folder
        self._seed: Final = seed
        self._places: Final = places
        self._pace: Final = pace
        self._began_s = 0.0

    async def run(self, seconds: float, interval_s: float) -> None:
        """Run callers for `seconds`. Then the daemon must have no state of them left, and exit with code 0.

        Raises:
            Broken: A wait was lost or ended twice, or state was left behind.
        """
        flags = ["--session-ttl-ms", str(round(self._pace * TTL_MS)), "--data-dir", str(self._folder / "data")]
        with DaemonProcess(self._folder / "daemon", [*SETTINGS, *flags]) as daemon:
            async with AsyncClient(daemon.address, name="churn") as client:
                await client.produce({(TOPICS[0], 0): 1}, timeout=0)  # opens the session that may be left
                await self._load(daemon, client, seconds, interval_s)
                await self._emptied(client)
            code = await asyncio.to_thread(daemon.stop)
            if code != 0:
                raise Broken(f"the daemon stopped with {code}:\n{daemon.log[-4_000:]}")

    @property
    def is_long_enough(self) -> bool:
        """Whether growth is meaningful: the two time spans do not overlap."""
        return bool(self.samples) and self.samples[-1].at_s >= WARM_S + 2 * SPAN_S

    @property
    def memory_growth(self) -> float:
        """Memory at the end divided by memory when the daemon was warm."""
        warm, last = self._spans()
        return statistics.median(one.memory_mb for one in last) / statistics.median(one.memory_mb for one in warm)

    @property
    def files_growth(self) -> float:
        """Open files at the end divided by those when the daemon was warm."""
        warm, last = self._spans()
        return statistics.median(one.files for one in last) / statistics.median(one.files for one in warm)

    def _spans(self) -> tuple[list[Sample], list[Sample]]:
        end_s = self.samples[-1].at_s
        warm = [sample for sample in self.samples if WARM_S <= sample.at_s < WARM_S + SPAN_S]
        return warm, [sample for sample in self.samples if sample.at_s > end_s - SPAN_S]

    async def _load(self, daemon: DaemonProcess, client: AsyncClient, seconds: float, interval_s: float) -> None:
        """Run callers until the time is up and the last of them have left."""
        marks, ended = PushedMarks(), asyncio.Event()
        places: list[CallersPlace] = []
        for number in range(self._places):
            places.append(WireCallersPlace(daemon.address, 2 * number, self._seed, self.tally, marks, self._pace))
            places.append(ClientCallersPlace(daemon.address, 2 * number + 1, self._seed, self.tally))
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            advancing = group.create_task(self._advance(client, marks))
            callers = [group.create_task(place.serve_until(ended)) for place in places]
            while (left_s := self._began_s + seconds - time.monotonic()) > 0:
                await asyncio.sleep(min(interval_s, left_s))
                if daemon.process.poll() is not None:
                    raise Broken(f"the daemon ended:\n{daemon.log[-4_000:]}")
                self.samples.append(self._sample(daemon))
            ended.set()
            await asyncio.gather(*callers)
            advancing.cancel()

    async def _advance(self, client: AsyncClient, marks: PushedMarks) -> None:
        """Push the marks that end the waits of sessions."""
        chance = random.Random(self._seed)
        while True:
            topic = chance.choice(TOPICS)
            marks.sent[topic] += chance.randint(0, 10)
            await client.advance((topic, 0), high_watermark=marks.sent[topic])
            await asyncio.sleep(ADVANCE_S)

    async def _emptied(self, client: AsyncClient) -> None:
        """Wait until the daemon has no state of former callers left; its counts must agree."""
        deadline_s = time.monotonic() + SETTLE_S
        while left := left_behind(await client.status()):
            if time.monotonic() > deadline_s:
                raise Broken(f"still there {SETTLE_S:.0f} s after the last caller left: {left}")
            await asyncio.sleep(0.2)

    def _sample(self, daemon: DaemonProcess) -> Sample:
        return Sample(time.monotonic() - self._began_s, memory_mb(daemon), open_files(daemon))


def left_behind(status: Status) -> dict[str, int]:
    """State that the daemon still holds when only the observing client is left; empty: none.

    Raises:
        Broken: The counts of registered and ended operations differ.
    """
    for kind in status.kinds:
        ended = kind.satisfied + kind.failed + kind.expired + kind.cancelled + kind.shutting_down
        if kind.registered != ended + kind.pending:
            raise Broken(f"{kind.kind.name}: {kind.registered} registered, {ended} ended, {kind.pending} pending")
    held = {
        "pending": sum(kind.pending for kind in status.kinds),
        "sessions": status.sessions - 1,
        "unacknowledged results": status.unacknowledged_results,
    }
    return {what: count for what, count in held.items() if count}


def churn(folder: Path, seed: int, seconds: float) -> Result:
    """Run callers for `seconds`. Growth is judged only if the run is long enough."""
    run, result = ChurnRun(folder, seed), Result("churn")
    try:
        asyncio.run(run.run(seconds, INTERVAL_S))
    except* Broken as broken:
        result.faults += [str(error) for error in broken.exceptions]
    result.memory_before_mb, result.memory_peak_mb = (
        round(pick([sample.memory_mb for sample in run.samples], default=0)) for pick in (min, max)
    )
    result.figures = ", ".join(f"{count} {what}" for what, count in sorted(run.tally.items()))
    if run.is_long_enough:
        memory, files = run.memory_growth, run.files_growth
        result.figures += f"; memory x {memory:.3f}, open files x {files:.2f}"
        if memory > MEMORY_GROWTH_MAX or files > FILES_GROWTH_MAX:
            result.faults.append(f"grows: allowed are memory x {MEMORY_GROWTH_MAX}, open files x {FILES_GROWTH_MAX}")
    return result
