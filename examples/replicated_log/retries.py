"""`--lose-answers`: producers whose requests and answers get lost, and the effect of their retries on a log.

A producer that hears nothing in time sends again. If only the answer was lost, the record is then in the log twice; if
the request was lost, it is behind records that were sent after it. Three kinds of producer send the same records by key
to three partitions, over links with the same faults. A consumer counts what arrived twice or out of order:

    sequence numbers   in flight   twice   out of order for its key
    no                 64          some    some
    no                 1           some    none
    yes                64          none    none

With a producer id and sequence numbers, as in Kafka's idempotent producer, the leader acknowledges a record that it has
without appending it, and refuses one whose predecessor is missing.
"""

import asyncio
import zlib
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

import grpc.aio
from purgatory_client import AsyncClient

from examples.replicated_log.clients import APPEND_TIMEOUT_S, IN_FLIGHT_MAX, NotAcknowledged, consume
from examples.replicated_log.daemon_link import EventQueue, WaitLedger
from examples.replicated_log.follower import follow
from examples.replicated_log.leader import EPOCH, OUT_OF_ORDER_SEQUENCE, Leader
from examples.replicated_log.log_file import LogFile
from examples.replicated_log.membership import Membership
from examples.replicated_log.proof import Check
from examples.replicated_log.wire import Message, connect, open_stream

LEADER, FOLLOWER = 1, 2
PARTITIONS: Final = 3
KEYS: Final = 7
RECORDS_MAX: Final = 600
RETRY_S: Final = 0.25
"""A producer sends a record again that was not acknowledged after this time."""
FAULTS: Final = {2: "request lost", 7: "answer lost", 12: "answer late"}
FAULTS_EVERY: Final = 16
"""Faults by sequence number, modulo `FAULTS_EVERY`: each record meets its own when it is sent for the first time."""


class Producer(NamedTuple):
    text: str
    in_flight_max: int
    is_idempotent: bool


PRODUCERS: Final = (
    Producer(f"no sequence numbers, {IN_FLIGHT_MAX} in flight", IN_FLIGHT_MAX, False),
    Producer("no sequence numbers, 1 in flight", 1, False),
    Producer(f"sequence numbers, {IN_FLIGHT_MAX} in flight", IN_FLIGHT_MAX, True),
)


class LossyStream:
    """A stream of appends that loses requests and answers, as a connection that breaks does."""

    def __init__(self, stream: grpc.aio.StreamStreamCall[Message, Message]) -> None:
        self._stream: Final = stream
        self._tried: set[int] = set()
        self._answered: set[int] = set()
        self._late: dict[int, Message] = {}
        self._ready: deque[Message] = deque()

    async def write(self, message: Message) -> None:
        sequence = message.fields["sequence"]
        is_lost = sequence not in self._tried and _fault(sequence) == "request lost"
        self._tried.add(sequence)
        if not is_lost:
            await self._stream.write(message)

    async def close(self) -> None:
        await self._stream.done_writing()

    async def read(self) -> Message | None:
        """The next answer, or None when the leader has given all of them."""
        while not self._ready:
            answer = await self._stream.read()
            if not isinstance(answer, Message):
                return None
            sequence = answer.fields["sequence"]
            is_first = not answer.fields["error"] and sequence not in self._answered
            if not answer.fields["error"]:
                self._answered.add(sequence)
            if is_first and _fault(sequence) == "answer late":
                self._late[sequence] = answer  # held back until that of the next attempt
            elif not (is_first and _fault(sequence) == "answer lost"):
                self._ready.extend([*filter(None, [self._late.pop(sequence, None)]), answer])
        return self._ready.popleft()


def _fault(sequence: int) -> str:
    return FAULTS.get(sequence % FAULTS_EVERY, "")


async def produce_with_retries(stream: LossyStream, records: list[bytes], producer: Producer) -> Counter[str]:
    """Send the records in order until all are acknowledged, and count what happened on the way."""
    counts: Counter[str] = Counter()
    sent_at: dict[int, float] = {}  # of records without an acknowledgement, the oldest attempt first
    answered, now_s = asyncio.Event(), asyncio.get_running_loop().time

    async def send(sequence: int) -> None:
        sent_at.pop(sequence, None)
        sent_at[sequence] = now_s()
        fields = {"sequence": sequence, "timeout_s": APPEND_TIMEOUT_S}
        identity = {"producer_id": 1} if producer.is_idempotent else {}
        await stream.write(Message(fields | identity, records[sequence]))

    async def read() -> None:
        while answer := await stream.read():
            if answer.fields["error"] == OUT_OF_ORDER_SEQUENCE:
                counts["refused"] += 1  # it is sent again when its time is over, after its predecessor
            elif answer.fields["error"]:
                raise NotAcknowledged(str(answer.fields))
            elif sent_at.pop(answer.fields["sequence"], None) is not None:
                answered.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        upcoming = iter(range(len(records)))
        while True:
            while len(sent_at) < producer.in_flight_max and (sequence := next(upcoming, None)) is not None:
                await send(sequence)
            if not sent_at:
                break
            answered.clear()
            try:
                async with asyncio.timeout_at(next(iter(sent_at.values())) + RETRY_S):
                    await answered.wait()
            except TimeoutError:
                for sequence in [each for each, at in sent_at.items() if at + RETRY_S <= now_s()]:
                    if sequence in sent_at:  # not acknowledged since
                        counts["sent again"] += 1
                        await send(sequence)
        await stream.close()
    return counts


class Retries(NamedTuple):
    """State that all partitions share. `lines` are dealt to keys in turn, and a key decides the partition."""

    client: AsyncClient
    queue: EventQueue
    ledger: WaitLedger
    folder: Path
    lines: list[bytes]

    async def run(self) -> list[Check]:
        """Let each kind of producer send the lines, and check what a consumer reads."""
        sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        for index, line in enumerate(self.lines[:RECORDS_MAX]):
            key = b"customer-%d" % (index % KEYS)
            sent[zlib.crc32(key) % PARTITIONS].append(b"%b %d %b" % (key, index, line))

        async def try_out(producer: Producer) -> Check:
            counts: Counter[str] = Counter()
            name = f"retries-{PRODUCERS.index(producer)}"
            carried = [self._carry(f"{name}-{index}", producer, part, counts) for index, part in enumerate(sent)]
            return check_order(producer, await asyncio.gather(*carried), sent, counts)

        return await asyncio.gather(*map(try_out, PRODUCERS))

    async def _carry(
        self, partition: str, producer: Producer, records: list[bytes], counts: Counter[str]
    ) -> list[bytes]:
        """Send records to a partition of its own, with one follower; returns what a consumer reads from it."""
        async with AsyncExitStack() as stack:
            log, copy = (
                stack.enter_context(closing(LogFile(self.folder / f"{partition}-{replica}.log")))
                for replica in (LEADER, FOLLOWER)
            )
            membership = Membership(self.client, self.queue, partition, LEADER, [FOLLOWER], EPOCH)
            leader = Leader(self.client, self.queue, membership, partition, log, self.ledger)
            port = await leader.start()
            stack.push_async_callback(leader.stop)
            stack.push_async_callback(_cancel, asyncio.create_task(follow(port, copy, FOLLOWER)))
            async with connect(port) as channel:
                counts += await produce_with_retries(LossyStream(open_stream(channel, "append")), records, producer)
            counts["recognised"] += leader.duplicates
            return [record.payload for record in await consume(port, log.log_end_offset)]


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def check_order(
    producer: Producer, consumed: Iterable[list[bytes]], sent: Iterable[list[bytes]], counts: Counter[str]
) -> Check:
    """Every record arrived; in the order of its key, and once, as far as this kind of producer promises that."""
    arrived = [record for records in consumed for record in records]
    first_copies = list(dict.fromkeys(arrived))
    twice, disordered, highest = len(arrived) - len(first_copies), 0, dict[bytes, int]()
    for record in first_copies:
        key, index, _ = record.split(b" ", 2)
        disordered += int(index) < highest.get(key, -1)
        highest[key] = max(highest.get(key, -1), int(index))
    holds = set(first_copies) == {record for records in sent for record in records}
    holds = holds and not (producer.is_idempotent and twice)
    holds = holds and not (disordered and (producer.is_idempotent or producer.in_flight_max == 1))
    text = f"{producer.text}: {len(first_copies)} records, {twice} twice, {disordered} out of order for their key"
    return Check(
        holds,
        f"{text}; {counts['sent again']} sent again, {counts['recognised']} recognised, {counts['refused']} refused",
    )
