"""A pair of daemons over one log: `make fleet-crash ARGS="--faults 200 --seed 7 --kafka"`.

They are killed, stopped and continued, handed over, cut off from the log and from callers, and their wall clocks are
set. At the end each daemon's file must have exactly the rows that the log says.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from examples.kafka_cluster import KafkaCluster
from examples.local_postgres import LocalPostgres
from purgatory.journal.crash_points import FLEET_POINTS
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.open_log import open_log
from tests.fleet.audit import check_files
from tests.histories.judge import Broken, Judge
from tests.histories.wire_load import WireLoad
from tests.kit.commands import fleet_command
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.faults import NotPossibleHere, WallClock, build_library, stopped
from tests.kit.fleet import Links, Member
from tests.kit.proxy import BOTH, DOWN, UP, FaultyProxy

CUTS: Final = ("cut from the log", "cut from callers")
WAYS: Final = (UP, DOWN, BOTH)
CUTS_S: Final = (0.3, 1.5, 3.5)
"""How long a cut lasts: shorter than the silence, longer, and longer than a leader lives without its log."""
SILENCE_MS: Final = 600
"""Less than the default, so that there are more takeovers."""
ENDS: Final = ("kill", "stop", "hand over", "crash point")
FAULTS: Final = (*ENDS, "kill both", "stop", "hand over by call", "set clocks", *CUTS)
PAUSES_S: Final = (0.3, 1.5, 2.5)
"""How long a daemon is stopped, or both are away: shorter and longer than the silence."""
WALL_STEPS_S: Final = (-3_600, -3, 3, 3_600)
"""How far one daemon's wall clock is ahead. The other's is behind by the same."""
AWAITED: Final = 0.5
"""Share of faults after which the next one waits until a daemon leads; the others may find none."""
NAMES: Final = ("a", "b")
CALLER_RESTARTED: Final = 0.5
"""Share of faults after which a caller is restarted; it has lost what it did not acknowledge."""


class PairWorld:
    """Without a C compiler, no clock is set."""

    def __init__(self, folder: Path, log_uri: str, seed: int, kinds: Sequence[str] = FAULTS) -> None:
        """Args:
        folder: For the daemons' files.
        log_uri: The address of the log.
        seed: Draws the faults.
        kinds: Faults to draw from.
        """
        self.members: Final[list[Member]] = []
        self._folder: Final = folder
        self._log_uri: Final = log_uri
        self._judge: Final = Judge()
        self.load: Final = WireLoad(self._judge, seed)
        self._links: Final = [Links(log_uri) for _ in NAMES]
        self._clocks: Final[list[WallClock]] = []
        lacking = set() if self._links[0].can_cut_log else {"cut from the log"}
        try:
            library = build_library(folder)
            self._clocks.extend(WallClock(library, folder / f"wall-step-{name}") for name in NAMES)
        except NotPossibleHere:
            lacking.add("set clocks")
        self._kinds: Final = [kind for kind in kinds if kind not in lacking]
        self._random: Final = random.Random(seed)

    async def run(self, faults: int) -> Counter[str]:
        """Cause this number of faults, then let all operations end, and check the files. Raises `Broken`."""
        rounds = faults // len(self._kinds) + 1
        drawn = [kind for _ in range(rounds) for kind in self._random.sample(self._kinds, len(self._kinds))][:faults]
        async with AsyncExitStack() as stack:
            for links in self._links:
                await stack.enter_async_context(links)
            try:
                await self._start()
                for kind in drawn:
                    await asyncio.sleep(self._random.uniform(0.2, 2.0))
                    await self.fault(kind, self._random.choice(self.members))
                    self.check()
                    if self._random.random() < CALLER_RESTARTED:
                        await self.load.restart_caller()
                    if self._random.random() < AWAITED:
                        await self._until_led()
                await self.load.settle(self.check)
            finally:
                await self.load.end()
                for member in self.members:
                    member.end()
        self._judge.check_end()
        self._judge.check()
        return Counter(drawn) | self._tally()

    def _tally(self) -> Counter[str]:
        with contextlib.closing(open_log(self._log_uri)) as log:
            groups = check_files(log, [self._folder / name for name in NAMES])
        logs = "".join(member.log for member in self.members)
        return Counter(
            {
                "operations": self.load.operations,
                "results sent again": self.load.repeats,
                "reads": self.load.reads,
                "reigns": logs.count("leading, epoch"),
                "daemons that found another one leading": logs.count("no longer the leader"),
                "groups in the log": groups,
            }
        )

    async def _start(self) -> None:
        if self._clocks:
            self._set_clocks()
        for place, (name, links) in enumerate(zip(NAMES, self._links, strict=True)):
            environment = self._clocks[place].environment if self._clocks else {}
            address = links.daemon_address
            flags = ("--fleet-silence-ms", str(SILENCE_MS))
            member = Member(name, self._folder, links.log_uri, flags, grpc_address=address, environment=environment)
            self.members.append(member)
        self.load.start("ipv4:" + ",".join(links.address for links in self._links))
        await self._until_led()

    async def _until_led(self) -> None:
        async def is_led() -> bool:
            for member in self.members:
                member.start_if_ended()
            return any([await asyncio.to_thread(member.answers, "/leaderz") for member in self.members])

        await eventually(is_led, lambda: f"a daemon leads:\n{self.logs}")

    @property
    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "".join(member.log[-4_000:] for member in self.members)

    async def fault(self, kind: str, member: Member) -> None:
        """Cause a fault at one of the daemons, or both."""
        links = self._links[self.members.index(member)]
        if kind == "stop":
            await stopped(member.process, self._random.choice(PAUSES_S))
        elif kind in CUTS:
            await self._cut(links.log if kind == "cut from the log" else links.callers)
        elif kind == "set clocks":
            self._set_clocks()
        elif kind == "kill both":
            for one in self.members:
                await asyncio.to_thread(one.end)
            await asyncio.sleep(self._random.choice(PAUSES_S))
        elif kind == "hand over by call":
            # The standby refuses. The leader is started again by the next check.
            if await asyncio.to_thread(fleet_command, ["handover", "--address", member.grpc_address]) == 0:
                await asyncio.to_thread(member.process.wait, PATIENCE_S)
        elif kind == "crash point":
            await asyncio.to_thread(member.end)
            member.start_if_ended(f"{self._random.choice(FLEET_POINTS)}:{self._random.randint(1, 20)}")
        else:
            await asyncio.to_thread(member.end, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            member.start_if_ended()

    def _set_clocks(self) -> None:
        step_s = self._random.choice(WALL_STEPS_S)
        for sign, clock in zip((1, -1), self._clocks, strict=True):
            clock.step(sign * step_s)

    async def _cut(self, proxy: FaultyProxy) -> None:
        """Delay one direction or both, then deliver the bytes, or reset the connections."""
        proxy.hold(self._random.choice(WAYS))
        until_s = time.monotonic() + self._random.choice(CUTS_S)
        while time.monotonic() < until_s:
            self.check()
            await asyncio.sleep(0.05)
        proxy.hold(frozenset())
        if self._random.random() < 0.5:
            proxy.drop_all()

    def check(self) -> None:
        """Start what has ended; raise `Broken` if it ended in a way that it must not, or if a rule is broken."""
        self.load.check()
        for member in self.members:
            code = member.process.poll()
            if code not in {None, 0, -signal.SIGKILL, EXIT_REPLACED}:
                raise Broken(f"a daemon ended with {code}:\n{member.log[-4_000:]}")
            member.start_if_ended()


@contextlib.contextmanager
def real_log(*, is_kafka: bool, folder: Path) -> Iterator[str]:
    """The address of a new log, in a server that ends with the block."""
    if is_kafka:
        with KafkaCluster(folder / "kafka", 3) as cluster:
            yield f"kafka://{cluster.bootstrap}/pair-{uuid.uuid4().hex[:8]}"
    else:
        with LocalPostgres() as servers:
            yield f"postgresql://postgres@{servers.primary().address}/postgres"


def main() -> None:
    """Run it. A broken rule raises."""
    parser = argparse.ArgumentParser("python -m tests.histories.worlds.pair", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--kafka", action="store_true", help="a log in three brokers; otherwise in PostgreSQL")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name, real_log(is_kafka=given.kafka, folder=Path(name)) as url:
        assert fleet_command(["init", url]) == 0, "a new server accepts it"
        members = Path(name) / "members"
        members.mkdir()
        tally = asyncio.run(PairWorld(members, url, given.seed).run(given.faults))
    print(", ".join(f"{count} {what}" for what, count in tally.items()), f"; {time.monotonic() - began_s:.0f} s")
    print("lost: 0, ended twice: 0, too early: 0; all files as the log says")


if __name__ == "__main__":
    main()
