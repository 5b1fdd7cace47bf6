"""One daemon with a journal, killed under load: `make crash SEED=7 ARGS="--count 10"`.

Besides the load there is a process with the client library and an outbox, which is killed too.
"""

import asyncio
import subprocess
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from purgatory.journal.crash_points import POINTS
from tests.client.outbox.outbox_killed import Killed
from tests.histories.history import History
from tests.histories.judge import Broken
from tests.histories.supervised import SupervisedWorld, accepted_batches
from tests.histories.wire_caller import WIRE_FEATURES, WireCaller
from tests.kit.daemon import StartedDaemon, StartedProcess
from tests.kit.eventually import wait_until
from tests.kit.faults import LimitedDisk, NotPossibleHere, Power, fold_log
from tests.kit.fleet import Member

PATHS = ("rows", "columns")
FEATURES = WIRE_FEATURES
FAULTS = ("kill", "stop", "full disk", "wall clock")
FAULTS_PER_HISTORY: Final = 30
"""Faults in a history of the machine."""
KINDS: Final = ("kills", "asynchronous", "power cuts", "full disks")
"""Kinds of histories; each has one."""
KILLED_WHILE_FULL: Final = 0.3
WALL_STEPS_S: Final = (-3_600, 0, 3_600)
OUTBOX_KILLED: Final = 0.4
OUTBOX_WAITS_MAX: Final = 100_000
OUTBOX_LINES_MIN: Final = 20
"""Lines of its log that show that the caller with an outbox has submitted some waits."""


class CrashWorld(SupervisedWorld):
    """With a `room` the journal is stored there, and the daemon runs out of space. With `power`, unsynced data is lost
    whenever the daemon ends, and its next wall clock is off by up to an hour.
    The caller with an outbox takes part unless `has_outbox` is false, or there is a `room`, where it would be refused.
    """

    pause_s = (0.0, 0.7)
    stops_s = (0.03, 0.1)
    crash_points = POINTS
    caller_restarted = 0.2

    def __init__(
        self,
        folder: Path,
        seed: int,
        mode: str = "sync",
        room: LimitedDisk | None = None,
        power: Power | None = None,
        *,
        has_outbox: bool = True,
    ) -> None:
        kinds = ("crash point", "kill", "stop" if room is None else "full disk")
        super().__init__(seed, kinds, is_durable=mode == "sync", may_refuse=room is not None)
        self._folder: Final = folder if room is None else room.folder
        self._flags: Final = ("--journal-mode", mode, "--log-level", "warning")
        self.room: Final = room
        self.power: Final = power
        self._outbox: Final = _Outbox(folder / "outbox", seed) if has_outbox and room is None else None

    async def start(self, stack: AsyncExitStack) -> None:
        if self._outbox is not None:
            stack.callback(self._outbox.kill)
        self.members.append(_Daemon(self, self._folder, self._flags))
        self.load.start(self.members[0].address)

    async def fault(self, kind: str, member: Member) -> None:
        if kind == "full disk":
            assert self.room is not None
            await self._run_out(self.room, member)
        else:
            await super().fault(kind, member)
        if self._outbox is not None:
            self._outbox.live_on(member)

    async def _run_out(self, room: LimitedDisk, member: Member) -> None:
        """Fill the disk until each caller is refused. Usually free it again; then each caller must be served."""
        await super().fault("kill", member)  # the next one does not die at a crash point
        await self.load.until_all_rise(accepted_batches, self.check, "served")
        room.fill(member.process.pid)
        await self.load.until_all_rise(_refused, self.check, "refused for want of space")
        if self.random.random() < KILLED_WHILE_FULL:
            await super().fault("kill", member)
        else:
            room.free()
            await self.load.until_all_rise(accepted_batches, self.check, "served again")

    async def finish(self) -> None:
        if self._outbox is not None:
            await asyncio.to_thread(self._outbox.finish, self.members[0])

    def tally(self) -> Counter[str]:
        refused = sum(caller.refused_batches for caller in self.load.callers)
        tally = super().tally() | Counter({"refused batches": refused})
        if self._outbox is not None:
            tally |= Counter({"outbox kills": self._outbox.kills, "outbox waits": len(self._outbox.check())})
        return tally


class _Daemon(Member):
    """Before each start the disk has room, and the power was cut."""

    def __init__(self, world: CrashWorld, folder: Path, flags: tuple[str, ...]) -> None:
        self._world: Final = world
        super().__init__("data", folder, flags=flags)

    def _start(self, crash_at: str) -> StartedDaemon:
        world = self._world
        if world.room is not None and (self.data / "journal.db").exists():
            world.room.free()
            fold_log(self.data)
        if world.power is not None:
            world.power.fail(self.data)
            self.environment.update(world.power.environment(world.random.choice(WALL_STEPS_S)))
        return super()._start(crash_at)


def _refused(caller: WireCaller) -> int:
    return caller.refused_batches


class _Outbox(Killed):
    """The caller with an outbox, killed from time to time while daemons are replaced."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, seed)
        self.kills = 0
        self._lives = 0
        self._process: subprocess.Popen[str] | None = None

    def live_on(self, daemon: StartedProcess) -> None:
        if self._process is not None and self.random.random() < OUTBOX_KILLED:
            self.kill()
            self.kills += 1
        if self._process is None:
            self._lives += 1
            self._process = self.live(daemon, self._lives, OUTBOX_WAITS_MAX)
        elif self._process.poll() is not None:
            error = self._process.stderr.read() if self._process.stderr else ""
            raise Broken(f"the caller with an outbox ended with {self._process.returncode}: {error}")

    def finish(self, daemon: StartedProcess) -> None:
        """Start a last process that collects all remaining results, once some waits were submitted."""
        wait_until(lambda: len(self.lines()) >= OUTBOX_LINES_MIN, "the caller with an outbox has begun")
        self.kill()
        super().finish(daemon)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()


def run(history: History) -> None:
    """Kill daemons in one of four ways, by turns: with synchronous commits and with asynchronous ones, by power cuts
    that come with another wall clock, and on a full disk.
    """
    kind = KINDS[history.seed % len(KINDS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            power = Power(folder / "shim") if kind == "power cuts" and "wall clock" in history.faults else None
            room = LimitedDisk(folder / "disk") if kind == "full disks" and "full disk" in history.faults else None
        except NotPossibleHere as error:
            history.figures[f"skipped: {error}"] += 1
            return
        mode = "async" if kind == "asynchronous" else "sync"
        world = CrashWorld(folder / "world", history.seed, mode, room, power)
        history.figures.update(asyncio.run(world.run(FAULTS_PER_HISTORY)))
    faults = {"stop": room is None, "full disk": room is not None, "wall clock": power is not None}
    world.load.note_pairs(history.seen, "kill", *[name for name, was_caused in faults.items() if was_caused])
