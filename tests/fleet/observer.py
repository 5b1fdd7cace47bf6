"""Callers of a pair, one that signals keys and one that reads marks and the numbers of signals, for the judge."""

import random
from typing import Final

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub as Stub
from tests.crash.crash_run import CALL_S
from tests.crash.wire_caller import TOPICS
from tests.histories.judge import Judge
from tests.kit.messages import advance_request, key_signalled

KEYS: Final = ("k0", "k1")
NEVER_REACHED: Final = 2**40


class Observer:
    """Makes one call at a time of each kind. gRPC's errors are raised."""

    def __init__(self, judge: Judge, rng: random.Random) -> None:
        self._judge: Final = judge
        self._random: Final = rng
        self.reads = 0

    async def signal_once(self, stub: Stub) -> None:
        """Signal a key. Never repeated: it could count twice."""
        judge, key, count = self._judge, self._random.choice(KEYS), self._random.randint(1, 3)
        before = judge.at_least(key)
        judge.sending(key, judge.sent(key) + count)
        event = key_signalled(key, count=count)
        await stub.Advance(advance_request(event), timeout=CALL_S)
        judge.acknowledged(key, before + count)

    async def read_once(self, stub: Stub) -> None:
        """Read a mark, or how often a key was signalled."""
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
