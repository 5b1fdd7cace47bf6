"""A caller at the wire level that records registrations and results across connections and daemons. It raises as soon
as a rule is broken: no acknowledged operation is lost, none ends twice, none ends too early.

In async mode a crash loses unwritten data of the daemon. The caller then behaves like the client library: it repeats
registrations without a result and drops a second result.
"""

import asyncio
import contextlib
import random
import time
from typing import Any, Final, NamedTuple

import grpc
from google.rpc import code_pb2
from purgatory_client.session.addresses import CHOOSING

from purgatory.v1 import operation_pb2, purgatory_service_pb2_grpc, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.histories.judge import Judge, ReportedResult
from tests.kit.messages import register_batch

TOPICS: Final = ("t0", "t1", "t2")
SATISFIED: Final = result_pb2.OUTCOME_SATISFIED
EXPIRED: Final = result_pb2.OUTCOME_EXPIRED
CANCELLED: Final = result_pb2.OUTCOME_CANCELLED
REFUSED: Final = result_pb2.OUTCOME_REFUSED
BATCH_MAX: Final = 40
PACE_S: Final = 0.01
RECONNECT_S: Final = 0.03
AHEAD_MAX: Final = 30
NO_ROOM: Final = {code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE}


class Broken(AssertionError):
    pass


def channel_to(address: str) -> grpc.aio.Channel:
    """A channel with a connection of its own. Of several addresses it chooses the one that serves, as clients do."""
    options = {"grpc.use_local_subchannel_pool": 1, **CHOOSING} if "," in address else {}
    return grpc.aio.insecure_channel(address, options=list(options.items()))


class Asked(NamedTuple):
    operation: operation_pb2.Operation
    required: int
    at_s: float


class PushedMarks:
    """The highest offset sent and answered, by topic."""

    def __init__(self) -> None:
        self.sent: Final = dict.fromkeys(TOPICS, 0)
        self.answered: Final = dict.fromkeys(TOPICS, 0)
        self.seen: Final = dict.fromkeys(TOPICS, 0)
        """The highest offset reported in a result."""


class WireCaller:
    """One session, over any number of connections and daemons."""

    def __init__(
        self,
        name: str,
        marks: PushedMarks,
        seed: int,
        *,
        is_sync: bool = True,
        may_refuse: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self.name: Final = name
        self.asked: Final[dict[int, Asked]] = {}
        self.outcomes: Final[dict[int, tuple[int, int]]] = {}
        """(sequence number, outcome) of each operation that has ended."""
        self.receipted = 0
        """The highest id in a receipt."""
        self.cancelled: Final[set[int]] = set()
        """Operations whose cancellation was answered."""
        self.accepted_batches = 0
        self.refused_batches = 0
        self.repeats = 0
        self.last_sequence = 0
        self.incarnation = ""
        """Incarnation of the session that `last_sequence` belongs to."""
        self._acknowledged = 0
        self._unanswered: Final[dict[int, list[int]]] = {}
        """Batches under way: the ids of each."""
        self._is_sync: Final = is_sync
        self._may_refuse: Final = may_refuse
        self._marks: Final = marks
        self._judge: Final = judge or Judge()
        self._random: Final = random.Random(seed)
        self._next_id = 1
        self.is_quiet = False
        """Whether to stop registering."""

    @property
    def is_done(self) -> bool:
        """Whether every registered operation has ended."""
        return len(self.outcomes) == len(self.asked)

    def forget(self) -> None:
        """Simulate a restart of the caller from its log: only acknowledged results are known."""
        self.last_sequence = self._acknowledged

    async def run(self, address: str) -> None:
        """Connect repeatedly until cancelled."""
        while True:
            async with channel_to(address) as channel:
                stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, EOFError):
                    await self._connection(stub.Session())
            await asyncio.sleep(RECONNECT_S)

    async def _connection(self, call: Any) -> None:  # noqa: ANN401 - grpc's own
        self._acknowledged = self.last_sequence  # logged first, as below: opening a session also acknowledges
        opening = wire.OpenSession(
            session_id=self.name, last_sequence=self.last_sequence, columns=False, incarnation=self.incarnation
        )
        await call.write(wire.SessionRequest(open=opening))
        answer = await self._read(call)
        opened = answer.opened
        self._judge.opened(self.name, opened.highest_operation_id)
        if opened.highest_operation_id < self.receipted and self._is_sync:
            raise Broken(f"{self.name}: receipted up to {self.receipted}, known up to {opened.highest_operation_id}")
        if not opened.resumed:
            self.last_sequence = self._acknowledged = 0
        elif self.incarnation not in ("", opened.incarnation):
            raise Broken(f"{self.name}: incarnation {opened.incarnation} resumes {self.incarnation}")
        self.incarnation = opened.incarnation
        self._unanswered.clear()
        waiting = [number for number in self.asked if number not in self.outcomes]
        again = [number for number in waiting if number > opened.highest_operation_id]
        for first in range(0, len(again), BATCH_MAX):
            await self._register(call, again[first : first + BATCH_MAX])
        writer = asyncio.create_task(self._write(call))
        try:
            while True:
                self._take(await self._read(call))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    @staticmethod
    async def _read(call: Any) -> wire.SessionResponse:  # noqa: ANN401 - as above
        message = await call.read()
        if message is grpc.aio.EOF:
            raise EOFError
        assert isinstance(message, wire.SessionResponse)
        return message

    async def _write(self, call: Any) -> None:  # noqa: ANN401 - as above
        while True:
            await asyncio.sleep(self._random.random() * 2 * PACE_S)
            deed = self._random.random()
            if deed < 0.5 and not self.is_quiet:
                await self._register(call, self._ask(self._random.randint(1, BATCH_MAX)))
            elif deed < 0.6:
                waiting = [number for number in self.asked if number not in self.outcomes]
                ids = self._random.sample(waiting, min(2, len(waiting)))
                await call.write(wire.SessionRequest(cancel=wire.CancelOperations(operation_ids=ids)))
            elif deed < 0.8 and self.last_sequence > self._acknowledged:
                # Recorded before writing: a write that fails may have arrived, and acknowledged results are not sent
                # again.
                self._acknowledged = self.last_sequence
                acknowledge = wire.AcknowledgeResults(sequence=self.last_sequence)
                await call.write(wire.SessionRequest(acknowledge=acknowledge))
            else:
                await call.write(wire.SessionRequest(heartbeat=wire.Heartbeat()))

    def _ask(self, count: int) -> list[int]:
        ids = list(range(self._next_id, self._next_id + count))
        self._next_id += count
        for number in ids:
            topics = tuple(self._random.sample(TOPICS, self._random.choice((1, 1, 1, 2))))
            required = max(self._marks.sent[topic] for topic in topics) + self._random.randint(-3, AHEAD_MAX)
            timeout_ms = self._random.choice((50, 400, 2_000, 600_000, 600_000))
            operation = operation_pb2.Operation(operation_id=number, timeout_ms=timeout_ms)
            for topic in topics:
                item = operation.produce.partitions.add(required_offset=max(0, required))
                item.topic_partition.topic = topic
            self.asked[number] = asked = Asked(operation, max(0, required), time.monotonic())
            self._judge.registering(self.name, number, timeout_ms, asked.at_s)
        return ids

    async def _register(self, call: Any, ids: list[int]) -> None:  # noqa: ANN401 - as above
        operations = [self.asked[number].operation for number in ids]
        self._unanswered[ids[-1]] = ids
        batch = register_batch(*operations, batch_id=ids[-1])
        await call.write(wire.SessionRequest(register=batch))

    # Received messages.

    def _take(self, message: wire.SessionResponse) -> None:
        if message.HasField("receipt"):
            self._take_receipt(message.receipt)
        elif message.HasField("cancelled"):
            self.cancelled.update(message.cancelled.cancelled_operation_ids)
        elif message.HasField("results"):
            for place, row in enumerate(message.results.rows.results):
                self._take_result(message.results.first_sequence + place, row)

    def _take_receipt(self, receipt: wire.Receipt) -> None:
        """The operations of a refused batch count as never registered: a result for one of them would break the
        rule.
        """
        ids = self._unanswered.pop(receipt.batch_id)
        if not receipt.HasField("batch_refusal"):
            self.accepted_batches += 1
            self.receipted = max(self.receipted, receipt.highest_operation_id)
            self._judge.receipt(self.name, receipt.highest_operation_id)
            return
        if not (self._may_refuse and receipt.batch_refusal.code in NO_ROOM):
            raise Broken(f"{self.name}: a batch was refused: {receipt.batch_refusal.message}")
        self.refused_batches += 1
        self._judge.refused(self.name, ids)
        for number in ids:
            del self.asked[number]

    def _take_result(self, sequence: int, row: result_pb2.Result) -> None:
        number, outcome = row.operation_id, int(row.outcome)
        reported = ReportedResult(number, outcome, row.waited_ms, row.SerializeToString(deterministic=True))
        self._judge.reported(self.name, self.incarnation, sequence, reported, time.monotonic())
        if number not in self.asked:
            raise Broken(f"{self.name}: a result of {number}, which was never asked")
        if sequence > self.last_sequence + 1:
            raise Broken(f"{self.name}: result {sequence} came after {self.last_sequence}")
        self.last_sequence = max(self.last_sequence, sequence)
        before = self.outcomes.get(number)
        if before is not None:
            if before != (sequence, outcome) and self._is_sync:
                raise Broken(f"{self.name}: {number} ended as {before}, and again as {(sequence, outcome)}")
            self.repeats += 1
            return
        self.outcomes[number] = (sequence, outcome)
        asked = self.asked[number]
        if outcome == SATISFIED:
            for partition in row.partitions:
                topic = partition.topic_partition.topic
                if not asked.required <= partition.reached_offset <= self._marks.sent[topic]:
                    raise Broken(f"{self.name}: {number} was satisfied at {partition.reached_offset}: {asked}")
                self._marks.seen[topic] = max(self._marks.seen[topic], partition.reached_offset)
        elif outcome == EXPIRED:
            if time.monotonic() - asked.at_s < asked.operation.timeout_ms / 1_000:
                raise Broken(f"{self.name}: {number} expired after {time.monotonic() - asked.at_s} s: {asked}")
        elif outcome not in {CANCELLED, REFUSED}:
            raise Broken(f"{self.name}: {number} ended as {outcome}")

    def check_end(self) -> None:
        """At the end all operations have ended; in sync mode, cancelled ones have the outcome cancelled, and no
        number is missing.
        """
        missing = [number for number in self.asked if number not in self.outcomes]
        if missing:
            raise Broken(f"{self.name}: {len(missing)} never ended, such as {missing[0]}: {self.asked[missing[0]]}")
        if not self._is_sync:
            return
        for number in self.cancelled:
            if self.outcomes[number][1] != CANCELLED:
                raise Broken(f"{self.name}: {number} was cancelled, and ended as {self.outcomes[number]}")
        sequences = sorted(sequence for sequence, _ in self.outcomes.values())
        if sequences != list(range(1, len(sequences) + 1)):
            raise Broken(f"{self.name}: the sequence numbers are not 1 to {len(sequences)}")
