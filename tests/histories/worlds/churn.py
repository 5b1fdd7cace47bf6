"""Callers that connect and leave, at a daemon with a journal.

Each caller accounts for all its waits and leaves in its own way. The callers leave nothing behind and, as the row
`churn` of `make abuse`, for hours, the daemon's memory and open files do not grow.
"""

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from purgatory_client import AsyncClient, Outcome, Result, waits
from purgatory_client.errors import ClientClosed, NotFound

from tests.abuse.result import Result as Row
from tests.abuse.result import memory_mb, open_files
from tests.histories.history import History
from tests.histories.judge import Broken, Judge
from tests.histories.tables import Seen
from tests.histories.wire_caller import WIRE_FEATURES, WireCaller
from tests.histories.wire_load import WireLoad
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually
from tests.kit.served_host import DaemonChannel

PATHS = ("rows", "columns", "client", "unary")
FAULTS = ("cut",)
FEATURES = (*WIRE_FEATURES, "fetch", "delete_records", "from now")
SECONDS: Final = 20.0
"""Duration of a history of the machine."""
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
    at_s: float
    memory_mb: float
    files: int


class ChurnWorld:
    """One daemon, with twice `places` callers at a time. With a `pace` below 1, connections and sessions live shorter.

    All random choices come from the seed; the interleaving depends on the clock. It runs on until each of the `ways` in
    which waits and callers end has been counted.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        places: int = 2,
        pace: float = 1.0,
        ways: Collection[str] = (),
        judge: Judge | None = None,
    ) -> None:
        self.tally: Final[Counter[str]] = Counter()
        self.samples: Final[list[Sample]] = []
        self.judge: Final = judge or Judge()
        self.seen: Final = Seen()
        self.pace: Final = pace
        self._folder: Final = folder
        self._seed: Final = seed
        self._places: Final = places
        self._ways: Final = ways
        self._load: Final = WireLoad(self.judge, seed, callers=0)
        """Pushes the marks that end the waits of sessions."""

    async def run(self, seconds: float, interval_s: float) -> None:
        """Run callers for `seconds`. Then the daemon must have no state of them left, and exit with code 0.

        Raises:
            Broken: A wait was lost or ended twice, or state was left behind.
        """
        flags = ["--session-ttl-ms", str(round(self.pace * TTL_MS)), "--data-dir", str(self._folder / "data")]
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

        async def serve(live: Callable[[], Awaitable[None]]) -> None:
            while not ended.is_set():
                await live()
                self.tally["callers"] += 1

        self._load.start(daemon.address)
        async with asyncio.TaskGroup() as group:
            for number in range(self._places):
                for kind in (WireCallers, ClientCallers):
                    chance = random.Random(f"{self._seed}/{kind.__name__}/{number}")
                    group.create_task(serve(kind(self, daemon.address, number, chance).live))
            while time.monotonic() < began_s + seconds or not all(self.tally[way] for way in self._ways):
                await asyncio.sleep(interval_s)
                if daemon.process.poll() is not None:
                    raise Broken(f"the daemon ended:\n{daemon.log[-4_000:]}")
                self.samples.append(Sample(time.monotonic() - began_s, memory_mb(daemon), open_files(daemon)))
            ended.set()
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


@dataclass
class Callers:
    """Callers that live one after another."""

    world: ChurnWorld
    address: str
    number: int
    chance: random.Random
    lives: int = 0
    offset: int = 0


class WireCallers(Callers):
    """They use the protocol directly; their connections break, and they restart."""

    async def live(self) -> None:
        """The life of one caller. Raises `Broken` if it lost a result, or got one twice."""
        judge, tally, pace = self.world.judge, self.world.tally, self.world.pace
        self.lives += 1
        name = f"churn-{self.number}-{self.lives}"
        caller = WireCaller(name, judge, self.chance.randrange(2**31))
        for _ in range(self.chance.randint(1, 3)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace * self.chance.uniform(0.3, 2.0)):
                    await caller.run(self.address)
            tally["connections cut"] += 1
            if self.chance.random() < 0.5:
                caller.forget()
        if self.chance.random() < 0.3:  # never returns: its session is removed with its contents
            tally["waits abandoned"] += len(caller.asked) - len(caller.outcomes)
        else:
            await self._finish(caller)
            if self.chance.random() < 0.5:
                async with AsyncClient(self.address) as client:
                    with contextlib.suppress(NotFound):  # a finished session is soon forgotten
                        await client.close_session(name)
                tally["sessions closed"] += 1
        judge.check()
        judge.forget(name)
        caller.note_pairs(self.world.seen, "cut")
        tally.update(Outcome(outcome).name.lower() for outcome in caller.outcomes.values())
        tally["results sent again"] += caller.repeats

    async def _finish(self, caller: WireCaller) -> None:
        """Stop registering, and stay until everything has ended."""
        caller.is_quiet = True
        running = asyncio.create_task(caller.run(self.address))
        with contextlib.suppress(AssertionError):  # the judge names what is missing
            await eventually(lambda: caller.is_done or running.done())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self.world.judge.check_end(caller.name)


class ClientCallers(Callers):
    """They use the client library: waits of each kind, satisfied, expired, cancelled, or aborted by closing."""

    async def live(self) -> None:
        """The life of one caller. Raises `Broken` if a wait did not end as it had to."""
        left: list[asyncio.Task[Result]] = []
        async with AsyncClient(self.address, name=f"churn-{self.number}") as client:
            for _ in range(self.chance.randint(1, 5)):
                await self._round(client, f"churn-{self.number}")
            if self.chance.random() < 0.5:
                left = begin(*[client.produce({f"churn-{self.number}": NEVER}) for _ in range(STEP)])
                await asyncio.sleep(self.chance.uniform(0.0, 0.05))
        await self._end(left, ClientClosed, "cut off by closing")

    async def _round(self, client: AsyncClient, name: str) -> None:
        """Start waits of each kind, and then push the events that end them, which may arrive first."""
        start, end = self.offset, self.offset + STEP
        self.offset = end
        async with asyncio.timeout(PATIENCE_S):
            appended = begin(
                *[client.produce({name: end - back}, timeout=WAIT_S) for back in range(STEP)],
                client.fetch({name: start}, timeout=WAIT_S),
                client.wait_once(waits.produce({name: end}, timeout=WAIT_S)),
                client.wait_once(waits.fetch({name: start}, timeout=WAIT_S)),
            )
            signalled = begin(client.signal([name], from_now=True, timeout=WAIT_S))
            expiring = begin(*[client.produce({name: NEVER}, timeout=EXPIRES_S) for _ in range(2)])
            cancelled = begin(*[client.produce({name: NEVER}, timeout=WAIT_S) for _ in range(2)])
            await asyncio.sleep(self.chance.uniform(0.0, 0.02))
            await client.advance(name, log_end_offset=end, byte_position=end * BYTES_PER_RECORD, high_watermark=end)
            await self._end(appended, Outcome.SATISFIED, "satisfied")
            # Only now: records above the high watermark cannot be deleted, and the fetches would be out of range.
            deleted = begin(client.delete_records({name: end}, timeout=WAIT_S))
            await client.advance(name, log_start_offset=end)
            await self._end(deleted, Outcome.SATISFIED, "satisfied")
            while not signalled[0].done():  # a signal that arrives before the wait does not count for it
                await client.signal_key(name)
                await asyncio.sleep(0.01)
            await self._end(signalled, Outcome.SATISFIED, "satisfied")
            await self._end(expiring, Outcome.EXPIRED, "expired")
            for task in cancelled:
                task.cancel()
            await self._end(cancelled, asyncio.CancelledError, "cancelled by the caller")

    async def _end(self, tasks: Sequence[asyncio.Task[Result]], end: Outcome | type[BaseException], what: str) -> None:
        """All waits must end with this outcome, or with this error."""
        for seen in await asyncio.gather(*tasks, return_exceptions=True):
            if end not in (type(seen), getattr(seen, "outcome", None)):
                raise Broken(f"churn-{self.number}: a wait should be {what}, and ended with {seen!r}")
            self.world.tally[what] += 1


def begin(*calls: Coroutine[Any, Any, Result]) -> list[asyncio.Task[Result]]:
    return [asyncio.create_task(call) for call in calls]


def run(history: History) -> None:
    """Callers live a third as long as in hours of churn."""
    with tempfile.TemporaryDirectory() as name:
        world = ChurnWorld(Path(name), history.seed, pace=0.35, judge=history.judge)
        asyncio.run(world.run(SECONDS, INTERVAL_S / 10))
    history.seen.pairs.update(world.seen.pairs)
    history.seen.note(["produce", "fetch"], "client", "unary")
    history.seen.note(["delete_records", "signal", "from now", "cancelled"], "client")
    history.figures.update(world.tally)


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
