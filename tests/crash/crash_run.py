"""One crash test: daemons run one after another on one folder, with callers and an advancer that outlive them.

There are two kinds of callers: one at the level of the wire protocol in this process (`caller`), and a separate process
with the client library and an outbox, which is killed too.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from examples.free_ports import free_port
from purgatory.journal.crash_points import POINTS, VARIABLE
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub as Stub
from tests.crash.outbox_caller import OutboxCaller
from tests.crash.wire_caller import TOPICS, Broken, PushedMarks, WireCaller, channel_to
from tests.histories.judge import Judge
from tests.kit.daemon import DaemonProcess
from tests.kit.faults import LimitedDisk, Power, fold_log
from tests.kit.messages import advance_request, high_watermark

CALLERS: Final = 3
LIFE_S_MAX: Final = 0.7
STOPPED_S: Final = 0.1
KILLED_WHILE_FULL: Final = 0.3
WALL_STEPS_S: Final = (-3_600, 0, 3_600)
SETTLE_S: Final = 60.0
ADVANCE_S: Final = 0.01
CALL_S: Final = 5.0


class CrashTally(NamedTuple):
    kills: int
    operations: int
    repeats: int
    refused_batches: int
    outbox_waits: int
    outbox_kills: int


class CrashRun:
    """Kills `kills` daemons, then lets the last one run until all operations have ended. Raises `Broken`.

    With a `room` the journal is stored there, and each daemon that does not die at a crash point runs out of space.
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
        address: str | None = None,
        *,
        has_outbox: bool = True,
    ) -> None:
        self._folder: Final = folder
        self._mode: Final = mode
        self._room: Final = room
        self._power: Final = power
        self._data: Final = (folder if room is None else room.folder) / "data"
        self._random: Final = random.Random(seed)
        self._address = address or f"127.0.0.1:{free_port()}"
        self._marks: Final = PushedMarks()
        self._judge: Final = Judge()
        is_sync, may_refuse = mode == "sync", room is not None
        self._callers: Final = [
            WireCaller(
                f"caller-{place}", self._marks, seed + place,
                is_sync=is_sync, may_refuse=may_refuse, judge=self._judge,
            )
            for place in range(CALLERS)
        ]  # fmt: skip
        self._outbox: Final = OutboxCaller(folder / "outbox", seed) if has_outbox and room is None else None
        self._tasks: Final[dict[WireCaller | str | None, asyncio.Task[None]]] = {}
        """The tasks of the callers, of the advancer (None), and of others by name."""

    async def run(self, kills: int) -> CrashTally:
        tasks = self._tasks
        tasks[None] = asyncio.create_task(self._advance())
        tasks.update((caller, asyncio.create_task(caller.run(self._address))) for caller in self._callers)
        daemon: DaemonProcess | None = None
        try:
            for number in range(kills):
                daemon = await asyncio.to_thread(self._start, self._crash_point(number))
                if daemon is not None:
                    await self._live(daemon)
                    await asyncio.to_thread(daemon.kill)
                    if self._room is not None:
                        self._room.free()
                        fold_log(self._data)
                if self._random.random() < 0.2:
                    await self._restart_caller()
                self._check_tasks()
            daemon = await asyncio.to_thread(self._start, "never")
            assert daemon is not None, "it had no crash point"
            await self._settle()
            if self._outbox is not None:
                await asyncio.to_thread(self._outbox.finish, daemon)
        finally:
            if self._outbox is not None:
                self._outbox.kill()
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            if daemon is not None:
                await asyncio.to_thread(daemon.kill)
        self._check_end()
        return CrashTally(
            kills,
            sum(len(caller.asked) for caller in self._callers),
            sum(caller.repeats for caller in self._callers),
            sum(caller.refused_batches for caller in self._callers),
            len(self._outbox.check()) if self._outbox is not None else 0,
            self._outbox.kills if self._outbox is not None else 0,
        )

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
        arguments = ["--grpc-address", self._address, "--data-dir", str(self._data)]
        arguments += ["--journal-mode", self._mode, "--log-level", "warning"]
        try:
            return DaemonProcess(self._folder, arguments, environment)
        except AssertionError as error:
            if crash_at != "never" and f"ended with {-signal.SIGKILL}" in str(error):
                return None
            raise

    async def _live(self, daemon: DaemonProcess) -> None:
        """Return when it is time to kill the daemon, or when it has died at its crash point."""
        if self._outbox is not None:
            self._outbox.live(daemon)
        if self._room is not None:
            await self._run_out(self._room, daemon)
        until_s = time.monotonic() + self._random.random() * LIFE_S_MAX
        is_stopped = self._random.random() < 0.2
        while time.monotonic() < until_s and daemon.process.poll() is None:
            await asyncio.sleep(0.02)
            if is_stopped and self._random.random() < 0.2:
                daemon.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(STOPPED_S * self._random.random())
                daemon.process.send_signal(signal.SIGCONT)
        if daemon.process.poll() not in {None, -signal.SIGKILL}:
            raise Broken(f"the daemon ended with {daemon.process.returncode}:\n{daemon.log[-4_000:]}")

    async def _run_out(self, room: LimitedDisk, daemon: DaemonProcess) -> None:
        """Fill the disk until each caller is refused. Usually free it again; then each caller must be served."""
        room.fill(daemon.process.pid)
        await self._until_all_rise(lambda caller: caller.refused_batches, daemon, "to be refused for want of room")
        if self._random.random() < KILLED_WHILE_FULL:
            return
        room.free()
        await self._until_all_rise(lambda caller: caller.accepted_batches, daemon, "to be served again")

    async def _until_all_rise(self, count: Callable[[WireCaller], int], daemon: DaemonProcess, what: str) -> None:
        """Wait until this count has risen for each caller or the daemon is dead. Raises `Broken` after SETTLE_S."""
        before = {caller: count(caller) for caller in self._callers}
        deadline_s = time.monotonic() + SETTLE_S
        while not all(count(caller) > before[caller] for caller in before) and daemon.process.poll() is None:
            self._check_tasks()
            if time.monotonic() > deadline_s:
                raise Broken(f"timed out waiting for all callers {what}; the daemon's log:\n{daemon.log[-4_000:]}")
            await asyncio.sleep(0.02)

    async def _restart_caller(self) -> None:
        tasks, caller = self._tasks, self._random.choice(self._callers)
        tasks[caller].cancel()
        await asyncio.gather(tasks[caller], return_exceptions=True)
        caller.forget()
        tasks[caller] = asyncio.create_task(caller.run(self._address))

    def _check_tasks(self) -> None:
        """Raise the error of a caller or of the advancer, if one has failed, or the first complaint."""
        for task in self._tasks.values():
            if task.done():
                task.result()
        self._check_history()

    def _check_history(self) -> None:
        if self._mode == "sync" and self._judge.complaints:
            raise Broken("\n".join(self._judge.complaints[:10]))

    def _check_end(self) -> None:
        for caller in self._callers:
            caller.check_end()
        self._judge.check_end()
        self._check_history()

    async def _advance(self) -> None:
        """Push marks until cancelled. Acknowledged marks must never fall."""
        await self._repeat(self._advance_once)

    async def _repeat(self, once: Callable[[Stub], Awaitable[None]]) -> None:
        """Make calls until cancelled, over a new connection after each error."""
        while True:
            async with channel_to(self._address) as channel:
                stub = Stub(channel)
                try:
                    while True:
                        await once(stub)
                        await asyncio.sleep(ADVANCE_S)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(ADVANCE_S)

    async def _advance_once(self, stub: Stub) -> None:
        marks = self._marks
        topic = self._random.choice(TOPICS)
        name = operation_pb2.TopicPartition(topic=topic)
        if self._random.random() < 0.2 and marks.answered[topic]:
            at_least = max(marks.answered[topic], marks.seen[topic])
            answer = await stub.GetPartition(wire.GetPartitionRequest(topic_partition=name), timeout=CALL_S)
            if answer.partition.high_watermark < at_least and self._mode == "sync":
                raise Broken(f"{topic}: {at_least} was answered, now it is {answer.partition.high_watermark}")
            return
        marks.sent[topic] += self._random.randint(0, 10)
        offset = marks.sent[topic]
        self._judge.sending(topic, offset)
        await stub.Advance(advance_request(high_watermark(topic, offset)), timeout=CALL_S)
        marks.answered[topic] = max(marks.answered[topic], offset)
        self._judge.acknowledged(topic, offset)

    async def _settle(self) -> None:
        """Stop registering while marks keep rising, so that all operations must end."""
        for caller in self._callers:
            caller.is_quiet = True
        deadline_s = time.monotonic() + SETTLE_S
        while not all(caller.is_done for caller in self._callers) and time.monotonic() < deadline_s:
            self._check_tasks()
            await asyncio.sleep(0.05)
        self._check_tasks()
