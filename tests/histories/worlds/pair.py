"""A pair of daemons over one log: `make fleet-crash SEED=7 ARGS="--count 1"`.

They are killed, stopped and continued, handed over, cut off from the log and from callers, and their wall clocks are
set. At the end each daemon's file must have exactly the rows that the log says.
"""

import asyncio
import contextlib
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
from tests.histories.history import History
from tests.histories.supervised import SupervisedWorld
from tests.histories.wire_caller import WIRE_FEATURES
from tests.kit.eventually import PATIENCE_S
from tests.kit.faults import NotPossibleHere, WallClock, build_library
from tests.kit.fleet import Links, Member
from tests.kit.programs import fleet_command
from tests.kit.proxy import BOTH, DOWN, UP, FaultyProxy

PATHS = ("rows", "columns")
FEATURES = WIRE_FEATURES
FAULTS = ("kill", "stop", "handover", "failover", "cut", "wall clock")
FAULTS_PER_HISTORY: Final = 50
CUTS: Final = ("cut from the log", "cut from callers")
WAYS: Final = (UP, DOWN, BOTH)
CUTS_S: Final = (0.3, 1.5, 3.5)
"""How long a cut lasts: shorter than the silence, longer, and longer than a leader lives without its log."""
SILENCE_MS: Final = 600
"""Less than the default, so that there are more takeovers."""
ENDS: Final = ("kill", "stop", "hand over", "crash point")
KINDS: Final = (*ENDS, "kill both", "hand over by call", "set clocks", *CUTS)
WALL_STEPS_S: Final = (-3_600, -3, 3, 3_600)
"""How far one daemon's wall clock is ahead. The other's is behind by the same."""
NAMES: Final = ("a", "b")


class PairWorld(SupervisedWorld):
    """Clocks are set only where there is a C compiler."""

    crash_points = FLEET_POINTS
    exit_codes = SupervisedWorld.exit_codes | {0, EXIT_REPLACED}
    probe = "/leaderz"

    def __init__(self, folder: Path, log_uri: str, seed: int, kinds: Sequence[str] = KINDS) -> None:
        """Args:
        folder: For the daemons' files.
        log_uri: The address of the log.
        seed: Draws the faults.
        kinds: Faults to draw from.
        """
        super().__init__(seed, kinds)
        self._folder: Final = folder
        self._log_uri: Final = log_uri
        self._links: Final = [Links(log_uri) for _ in NAMES]
        self._clocks: Final[list[WallClock]] = []
        lacking = set() if self._links[0].can_cut_log else {"cut from the log"}
        try:
            library = build_library(folder)
            self._clocks.extend(WallClock(library, folder / f"wall-step-{name}") for name in NAMES)
        except NotPossibleHere:
            lacking.add("set clocks")
        self.kinds[:] = [kind for kind in kinds if kind not in lacking]

    def tally(self) -> Counter[str]:
        with contextlib.closing(open_log(self._log_uri)) as log:
            groups = check_files(log, [self._folder / name for name in NAMES])
        logs = "".join(member.log for member in self.members)
        replaced = logs.count("no longer the leader")
        figures = {"reigns": logs.count("leading, epoch"), "daemons that found another one leading": replaced}
        return super().tally() | Counter({**figures, "groups in the log": groups})

    async def start(self, stack: AsyncExitStack) -> None:
        for links in self._links:
            await stack.enter_async_context(links)
        if self._clocks:
            self._set_clocks()
        for place, (name, links) in enumerate(zip(NAMES, self._links, strict=True)):
            environment = self._clocks[place].environment if self._clocks else {}
            address = links.daemon_address
            flags = ("--fleet-silence-ms", str(SILENCE_MS))
            member = Member(name, self._folder, links.log_uri, flags, grpc_address=address, environment=environment)
            self.members.append(member)
        self.load.start("ipv4:" + ",".join(links.address for links in self._links))
        await self.until_served()

    async def fault(self, kind: str, member: Member) -> None:
        """Cause a fault at one of the daemons, or both."""
        links = self._links[self.members.index(member)]
        if kind in CUTS:
            await self._cut(links.log if kind == "cut from the log" else links.callers)
        elif kind == "set clocks":
            self._set_clocks()
        elif kind == "kill both":
            for one in self.members:
                await asyncio.to_thread(one.end)
            await asyncio.sleep(self.random.choice(self.stops_s))
        elif kind == "hand over by call":
            # The standby refuses. The leader is started again by the next check.
            if await asyncio.to_thread(fleet_command, ["handover", "--address", member.grpc_address]) == 0:
                await asyncio.to_thread(member.process.wait, PATIENCE_S)
        elif kind == "hand over":
            await asyncio.to_thread(member.end, signal.SIGTERM)
            member.start_if_ended()
        else:
            await super().fault(kind, member)

    def _set_clocks(self) -> None:
        step_s = self.random.choice(WALL_STEPS_S)
        for sign, clock in zip((1, -1), self._clocks, strict=True):
            clock.step(sign * step_s)

    async def _cut(self, proxy: FaultyProxy) -> None:
        """Delay one direction or both, then deliver the bytes, or reset the connections."""
        proxy.hold(self.random.choice(WAYS))
        until_s = time.monotonic() + self.random.choice(CUTS_S)
        while time.monotonic() < until_s:
            self.check()
            await asyncio.sleep(0.05)
        proxy.hold(frozenset())
        if self.random.random() < 0.5:
            proxy.drop_all()


@contextlib.contextmanager
def real_log(*, is_kafka: bool, folder: Path) -> Iterator[str]:
    """The address of a new log, in a server that ends with the block."""
    if is_kafka:
        with KafkaCluster(folder / "kafka", 3) as cluster:
            yield f"kafka://{cluster.bootstrap}/pair-{uuid.uuid4().hex[:8]}"
    else:
        with LocalPostgres() as servers:
            yield f"postgresql://postgres@{servers.primary().address}/postgres"


def run(history: History) -> None:
    """The log of every third seed is in Kafka."""
    with tempfile.TemporaryDirectory() as name, real_log(is_kafka=history.seed % 3 == 2, folder=Path(name)) as url:
        assert fleet_command(["init", url]) == 0, "a new server accepts it"
        members = Path(name) / "members"
        members.mkdir()
        world = PairWorld(members, url, history.seed)
        history.figures.update(asyncio.run(world.run(FAULTS_PER_HISTORY)))
        world.load.note_pairs(history.seen, *FAULTS)
