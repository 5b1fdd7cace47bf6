"""The load of a world of real daemons: callers with sessions, and one caller each that pushes marks, signals keys, and
reads both. All of them outlive the daemons.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub as Stub
from tests.histories.judge import Broken, Judge
from tests.histories.tables import Seen
from tests.histories.wire_caller import KEYS, TOPICS, WireCaller, channel_to, expected_outcome
from tests.kit.messages import advance_request, high_watermark, key_signalled

CALLERS: Final = 3
PACE_S: Final = 0.01
CALL_S: Final = 5.0
PATIENCE_S: Final = 120.0
"""For events that may have to wait until brokers have elected a leader."""
NEVER_REACHED: Final = 2**40


class WireLoad:
    def __init__(self, judge: Judge, seed: int, *, callers: int = CALLERS, may_refuse: bool = False) -> None:
        judge.rules.append(expected_outcome)
        self.callers: Final = [
            WireCaller(f"caller-{place}", judge, seed + place, may_refuse=may_refuse) for place in range(callers)
        ]
        self.reads = 0
        self._judge: Final = judge
        self._random: Final = random.Random(seed)
        self._tasks: Final[dict[WireCaller | str, asyncio.Task[None]]] = {}
        """The tasks of the callers, and others by name."""
        self._address = ""

    @property
    def operations(self) -> int:
        return sum(len(caller.asked) for caller in self.callers)

    @property
    def repeats(self) -> int:
        return sum(caller.repeats for caller in self.callers)

    def note_pairs(self, seen: Seen, *faults: str) -> None:
        """Each wait has met these faults."""
        for caller in self.callers:
            caller.note_pairs(seen, *faults)

    def start(self, address: str) -> None:
        """Begin to call whichever daemon serves this address, or one of these addresses."""
        self._address = address
        for once in (self._advance_once, self._signal_once, self._read_once):
            self._tasks[once.__name__] = asyncio.create_task(self._repeat(once))
        self._tasks.update((caller, asyncio.create_task(caller.run(address))) for caller in self.callers)

    def check(self) -> None:
        """Raise the error of a task that has failed, or `Broken` with the complaints of the judge."""
        for task in self._tasks.values():
            if task.done():
                task.result()
        self._judge.check()

    async def restart_caller(self) -> None:
        """Restart one of the callers; it has lost what it did not acknowledge."""
        caller = self._random.choice(self.callers)
        self._tasks[caller].cancel()
        await asyncio.gather(self._tasks[caller], return_exceptions=True)
        caller.forget()
        self._tasks[caller] = asyncio.create_task(caller.run(self._address))

    async def until_all_rise(self, count: Callable[[WireCaller], int], check: Callable[[], object], what: str) -> None:
        """Wait until this count has risen for each caller, or until `check`, which may raise, returns a true value.
        Raises `Broken`.
        """
        before = {caller: count(caller) for caller in self.callers}
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(count(caller) > before[caller] for caller in before) and not check():
            if time.monotonic() > deadline_s:
                raise Broken(f"not within {PATIENCE_S:.0f} s: all callers are {what}")
            await asyncio.sleep(0.02)

    async def settle(self, check: Callable[[], None]) -> None:
        """Stop registering while marks keep rising, so that all operations must end."""
        for caller in self.callers:
            caller.is_quiet = True
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(caller.is_done for caller in self.callers) and time.monotonic() < deadline_s:
            check()
            await asyncio.sleep(0.05)
        check()

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _repeat(self, once: Callable[[Stub], Awaitable[None]]) -> None:
        """Make calls until cancelled, over a new connection after each error."""
        while True:
            async with channel_to(self._address) as channel:
                stub = Stub(channel)
                try:
                    while True:
                        await once(stub)
                        await asyncio.sleep(PACE_S)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(PACE_S)

    async def _advance_once(self, stub: Stub) -> None:
        judge, topic = self._judge, self._random.choice(TOPICS)
        offset = judge.sent(topic) + self._random.randint(0, 10)
        judge.sending(topic, offset)
        await stub.Advance(advance_request(high_watermark(topic, offset)), timeout=CALL_S)
        judge.acknowledged(topic, offset, time.monotonic())

    async def _signal_once(self, stub: Stub) -> None:
        """Signal a key. Never repeated: it could count twice."""
        judge, key, count = self._judge, self._random.choice(KEYS), self._random.randint(1, 3)
        before = judge.at_least(key)
        judge.sending(key, judge.sent(key) + count)
        await stub.Advance(advance_request(key_signalled(key, count=count)), timeout=CALL_S)
        judge.acknowledged(key, before + count, time.monotonic())

    async def _read_once(self, stub: Stub) -> None:
        judge, name = self._judge, self._random.choice((*TOPICS, *KEYS))
        at_least = judge.at_least(name)
        if not at_least:
            return
        if name in TOPICS:
            partition = operation_pb2.TopicPartition(topic=name)
            answer = await stub.GetPartition(wire.GetPartitionRequest(topic_partition=partition), timeout=CALL_S)
            value = answer.partition.high_watermark
        else:
            # A wait that expires at once reports the count.
            keys = [operation_pb2.SignalKey(key=name, required_count=NEVER_REACHED)]
            operation = operation_pb2.Operation(timeout_ms=0, signal=operation_pb2.Signal(keys=keys))
            ended = await stub.Wait(wire.WaitRequest(operation=operation), timeout=CALL_S)
            value = ended.result.partitions[0].reached_offset
        judge.read(name, value, at_least, is_durable=name in KEYS)
        self.reads += 1
