"""A crash test over a pair of daemons with one log: both are killed, stopped and continued, and handed over.

The callers are those of the crash test of one daemon. They check every answer: nothing acknowledged is lost, nothing
ends twice or otherwise, nothing ends early, and no sequence number is missing.
"""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from purgatory.extensions.fleet.commands import main as fleet_command
from purgatory.fleet.leadership import EXIT_REPLACED
from purgatory.journal.crash_points import FLEET_POINTS, NEVER, VARIABLE
from tests.crash.crash_run import CrashRun, free_port
from tests.crash.wire_caller import Broken
from tests.daemon_process import DEADLINE_S, daemon_environment

SILENCE_MS: Final = 600
FAULTS: Final = ("kill", "stop", "stop", "hand over", "hand over by call", "crash point")
PAUSES_S: Final = (0.3, 1.5, 2.5)
"""How long a daemon is stopped: shorter and longer than the silence."""


class PairTally(NamedTuple):
    faults: dict[str, int]
    operations: int
    repeats: int
    reigns: int
    replaced: int
    """Daemons that found another one leading, and exited."""


class Member:
    """One of the two daemons: a process that is started again whenever it has ended."""

    def __init__(
        self, name: str, folder: Path, log_uri: str, more: tuple[str, ...] = (), grpc_address: str = ""
    ) -> None:
        self.grpc_address: Final = grpc_address or f"127.0.0.1:{free_port()}"
        self.http_address: Final = f"127.0.0.1:{free_port()}"
        self.data: Final = folder / name
        self.log_path: Final = folder / f"{name}.log"
        self.exit_codes: Final[list[int]] = []
        self.module = "purgatory"
        """The program that the next start runs."""
        self._arguments: Final = [
            "--grpc-address", self.grpc_address, "--http-address", self.http_address, "--data-dir", str(self.data),
            "--fleet-log", log_uri, "--fleet-silence-ms", str(SILENCE_MS), *more,
        ]  # fmt: skip
        self.process = self._start(NEVER)

    def _start(self, crash_at: str) -> "subprocess.Popen[bytes]":
        with self.log_path.open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, "serve", *self._arguments],
                env=daemon_environment({VARIABLE: crash_at}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def start_if_ended(self, crash_at: str = NEVER) -> None:
        """Act as a supervisor."""
        if not self.is_running:
            self.exit_codes.append(self.process.returncode)
            self.process = self._start(crash_at)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.is_running:
            self.process.send_signal(number)
        self.process.wait(DEADLINE_S)

    def answers(self, path: str) -> bool:
        """Whether a probe is answered with 200."""
        try:
            with urlopen(f"http://{self.http_address}{path}", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


class PairRun(CrashRun):
    """Only the advancer, the checks and the settling of a crash run are used."""

    def __init__(self, folder: Path, log_uri: str, seed: int) -> None:
        self._members: Final = [Member(name, folder, log_uri) for name in ("a", "b")]
        addresses = ",".join(member.grpc_address for member in self._members)
        super().__init__(folder, seed, address=f"ipv4:{addresses}")

    async def run_faults(self, faults: int) -> PairTally:
        """Raises `Broken`."""
        tasks, counts = self._tasks, dict.fromkeys(FAULTS, 0)
        tasks[None] = asyncio.create_task(self._advance())
        tasks.update((caller, asyncio.create_task(caller.run(self._address))) for caller in self._callers)
        try:
            await self.until_led()
            for _ in range(faults):
                await asyncio.sleep(self._random.uniform(0.2, 2.0))
                kind = self._random.choice(FAULTS)
                counts[kind] += 1
                await self._fault(kind, self._random.choice(self._members))
                self._check_tasks()
            for member in self._members:
                member.start_if_ended()
            await self._settle()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            for member in self._members:
                member.end()
        for caller in self._callers:
            caller.check_end()
        logs = "".join(member.log for member in self._members)
        return PairTally(
            counts,
            sum(len(caller.asked) for caller in self._callers),
            sum(caller.repeats for caller in self._callers),
            logs.count("leading, epoch"),
            logs.count("no longer the leader"),
        )

    async def until_led(self) -> Member:
        """Wait until a daemon leads, and return it."""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            for member in self._members:
                member.start_if_ended()
                if await asyncio.to_thread(member.answers, "/leaderz"):
                    return member
            await asyncio.sleep(0.05)
        raise Broken("no daemon leads:\n" + "".join(member.log[-3_000:] for member in self._members))

    async def _fault(self, kind: str, member: Member) -> None:
        if kind == "stop":
            member.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self._random.choice(PAUSES_S))
            member.process.send_signal(signal.SIGCONT)
            return
        if kind == "hand over by call":
            # The standby refuses. The leader is started again by the next check.
            if await asyncio.to_thread(fleet_command, ["handover", "--address", member.grpc_address]) == 0:
                await asyncio.to_thread(member.process.wait, DEADLINE_S)
            return
        if kind == "crash point":
            point = f"{self._random.choice(FLEET_POINTS)}:{self._random.randint(1, 20)}"
            await asyncio.to_thread(member.end)
            member.start_if_ended(point)
            return
        await asyncio.to_thread(member.end, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        member.start_if_ended()

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
