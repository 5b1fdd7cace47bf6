"""Callers that connect and leave for hours, at a daemon with a journal: the row `churn` of `make abuse`.

Each caller accounts for all its waits and leaves in its own way. The callers leave nothing behind, and the daemon's
memory and open files do not grow.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from purgatory_client import AsyncClient, Outcome, Result, waits
from purgatory_client.errors import ClientClosed, NotFound

from tests.abuse.result import Result as Row
from tests.abuse.result import memory_mb, open_files
from tests.histories.judge import Broken, Judge
from tests.histories.wire_caller import WireCaller
from tests.histories.wire_load import WireLoad
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually
from tests.kit.served_host import DaemonChannel

SETTINGS: Final = ("--limits-memory-bytes-max", str(512 * 1024 * 1024), "--session-heartbeat-interval-ms", "1000")
TTL_MS: Final = 8_000
"""Time to live of a session: longer than this machine may stall between two connections of a caller."""
INTERVAL_S: Final = 10.0
WARM_S: Final = 600.0
"""Memory must not grow after this time."""
SPAN_S: Final = 60.0
"""Memory is the median of the samples of this time span, because a single sample may include a journal checkpoint."""
MEMORY_GROWTH_MAX: Final = 1.03
FILES_GROWTH_MAX: Final = 1.25
"""About 45 files are open, plus or minus ten: sockets of former callers may wait for the garbage collector."""
PATIENCE_S: Final = 60.0
"""A wait that has not ended after this time is lost: the event that ends it was pushed long before."""
WAIT_S: Final = 45.0
EXPIRES_S: Final = 0.05
NEVER: Final = 2**40
"""An offset that no partition here reaches."""
STEP: Final = 8
BYTES_PER_RECORD: Final = 100


class Sample(NamedTuple):
    """Resource use of the daemon at one time."""

    at_s: float
    memory_mb: float
    files: int


class ChurnWorld:
    """One daemon, with twice `places` callers at a time. With a `pace` below 1, connections and sessions live shorter.

    All random choices come from the seed; the interleaving depends on the clock. It runs on until each of the `ways` in
    which waits and callers end has been counted.
    """

    def __init__(self, folder: Path, seed: int, places: int = 2, pace: float = 1.0, ways: Collection[str] = ()) -> None:
        self.tally: Final[Counter[str]] = Counter()
        self.samples: Final[list[Sample]] = []
        self._folder: Final = folder
        self._seed: Final = seed
        self._places: Final = places
        self._pace: Final = pace
        self._ways: Final = ways
        self._judge: Final = Judge()
        self._load: Final = WireLoad(self._judge, seed, callers=0)
        """Pushes the marks that end the waits of sessions."""

    async def run(self, seconds: float, interval_s: float) -> None:
        """Run callers for `seconds`. Then the daemon must have no state of them left, and exit with code 0.

        Raises:
            Broken: A wait was lost or ended twice, or state was left behind.
        """
        flags = ["--session-ttl-ms", str(round(self._pace * TTL_MS)), "--data-dir", str(self._folder / "data")]
        with DaemonProcess(self._folder / "daemon", [*SETTINGS, *flags]) as daemon:
            async with DaemonChannel(daemon.address) as channel:
                await self._run_callers(daemon, seconds, interval_s)
                await self._emptied(channel)
            code = await asyncio.to_thread(daemon.stop)
            if code != 0:
                raise Broken(f"the daemon stopped with {code}:\n{daemon.log[-4_000:]}")

    def growth(self) -> tuple[float, float] | None:
        """Memory and open files at the end, divided by those when the daemon was warm; None: the run was too short."""
        if not self.samples or self.samples[-1].at_s < WARM_S + 2 * SPAN_S:
            return None
        warm = [sample for sample in self.samples if WARM_S <= sample.at_s < WARM_S + SPAN_S]
        last = [sample for sample in self.samples if sample.at_s > self.samples[-1].at_s - SPAN_S]
        return (
            statistics.median(one.memory_mb for one in last) / statistics.median(one.memory_mb for one in warm),
            statistics.median(one.files for one in last) / statistics.median(one.files for one in warm),
        )

    async def _run_callers(self, daemon: DaemonProcess, seconds: float, interval_s: float) -> None:
        """Run callers until the time is up and the last of them have left."""
        ended, began_s = asyncio.Event(), time.monotonic()
        lives: list[Callable[[], Awaitable[None]]] = []
        for number in range(self._places):
            chances = [random.Random(f"{self._seed}/{one}") for one in (2 * number, 2 * number + 1)]
            lives.append(WireCallers(daemon.address, number, chances[0], self._judge, self.tally, self._pace).live)
            lives.append(ClientCallers(daemon.address, number, chances[1], self.tally).live)

        async def serve(live: Callable[[], Awaitable[None]]) -> None:
            while not ended.is_set():
                await live()
                self.tally["callers"] += 1

        self._load.start(daemon.address)
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(serve(live)) for live in lives]
            while time.monotonic() < began_s + seconds or not all(self.tally[way] for way in self._ways):
                await asyncio.sleep(interval_s)
                if daemon.process.poll() is not None:
                    raise Broken(f"the daemon ended:\n{daemon.log[-4_000:]}")
                self.samples.append(Sample(time.monotonic() - began_s, memory_mb(daemon), open_files(daemon)))
            ended.set()
            await asyncio.gather(*callers)
        self._load.check()
        await self._load.end()

    async def _emptied(self, channel: DaemonChannel) -> None:
        """Wait until the daemon has no state of former callers left; its counts must agree."""
        left: dict[str, int] = {}

        async def is_empty() -> bool:
            status = await channel.status()
            left["pending"] = sum(kind.pending for kind in status.kinds)
            left["sessions"] = status.sessions
            left["unacknowledged results"] = status.unacknowledged_results
            return not any(left.values())

        await eventually(is_empty, lambda: f"nothing of former callers is left: {left}")


class WireCallers:
    """Callers that use the protocol directly, one after another; their connections break, and they restart."""

    def __init__(
        self, address: str, number: int, chance: random.Random, judge: Judge, tally: Counter[str], pace: float
    ) -> None:
        self._address: Final = address
        self._number: Final = number
        self._random: Final = chance
        self._judge: Final = judge
        self._tally: Final = tally
        self._pace: Final = pace
        self._lives = 0

    async def live(self) -> None:
        """The life of one caller. Raises `Broken` if it lost a result, or got one twice."""
        self._lives += 1
        name = f"churn-{self._number}-{self._lives}"
        caller = WireCaller(name, self._judge, self._random.randrange(2**31))
        for _ in range(self._random.randint(1, 3)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace * self._random.uniform(0.3, 2.0)):
                    await caller.run(self._address)
            self._tally["connections cut"] += 1
            if self._random.random() < 0.5:
                caller.forget()
        if self._random.random() < 0.3:  # never returns: its session is removed with its contents
            self._tally["waits abandoned"] += len(caller.asked) - len(caller.outcomes)
        else:
            await self._finish(caller)
            if self._random.random() < 0.5:
                async with AsyncClient(self._address) as client:
                    with contextlib.suppress(NotFound):  # a finished session is soon forgotten
                        await client.close_session(name)
                self._tally["sessions closed"] += 1
        self._judge.check()
        self._judge.forget(name)
        self._tally.update(Outcome(outcome).name.lower() for outcome in caller.outcomes.values())
        self._tally["results sent again"] += caller.repeats

    async def _finish(self, caller: WireCaller) -> None:
        """Stop registering, and stay until everything has ended."""
        caller.is_quiet = True
        running = asyncio.create_task(caller.run(self._address))
        try:
            with contextlib.suppress(AssertionError):  # the judge names what is missing
                await eventually(lambda: caller.is_done or running.done())
            if running.done():
                raise Broken(f"{caller.name} ended by itself") from running.exception()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        self._judge.check_end(caller.name)


class ClientCallers:
    """Callers that use the client library: waits of each kind, satisfied, expired, cancelled, or aborted by closing."""

    def __init__(self, address: str, number: int, chance: random.Random, tally: Counter[str]) -> None:
        self._address: Final = address
        self._random: Final = chance
        self._tally: Final = tally
        self._partition: Final = f"churn-{number}"
        self._offset = 0

    async def live(self) -> None:
        """The life of one caller. Raises `Broken` if a wait did not end as it had to."""
        left: list[asyncio.Task[Result]] = []
        async with AsyncClient(self._address, name=self._partition) as client:
            for _ in range(self._random.randint(1, 5)):
                await self._round(client)
            if self._random.random() < 0.5:
                left = [asyncio.create_task(client.produce({self._partition: NEVER})) for _ in range(STEP)]
                await asyncio.sleep(self._random.uniform(0.0, 0.05))
        for seen in await asyncio.gather(*left, return_exceptions=True):
            self._account(isinstance(seen, ClientClosed), "cut off by closing", seen)

    async def _round(self, client: AsyncClient) -> None:
        """Start waits of each kind, and then push the events that end them, which may arrive first."""
        name, start, end = self._partition, self._offset, self._offset + STEP
        self._offset = end
        async with asyncio.timeout(PATIENCE_S):
            appended = [asyncio.create_task(client.produce({name: end - back}, timeout=WAIT_S)) for back in range(STEP)]
            appended += [
                asyncio.create_task(client.fetch({name: start}, timeout=WAIT_S)),
                asyncio.create_task(client.wait_once(waits.produce({name: end}, timeout=WAIT_S))),
                asyncio.create_task(client.wait_once(waits.fetch({name: start}, timeout=WAIT_S))),
            ]
            signalled = asyncio.create_task(client.signal([name], from_now=True, timeout=WAIT_S))
            expiring = [asyncio.create_task(client.produce({name: NEVER}, timeout=EXPIRES_S)) for _ in range(2)]
            cancelled = [asyncio.create_task(client.produce({name: NEVER}, timeout=WAIT_S)) for _ in range(2)]
            await asyncio.sleep(self._random.uniform(0.0, 0.02))
            await client.advance(name, log_end_offset=end, byte_position=end * BYTES_PER_RECORD, high_watermark=end)
            await self._ended(appended, Outcome.SATISFIED)
            # Only now: records above the high watermark cannot be deleted, and the fetches would be out of range.
            deleted = [asyncio.create_task(client.delete_records({name: end}, timeout=WAIT_S))]
            await client.advance(name, log_start_offset=end)
            await self._ended(deleted, Outcome.SATISFIED)
            while not signalled.done():  # a signal that arrives before the wait does not count for it
                await client.signal_key(name)
                await asyncio.sleep(0.01)
            await self._ended([signalled], Outcome.SATISFIED)
            await self._ended(expiring, Outcome.EXPIRED)
            for task in cancelled:
                task.cancel()
            for seen in await asyncio.gather(*cancelled, return_exceptions=True):
                self._account(isinstance(seen, asyncio.CancelledError), "cancelled by the caller", seen)

    async def _ended(self, tasks: Sequence[asyncio.Task[Result]], outcome: Outcome) -> None:
        for seen in await asyncio.gather(*tasks, return_exceptions=True):
            self._account(isinstance(seen, Result) and seen.outcome is outcome, outcome.name.lower(), seen)

    def _account(self, expected: bool, what: str, seen: object) -> None:
        if not expected:
            raise Broken(f"{self._partition}: a wait was to be {what}, and ended with {seen!r}")
        self._tally[what] += 1


def churn(folder: Path, seed: int, seconds: float) -> Row:
    """Run callers for `seconds`. Growth is judged only if the run is long enough."""
    world, row = ChurnWorld(folder, seed), Row("churn")
    try:
        asyncio.run(world.run(seconds, INTERVAL_S))
    except* AssertionError as broken:
        row.faults += [str(error) for error in broken.exceptions]
    memories_mb = [sample.memory_mb for sample in world.samples] or [0.0]
    row.memory_before_mb, row.memory_peak_mb = round(min(memories_mb)), round(max(memories_mb))
    row.figures = ", ".join(f"{count} {what}" for what, count in sorted(world.tally.items()))
    if growth := world.growth():
        memory, files = growth
        row.figures += f"; memory x {memory:.3f}, open files x {files:.2f}"
        if memory > MEMORY_GROWTH_MAX or files > FILES_GROWTH_MAX:
            row.faults.append(f"grows: allowed are memory x {MEMORY_GROWTH_MAX}, open files x {FILES_GROWTH_MAX}")
    return row
