"""A crash test over a pair of daemons with one log: they are killed, stopped and continued, handed over, cut off from
the log and from callers, and their wall clocks are set.

The callers are those of the crash test of one daemon. They check every answer: nothing acknowledged is lost, nothing
ends twice or otherwise, nothing ends early, and no sequence number is missing. Another caller signals keys, and a third
reads marks and the numbers of signals.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.extensions.fleet.commands import main as fleet_command
from purgatory.journal.crash_points import FLEET_POINTS
from purgatory.replicated_log.leadership import EXIT_REPLACED
from tests.crash.crash_run import CrashRun
from tests.crash.wire_caller import Broken
from tests.fleet.observer import Observer
from tests.kit.eventually import PATIENCE_S
from tests.kit.faults import NotPossibleHere, WallClock, build_library
from tests.kit.fleet import Links, Member
from tests.kit.proxy import BOTH, DOWN, UP, FaultyProxy

CUTS: Final = ("cut from the log", "cut from callers")
WAYS: Final = (UP, DOWN, BOTH)
CUTS_S: Final = (0.3, 1.5, 3.5)
"""How long a cut lasts: shorter than the silence, longer, and longer than a leader lives without its log."""
SILENCE_MS: Final = 600
"""Less than the default, so that there are more takeovers."""
FAULTS: Final = (
    "kill",
    "kill both",
    "stop",
    "stop",
    "hand over",
    "hand over by call",
    "crash point",
    "set clocks",
    *CUTS,
)
PAUSES_S: Final = (0.3, 1.5, 2.5)
"""How long a daemon is stopped, or both are away: shorter and longer than the silence."""
WALL_STEPS_S: Final = (-3_600, -3, 3, 3_600)
"""How far one daemon's wall clock is ahead. The other's is behind by the same."""
AWAITED: Final = 0.5
"""Share of faults after which the next one waits until a daemon leads; the others may find none."""
NAMES: Final = ("a", "b")
CALLER_RESTARTED: Final = 0.5
"""Share of faults after which a caller is restarted; it has lost what it did not acknowledge."""


class PairTally(NamedTuple):
    faults: dict[str, int]
    operations: int
    repeats: int
    reads: int
    reigns: int
    replaced: int
    """Daemons that found another one leading, and exited."""


class PairRun(CrashRun):
    """Only the advancer, the checks and the settling of a crash run are used.

    Without a C compiler, no clock is set.
    """

    def __init__(self, folder: Path, log_uri: str, seed: int, kinds: Sequence[str] = FAULTS) -> None:
        """Args:
        folder: For the daemons' files.
        log_uri: The address of the log.
        seed: Draws the faults.
        kinds: Faults to draw from.
        """
        self._links: Final = [Links(log_uri) for _ in NAMES]
        super().__init__(folder, seed, address="the address of the proxies, once they listen")
        self._clocks: Final[list[WallClock]] = []
        lacking = set() if self._links[0].can_cut_log else {"cut from the log"}
        try:
            library = build_library(folder)
            self._clocks.extend(WallClock(library, folder / f"wall-step-{name}") for name in NAMES)
        except NotPossibleHere:
            lacking.add("set clocks")
        self._kinds: Final = [kind for kind in kinds if kind not in lacking]
        self._members: Final[list[Member]] = []
        self._observer: Final = Observer(self._judge, self._random)
        self._draw: Final = random.Random(seed)
        """For the faults only: callers use the other one at times of their own."""

    async def run_faults(self, faults: int) -> PairTally:
        """Raises `Broken`."""
        rounds = faults // len(self._kinds) + 1
        drawn = [kind for _ in range(rounds) for kind in self._draw.sample(self._kinds, len(self._kinds))][:faults]
        async with AsyncExitStack() as stack:
            for links in self._links:
                await stack.enter_async_context(links)
            self._address = "ipv4:" + ",".join(links.address for links in self._links)
            try:
                await self._start_all()
                for kind in drawn:
                    await asyncio.sleep(self._draw.uniform(0.2, 2.0))
                    await self._fault(kind, self._draw.choice(self._members))
                    self._check_tasks()
                    if self._draw.random() < CALLER_RESTARTED:
                        await self._restart_caller()
                    if self._draw.random() < AWAITED:
                        await self.until_led()
                await self._settle()
            finally:
                for task in self._tasks.values():
                    task.cancel()
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)
                for member in self._members:
                    member.end()
        self._check_end()
        logs = "".join(member.log for member in self._members)
        return PairTally(
            dict(Counter(drawn)),
            sum(len(caller.asked) for caller in self._callers),
            sum(caller.repeats for caller in self._callers),
            self._observer.reads,
            logs.count("leading, epoch"),
            logs.count("no longer the leader"),
        )

    def _set_clocks(self) -> None:
        step_s = self._draw.choice(WALL_STEPS_S)
        for sign, clock in zip((1, -1), self._clocks, strict=True):
            clock.step(sign * step_s)

    async def _start_all(self) -> None:
        if self._clocks:
            self._set_clocks()
        for place, (name, links) in enumerate(zip(NAMES, self._links, strict=True)):
            environment = self._clocks[place].environment if self._clocks else {}
            address = links.daemon_address
            flags = ("--fleet-silence-ms", str(SILENCE_MS))
            member = Member(name, self._folder, links.log_uri, flags, grpc_address=address, environment=environment)
            self._members.append(member)
        tasks = self._tasks
        tasks[None] = asyncio.create_task(self._advance())
        tasks["signals"] = asyncio.create_task(self._repeat(self._observer.signal_once))
        tasks["reads"] = asyncio.create_task(self._repeat(self._observer.read_once))
        tasks.update((caller, asyncio.create_task(caller.run(self._address))) for caller in self._callers)
        await self.until_led()

    async def until_led(self) -> Member:
        """Wait until a daemon leads, and return it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for member in self._members:
                member.start_if_ended()
                if await asyncio.to_thread(member.answers, "/leaderz"):
                    return member
            await asyncio.sleep(0.05)
        raise Broken("no daemon leads:\n" + "".join(member.log[-3_000:] for member in self._members))

    async def _fault(self, kind: str, member: Member) -> None:
        place = self._members.index(member)
        if kind == "stop":
            member.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self._draw.choice(PAUSES_S))
            member.process.send_signal(signal.SIGCONT)
            return
        if kind in CUTS:
            await self._cut(self._links[place].log if kind == "cut from the log" else self._links[place].callers)
            return
        if kind == "set clocks":
            self._set_clocks()
            return
        if kind == "kill both":
            for one in self._members:
                await asyncio.to_thread(one.end)
            await asyncio.sleep(self._draw.choice(PAUSES_S))
            return
        if kind == "hand over by call":
            # The standby refuses. The leader is started again by the next check.
            if await asyncio.to_thread(fleet_command, ["handover", "--address", member.grpc_address]) == 0:
                await asyncio.to_thread(member.process.wait, PATIENCE_S)
            return
        if kind == "crash point":
            point = f"{self._draw.choice(FLEET_POINTS)}:{self._draw.randint(1, 20)}"
            await asyncio.to_thread(member.end)
            member.start_if_ended(point)
            return
        await asyncio.to_thread(member.end, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        member.start_if_ended()

    async def _cut(self, proxy: FaultyProxy) -> None:
        """Delay one direction or both, then deliver the bytes, or reset the connections."""
        proxy.hold(self._draw.choice(WAYS))
        until_s = time.monotonic() + self._draw.choice(CUTS_S)
        while time.monotonic() < until_s:
            self._check_members()
            await asyncio.sleep(0.05)
        proxy.hold(frozenset())
        if self._draw.random() < 0.5:
            proxy.drop_all()

    def _check_tasks(self) -> None:
        super()._check_tasks()
        self._check_members()  # also at the end, while the last operations are awaited

    def _check_members(self) -> None:
        """Start what has ended; raise `Broken` if it ended in a way that it must not."""
        for member in self._members:
            code = member.process.poll()
            if code not in {None, 0, -signal.SIGKILL, EXIT_REPLACED}:
                raise Broken(f"a daemon ended with {code}:\n{member.log[-4_000:]}")
            member.start_if_ended()
