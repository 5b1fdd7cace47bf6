"""One daemon with a journal, killed under load: `make crash ARGS="--kills 200 --seed 7"`.

Daemons run one after another on one folder. Besides the load there is a process with the client library and an outbox,
which is killed too.
"""

import argparse
import asyncio
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from examples.free_ports import free_port
from purgatory.journal.crash_points import POINTS, VARIABLE
from tests.client.outbox.outbox_killed import Killed
from tests.histories.judge import Broken, Judge
from tests.histories.wire_caller import WireCaller
from tests.histories.wire_load import WireLoad
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import wait_until
from tests.kit.faults import LimitedDisk, NotPossibleHere, Power, fold_log, stopped

LIFE_S_MAX: Final = 0.7
STOPPED_S: Final = 0.1
KILLED_WHILE_FULL: Final = 0.3
CALLER_RESTARTED: Final = 0.2
WALL_STEPS_S: Final = (-3_600, 0, 3_600)
OUTBOX_KILLED: Final = 0.4
OUTBOX_WAITS_MAX: Final = 100_000
OUTBOX_LINES_MIN: Final = 20
"""Lines of its log that show that the caller with an outbox has submitted some waits."""
ASYNC_SHARE: Final = 4
POWER_SHARE: Final = 10
ROOM_SHARE: Final = 10
"""One async kill, power cut, or kill on a full disk per this number of kills in sync mode."""


class CrashWorld:
    """With a `room` the journal is stored there, and each daemon that does not die at a crash point runs out of space.
    With `power`, unsynced data is lost at each kill, and the next wall clock is off by up to an hour.
    The caller with an outbox takes part unless `has_outbox` is false, or there is a `room`, where it would be refused.
    """

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
        self._folder: Final = folder
        self._room: Final = room
        self._power: Final = power
        self._data: Final = (folder if room is None else room.folder) / "data"
        self._random: Final = random.Random(seed)
        self._address: Final = f"127.0.0.1:{free_port()}"
        self._flags: Final = [
            "--grpc-address", self._address, "--data-dir", str(self._data), "--journal-mode", mode,
            "--log-level", "warning",
        ]  # fmt: skip
        self._judge: Final = Judge(is_durable=mode == "sync")
        self._load: Final = WireLoad(self._judge, seed, may_refuse=room is not None)
        self._outbox: Final = _Outbox(folder / "outbox", seed) if has_outbox and room is None else None

    async def run(self, kills: int) -> Counter[str]:
        """Kill this number of daemons, then let the last one run until all operations have ended. Raises `Broken`."""
        daemon: DaemonProcess | None = None
        self._load.start(self._address)
        try:
            for number in range(kills):
                daemon = await asyncio.to_thread(self._start, self._crash_point(number))
                if daemon is not None:
                    await self._live(daemon)
                    await asyncio.to_thread(daemon.kill)
                    if self._room is not None:
                        self._room.free()
                        fold_log(self._data)
                if self._random.random() < CALLER_RESTARTED:
                    await self._load.restart_caller()
                self._load.check()
            daemon = await asyncio.to_thread(self._start, "never")
            assert daemon is not None, "it had no crash point"
            await self._load.settle(self._load.check)
            if self._outbox is not None:
                await asyncio.to_thread(self._outbox.finish, daemon)
        finally:
            if self._outbox is not None:
                self._outbox.kill()
            await self._load.end()
            if daemon is not None:
                await asyncio.to_thread(daemon.kill)
        self._judge.check_end()
        self._judge.check()
        return self._tally(kills)

    def _tally(self, kills: int) -> Counter[str]:
        refused = sum(caller.refused_batches for caller in self._load.callers)
        tally = Counter({"kills": kills, "operations": self._load.operations, "reads": self._load.reads})
        tally |= Counter({"results sent again": self._load.repeats, "refused batches": refused})
        if self._outbox is not None:
            tally |= Counter({"outbox kills": self._outbox.kills, "outbox waits": len(self._outbox.check())})
        return tally

    def _crash_point(self, number: int) -> str:
        """Every third daemon dies at a crash point of the journal, in rotation; the others are killed from outside."""
        if number % 3:
            return "never"
        point = POINTS[number // 3 % len(POINTS)]
        return f"{point}:{self._random.randint(1, 20)}"

    def _start(self, crash_at: str) -> DaemonProcess | None:
        """Start a daemon. None if it died at its crash point before it served."""
        environment = {VARIABLE: crash_at}
        if self._power is not None:
            self._power.fail(self._data)
            environment |= self._power.environment(self._random.choice(WALL_STEPS_S))
        try:
            return DaemonProcess(self._folder, self._flags, environment)
        except AssertionError as error:
            if crash_at != "never" and f"ended with {-signal.SIGKILL}" in str(error):
                return None
            raise

    async def _live(self, daemon: DaemonProcess) -> None:
        """Return when it is time to kill the daemon, or when it has died at its crash point."""
        if self._outbox is not None:
            self._outbox.live_on(daemon)
        if self._room is not None:
            await self._run_out(self._room, daemon)
        until_s = time.monotonic() + self._random.random() * LIFE_S_MAX
        is_stopped = self._random.random() < 0.2
        while time.monotonic() < until_s and daemon.process.poll() is None:
            await asyncio.sleep(0.02)
            if is_stopped and self._random.random() < 0.2:
                await stopped(daemon.process, STOPPED_S * self._random.random())
        if daemon.process.poll() not in {None, -signal.SIGKILL}:
            raise Broken(f"the daemon ended with {daemon.process.returncode}:\n{daemon.log[-4_000:]}")

    async def _run_out(self, room: LimitedDisk, daemon: DaemonProcess) -> None:
        """Fill the disk until each caller is refused. Usually free it again; then each caller must be served."""

        def is_dead() -> bool:
            self._load.check()
            return daemon.process.poll() is not None

        room.fill(daemon.process.pid)
        await self._load.until_all_rise(_refused, is_dead, "refused for want of space")
        if self._random.random() < KILLED_WHILE_FULL:
            return
        room.free()
        await self._load.until_all_rise(_accepted, is_dead, "served again")


def _refused(caller: WireCaller) -> int:
    return caller.refused_batches


def _accepted(caller: WireCaller) -> int:
    return caller.accepted_batches


class _Outbox(Killed):
    """The caller with an outbox, killed from time to time while daemons are replaced."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, seed)
        self.kills = 0
        self._lives = 0
        self._process: subprocess.Popen[str] | None = None

    def live_on(self, daemon: DaemonProcess) -> None:
        if self._process is not None and self.random.random() < OUTBOX_KILLED:
            self.kill()
            self.kills += 1
        if self._process is None:
            self._lives += 1
            self._process = self.live(daemon, self._lives, OUTBOX_WAITS_MAX)
        elif self._process.poll() is not None:
            error = self._process.stderr.read() if self._process.stderr else ""
            raise Broken(f"the caller with an outbox ended with {self._process.returncode}: {error}")

    def finish(self, daemon: DaemonProcess) -> None:
        """Start a last process that collects all remaining results, once some waits were submitted."""
        wait_until(lambda: len(self.lines()) >= OUTBOX_LINES_MIN, "the caller with an outbox has begun")
        self.kill()
        super().finish(daemon)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.kill()


def run(title: str, kills: int, world: CrashWorld) -> None:
    began_s = time.monotonic()
    tally = asyncio.run(world.run(kills))
    figures = ", ".join(f"{count} {what}" for what, count in tally.items())
    print(f"{title}: {figures}; {time.monotonic() - began_s:.0f} s", flush=True)


def main() -> None:
    """Run each kind of crash test in turn. A broken rule raises."""
    parser = argparse.ArgumentParser("python -m tests.histories.worlds.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    given = parser.parse_args()
    kills, seed = given.kills, given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("sync", kills, CrashWorld(folder / "sync", seed))
        run("async", kills // ASYNC_SHARE, CrashWorld(folder / "async", seed, "async"))
        try:
            power = Power(folder / "shim")
            run("power cuts", kills // POWER_SHARE, CrashWorld(folder / "power", seed, power=power))
            room = LimitedDisk(folder / "room" / "disk")
            run("full disks", kills // ROOM_SHARE, CrashWorld(folder / "room", seed, room=room))
        except NotPossibleHere as error:
            print(f"SKIPPED: {error}", flush=True)
    print("lost: 0, ended twice: 0, too early: 0")


if __name__ == "__main__":
    main()
