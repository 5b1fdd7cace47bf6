"""A caller that speaks the protocol itself: one session, over any number of connections and daemons.

It draws what it does and tells a judge what it sees. After a crash that lost data it behaves like the client library:
it registers again what has no result, and drops a second result.
"""

import asyncio
import contextlib
import itertools
import random
import time
from typing import Any, Final

import grpc
from google.rpc import code_pb2
from purgatory_client.session.addresses import CHOOSING

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc, result_pb2
from tests.engine import plain
from tests.histories.judge import Judge, Registration, ReportedResult
from tests.histories.tables import Seen, features_of
from tests.scripts.messages import Names, ended_of, operation_columns, operation_rows

TOPICS: Final = ("t0", "t1", "t2")
KEYS: Final = ("k0", "k1")
NEVER: Final = "never"
"""A key that is never signalled."""
NEVER_MS: Final = 600_000
"""A longer silence than any key here keeps."""
NAMES: Final = Names("")
BATCH_MAX: Final = 40
PACE_S: Final = 0.01
RECONNECT_S: Final = 0.03
AHEAD_MAX: Final = 30
WIRE_FEATURES: Final = (
    "produce", "signal", "composite", "failure arm", "heartbeat", "cancelled", "zero timeout", "many items",
)  # fmt: skip
"""Features that these callers draw, for the tables of their worlds."""
NO_ROOM: Final = {code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE}
CAUSED: Final = {
    result_pb2.OUTCOME_SATISFIED,
    result_pb2.OUTCOME_EXPIRED,
    result_pb2.OUTCOME_CANCELLED,
    result_pb2.OUTCOME_REFUSED,
}


def expected_outcome(_: Registration, result: ReportedResult) -> str:
    """A rule for worlds with these callers."""
    return "" if result.outcome in CAUSED else "nothing here causes this outcome"


def channel_to(address: str) -> grpc.aio.Channel:
    """A channel with a connection of its own. Of several addresses it chooses the one that serves, as clients do."""
    options = {"grpc.use_local_subchannel_pool": 1, **CHOOSING} if "," in address else {}
    return grpc.aio.insecure_channel(address, options=list(options.items()))


class WireCaller:
    """Half of the callers, by seed, send and receive columns instead of rows."""

    def __init__(self, name: str, judge: Judge, seed: int, *, may_refuse: bool = False) -> None:
        self.name: Final = name
        self.asked: Final[dict[int, plain.Operation]] = {}
        self.outcomes: Final[dict[int, int]] = {}
        """The outcome of each operation that has ended."""
        self.accepted_batches = 0
        self.refused_batches = 0
        self.repeats = 0
        self.is_quiet = False
        self._judge: Final = judge
        self._may_refuse: Final = may_refuse
        """Whether batches may be refused for want of space."""
        self._random: Final = random.Random(seed)
        self.as_columns: Final = bool(seed % 2)
        self._next_id = 1
        self._incarnation = ""
        """Incarnation of the session that the sequence numbers belong to."""
        self._last_sequence = 0
        self._acknowledged = 0
        self._unanswered: Final[dict[int, list[int]]] = {}
        """Batches under way: the ids of each."""

    @property
    def is_done(self) -> bool:
        return len(self.outcomes) == len(self.asked)

    def note_pairs(self, seen: Seen, *faults: str) -> None:
        """Each wait has met these faults."""
        path = "columns" if self.as_columns else "rows"
        for number, operation in self.asked.items():
            is_cancelled = self.outcomes.get(number) == result_pb2.OUTCOME_CANCELLED
            seen.note([*features_of(operation), *["cancelled"] * is_cancelled], path, *faults)

    def forget(self) -> None:
        """Simulate a restart of the caller from its log: only acknowledged results are known."""
        self._last_sequence = self._acknowledged

    async def run(self, address: str) -> None:
        while True:
            async with channel_to(address) as channel:
                stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, EOFError):
                    await self._connection(stub.Session())
            await asyncio.sleep(RECONNECT_S)

    async def _connection(self, call: Any) -> None:  # noqa: ANN401 - grpc's own
        self._acknowledged = self._last_sequence  # logged first, as below: opening a session also acknowledges
        opening = wire.OpenSession(
            session_id=self.name, last_sequence=self._last_sequence, columns=self.as_columns,
            incarnation=self._incarnation,
        )  # fmt: skip
        await call.write(wire.SessionRequest(open=opening))
        opened = (await self._read(call)).opened
        if not opened.resumed:
            self._last_sequence = self._acknowledged = 0
        elif self._incarnation not in {"", opened.incarnation}:
            self._judge.complain(self.name, f"incarnation {opened.incarnation} resumes {self._incarnation}")
        self._judge.opened(self.name, opened.highest_operation_id, self._last_sequence)
        self._incarnation = opened.incarnation
        self._unanswered.clear()
        again = [number for number in self._waiting() if number > opened.highest_operation_id]
        for _, of_one_kind in itertools.groupby(again, lambda number: self.asked[number].kind):
            ids = list(of_one_kind)
            for first in range(0, len(ids), BATCH_MAX):
                await self._register(call, ids[first : first + BATCH_MAX])
        writer = asyncio.create_task(self._write(call))
        try:
            while True:
                self._receive(await self._read(call))
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

    def _waiting(self) -> list[int]:
        return [number for number in self.asked if number not in self.outcomes]

    # Sent messages.

    async def _write(self, call: Any) -> None:  # noqa: ANN401 - as above
        while True:
            await asyncio.sleep(self._random.random() * 2 * PACE_S)
            deed = self._random.random()
            if deed < 0.5 and not self.is_quiet:
                await self._register(call, self._ask(self._random.randint(1, BATCH_MAX)))
            elif deed < 0.6:
                waiting = self._waiting()
                ids = self._random.sample(waiting, min(2, len(waiting)))
                await call.write(wire.SessionRequest(cancel=wire.CancelOperations(operation_ids=ids)))
            elif deed < 0.8 and self._last_sequence > self._acknowledged:
                # Recorded before writing: a write that fails may have arrived, and acknowledged results are not sent
                # again.
                self._acknowledged = self._last_sequence
                acknowledge = wire.AcknowledgeResults(sequence=self._last_sequence)
                await call.write(wire.SessionRequest(acknowledge=acknowledge))
            else:
                await call.write(wire.SessionRequest(heartbeat=wire.Heartbeat()))

    def _ask(self, count: int) -> list[int]:
        """Waits of one kind; their ids."""
        kind = self._random.choice((plain.PRODUCE, plain.PRODUCE, plain.SIGNAL, plain.COMPOSITE))
        ids = list(range(self._next_id, self._next_id + count))
        self._next_id += count
        for number in ids:
            operation = self._operation(kind, number)
            needed = operation.items[: len(operation.items) - operation.unless_count]
            needs = [(item.name[0], item.offset) for item in needed]
            self.asked[number] = operation
            self._judge.registering(self.name, number, operation.timeout_ms, time.monotonic(), needs=needs)
        return ids

    def _operation(self, kind: int, number: int) -> plain.Operation:
        chance, items = self._random, list[plain.Item]()
        timeout_ms = chance.choice((0, 50, 400, 2_000, 600_000, 600_000, 600_000))
        if kind != plain.SIGNAL:
            topics = chance.sample(TOPICS, chance.choice((1, 1, 1, 2)) if kind == plain.PRODUCE else len(TOPICS))
            ahead = chance.randint(-3, AHEAD_MAX)
            required = max(0, ahead + max(self._judge.sent(topic) for topic in topics))
            items += [plain.Item((topic, 0), required) for topic in topics]
        if kind == plain.PRODUCE:
            return plain.Operation(kind, number, timeout_ms, tuple(items))
        # Not from the number sent: signals that were not answered are not sent again.
        keys = chance.sample(KEYS, chance.choice((1, 2)))
        items += [plain.Item((key, -1), self._judge.at_least(key) + chance.randint(1, AHEAD_MAX)) for key in keys]
        if kind == plain.SIGNAL:
            heartbeat_ms = chance.choice((-1, NEVER_MS))
            return plain.Operation(kind, number, timeout_ms, tuple(items), heartbeat_timeout_ms=heartbeat_ms)
        has_failure_arm = chance.random() < 0.5
        items += [plain.Item((NEVER, -1), 1)] * has_failure_arm
        return plain.Operation(kind, number, timeout_ms, tuple(items), unless_count=int(has_failure_arm))

    async def _register(self, call: Any, ids: list[int]) -> None:  # noqa: ANN401 - as above
        """Register operations of one kind."""
        self._unanswered[ids[-1]] = ids
        operations = [self.asked[number] for number in ids]
        batch = wire.RegisterBatch(batch_id=ids[-1])
        if self.as_columns:
            batch.columns.CopyFrom(operation_columns(operations, NAMES))
        else:
            batch.rows.CopyFrom(operation_rows(operations, NAMES))
        await call.write(wire.SessionRequest(register=batch))

    # Received messages.

    def _receive(self, message: wire.SessionResponse) -> None:
        if message.HasField("receipt"):
            self._receive_receipt(message.receipt)
        elif message.HasField("cancelled"):
            self._judge.cancelled(self.name, message.cancelled.cancelled_operation_ids)
        elif message.HasField("results"):
            for sequence, row in enumerate(ended_of(message.results, NAMES), message.results.first_sequence):
                self._receive_result(sequence, row)

    def _receive_receipt(self, receipt: wire.Receipt) -> None:
        """The operations of a refused batch count as never registered."""
        ids = self._unanswered.pop(receipt.batch_id)
        if not receipt.HasField("batch_refusal"):
            self.accepted_batches += 1
            self._judge.receipt(self.name, receipt.highest_operation_id, time.monotonic())
            return
        self.refused_batches += 1
        self._judge.refused(self.name, ids)
        if not (self._may_refuse and receipt.batch_refusal.code in NO_ROOM):
            self._judge.complain(self.name, f"a batch was refused: {receipt.batch_refusal.message}")
        for number in ids:
            del self.asked[number]

    def _receive_result(self, sequence: int, row: plain.Ended) -> None:
        reached = [(item.name[0], item.reached) for item in row.items]
        result = ReportedResult(row.operation_id, row.outcome, row.waited_ms, str(row), reached)
        self._judge.reported(self.name, self._incarnation, sequence, result, time.monotonic())
        self._last_sequence = max(self._last_sequence, sequence)
        if row.operation_id in self.outcomes:
            self.repeats += 1
        elif row.operation_id in self.asked:
            self.outcomes[row.operation_id] = row.outcome
