"""The load of the history check: records and commits of groups, with each writer in a thread, and a record of each
writer's actions.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self

import aiokafka.errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import DeleteGroupsRequest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.histories.worlds.kafka.judge import GONE, Mark, RecordedStep

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
"""A topic written by transactions."""
GROWING: Final = "growing"
"""A topic that gains partitions."""
VOLATILE: Final = "volatile"
"""A topic that is deleted and recreated."""
PARTITIONS: Final = {ORDERS: 4, PAYMENTS: 2, GROWING: 1, VOLATILE: 2}
TOPICS_OF: Final = {
    "group0": (ORDERS, VOLATILE),
    "group1": (ORDERS, VOLATILE),
    "group2": (ORDERS, GROWING),
    "group3": (ORDERS, PAYMENTS),
    "group4": (PAYMENTS, VOLATILE),
    "group5": (ORDERS, GROWING),
}
"""Groups that commit without members."""
LIVE: Final = "live"
"""A group whose consumers join and leave."""
LIVE_TOPICS: Final = (ORDERS, PAYMENTS)
QUIET: Final = {"log_level": 0, "socket.timeout.ms": 4000, "topic.metadata.refresh.interval.ms": 2000}
FLUSH_S: Final = 60.0
UNCERTAIN: Final = (KafkaException, aiokafka.errors.KafkaError, OSError, TimeoutError, AssertionError)
"""Errors of a change that may have happened nevertheless."""
Work = Callable[[random.Random], None]


def topic_mark(topic: str, number: int) -> Mark:
    return f"kafka/{topic}", number


def group_mark(group: str, topic: str, number: int) -> Mark:
    return f"kafka/{group}/{topic}", number


class Record:
    """All changes to a cluster, shared by threads. `present`: each mark's current value, GONE after its removal.

    `partitions`: partition counts of topics. `incarnations`: how often each topic was created. `tally`: acknowledged
    and uncertain changes, by kind.
    """

    def __init__(self) -> None:
        self.changes: Final[list[RecordedStep]] = []
        self.present: Final[dict[Mark, int]] = {}
        self.partitions: Final = dict(PARTITIONS)
        self.incarnations: Final = Counter(PARTITIONS.keys())
        self.tally: Final[Counter[str]] = Counter()
        self.volatile: Final = threading.Lock()
        """Held while the volatile topic is recreated, and by one thread at a time that uses it."""
        for topic, count in PARTITIONS.items():
            for number in range(count):
                self.step(topic_mark(topic, number), 0, 0.0, 0.0)

    def step(self, mark: Mark, offset: int, begun_s: float, acknowledged_s: float | None) -> None:
        self.changes.append(RecordedStep(mark, offset, begun_s, acknowledged_s))
        if acknowledged_s is not None:
            self.present[mark] = offset

    def change(self, what: str, offsets: Mapping[Mark, int], change: Callable[[], object]) -> None:
        """Make a change. If it fails, it is unknown whether it took effect."""
        begun_s, acknowledged_s = time.monotonic(), None
        try:
            change()
            acknowledged_s = time.monotonic()
        except UNCERTAIN:
            pass
        self.tally[what if acknowledged_s is not None else f"{what}, unknown"] += 1
        for mark, offset in offsets.items():
            self.step(mark, offset, begun_s, acknowledged_s)

    @contextmanager
    def using(self, *topics: str) -> Iterator[bool]:
        """Use these topics in the block; yields whether that is possible now."""
        needs_lock = VOLATILE in topics
        is_free = not needs_lock or self.volatile.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if needs_lock and is_free:
                self.volatile.release()

    def present_of(self, mark: Mark) -> int:
        """The current value; 0 if there is none."""
        return max(0, self.present.get(mark, GONE))


class Load:
    """Writes from when it is entered. Groups commit only existing offsets, so only their commits move their marks.

    On exit, producers stop first. `run_dry` stops only those, and the consumers read on.
    """

    def __init__(self, bootstrap: str, seed: int, record: Record) -> None:
        self.record: Final = record
        self._bootstrap: Final = bootstrap
        self._seed: Final = seed * 100
        self._stopping: Final = threading.Event()
        self._is_dry: Final = threading.Event()
        self._writes: Final[list[Work]] = [
            partial(self._produce, (ORDERS, GROWING), 0.02),
            partial(self._produce, (VOLATILE,), 0.12),
            self._transact,
        ]
        self._reads: Final[list[Work]] = [
            *(partial(self._commit, group, topics) for group, topics in TOPICS_OF.items()),
            self._live,
            self._live,
        ]
        self._threads: Final = ThreadPoolExecutor(len(self._writes) + len(self._reads))
        self._running: Final[list[Future[None]]] = []

    def __enter__(self) -> Self:
        for number, work in enumerate([*self._writes, *self._reads]):
            self._running.append(self._threads.submit(work, random.Random(self._seed + number)))
        return self

    def __exit__(self, *_: object) -> None:
        self.run_dry()
        self._stopping.set()
        self._threads.shutdown()
        for one in self._running:
            one.result()

    def run_dry(self) -> None:
        """Stop producing, with all transactions ended."""
        self._is_dry.set()
        wait(self._running[: len(self._writes)])

    def _producer(self, settings: dict[str, Any]) -> Producer:
        return Producer({"bootstrap.servers": self._bootstrap, **settings, **QUIET})

    def _consumer(self, group: str, **settings: object) -> Consumer:
        return Consumer({"bootstrap.servers": self._bootstrap, "group.id": group, **settings, **QUIET})

    def _send(self, producer: Producer, topic: str, number: int) -> None:
        delivered = partial(self._delivered, topic_mark(topic, number), time.monotonic())
        value = str(self.record.incarnations[topic]).encode()
        try:
            producer.produce(topic, value, partition=number, on_delivery=delivered)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:  # it does not know a new partition yet
                raise

    def _delivered(self, mark: Mark, begun_s: float, error: object, message: Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            self.record.tally["records, unknown"] += 1
        else:
            self.record.step(mark, offset + 1, begun_s, time.monotonic())

    def _produce(self, topics: tuple[str, ...], pause_s: float, chance: random.Random) -> None:
        # Without idempotence for the topic that is recreated, because its sequence numbers would not survive that.
        settings = {"acks": "all", "enable.idempotence": VOLATILE not in topics, "linger.ms": 0}
        record = self.record
        producer, incarnation = self._producer(settings), 1
        while not self._is_dry.wait(pause_s):
            topic = chance.choice(topics)
            with record.using(topic) as is_free:
                if not is_free:
                    continue
                if incarnation != record.incarnations[topic]:  # the old producer finds the new topic late
                    producer, incarnation = self._producer(settings), record.incarnations[topic]
                for _ in range(chance.randint(0, 6)):
                    self._send(producer, topic, chance.randrange(record.partitions[topic]))
                if topic == VOLATILE:  # all are acknowledged before another thread may recreate it
                    producer.flush(FLUSH_S)
            producer.poll(0)
        producer.flush(FLUSH_S)

    def _transact(self, chance: random.Random) -> None:
        """Run transactions that are committed, aborted, or left open by a killed producer."""
        settings = {"transactional.id": "history", "transaction.timeout.ms": 60_000, "linger.ms": 0}
        producer: Producer | None = None
        while producer is None or not self._is_dry.wait(0.05):
            try:
                if producer is None:
                    producer = self._producer(settings)
                    producer.init_transactions(30)  # aborts its predecessor's open transaction
                    continue
                producer.begin_transaction()
                for _ in range(chance.randint(1, 6)):
                    self._send(producer, PAYMENTS, chance.randrange(self.record.partitions[PAYMENTS]))
                producer.flush(FLUSH_S)
                self._is_dry.wait(chance.choice((0.02, 0.05, 0.1, 2.5)))
                dice = chance.random()
                if dice < 0.03:
                    producer = None
                    self.record.tally["transactions left open"] += 1
                elif dice < 0.3:
                    producer.abort_transaction(30)
                    self.record.tally["transactions aborted"] += 1
                else:
                    producer.commit_transaction(30)
                    self.record.tally["transactions committed"] += 1
            except KafkaException:
                producer = None
                self.record.tally["transactions, unknown"] += 1
                time.sleep(0.5)

    def _commit(self, group: str, topics: tuple[str, ...], chance: random.Random) -> None:
        """Commit offsets of a group forward and, rarely, back, and delete it at times."""
        record, consumer = self.record, self._consumer(group)
        try:
            while not self._stopping.wait(chance.uniform(0.01, 0.06)):
                if chance.random() < 0.003:
                    self._delete_group(group, topics)
                    continue
                topic = chance.choice(topics)
                with record.using(topic) as is_free:
                    if is_free:
                        self._commit_on(group, topic, consumer, chance)
        finally:
            consumer.close()

    def _commit_on(self, group: str, topic: str, consumer: Consumer, chance: random.Random) -> None:
        record, number = self.record, chance.randrange(self.record.partitions[topic])
        mark, end = group_mark(group, topic, number), record.present_of(topic_mark(topic, number))
        step = -chance.randint(1, 80) if chance.random() < 0.023 else chance.randint(0, 20)
        offset = min(end, max(0, record.present_of(mark) + step))
        committing = partial(_committed, consumer, [TopicPartition(topic, number, offset)])
        record.change("offsets committed", {mark: offset}, committing)

    def _delete_group(self, group: str, topics: tuple[str, ...]) -> None:
        with self.record.using(*topics) as is_free:
            if is_free:
                gone = {mark: GONE for mark in list(self.record.present) if mark[0].startswith(f"kafka/{group}/")}
                self.record.change("groups deleted", gone, lambda: asyncio.run(delete_group(self._bootstrap, group)))

    def _live(self, chance: random.Random) -> None:
        """Run a member of a group repeatedly, for some seconds each time."""
        own = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6000}
        while not self._stopping.wait(chance.uniform(0.0, 2.0)):
            consumer = self._consumer(LIVE, **own, **{"heartbeat.interval.ms": 500})
            try:
                consumer.subscribe(list(LIVE_TOPICS))
                until_s = time.monotonic() + chance.uniform(3.0, 9.0)
                while not self._stopping.is_set() and (time.monotonic() < until_s or self._is_dry.is_set()):
                    self._read_and_commit(consumer)
                self.record.tally["members left"] += 1
            finally:
                consumer.close()

    def _read_and_commit(self, consumer: Consumer) -> None:
        offsets: dict[Mark, int] = {}
        places: dict[Mark, TopicPartition] = {}
        for message in consumer.consume(200, 0.2):
            topic, number, offset = message.topic(), message.partition(), message.offset()
            if message.error() is None and topic is not None and number is not None and offset is not None:
                mark = group_mark(LIVE, topic, number)
                offsets[mark], places[mark] = offset + 1, TopicPartition(topic, number, offset + 1)
        if offsets:
            committing = partial(_committed, consumer, list(places.values()))
            self.record.change("offsets committed by members", offsets, committing)


def _committed(consumer: Consumer, places: Iterable[TopicPartition]) -> None:
    for one in consumer.commit(offsets=list(places), asynchronous=False) or []:
        if one.error is not None:
            raise KafkaException(one.error)


async def delete_group(bootstrap: str, group: str) -> None:
    """Delete a group with aiokafka, because librdkafka's client aborts its process if a coordinator dies."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap.split(","), request_timeout_ms=8_000)
    try:
        await admin.start()
        coordinator = await admin.find_coordinator(group)
        [(_, code)] = (await admin._send_request(DeleteGroupsRequest([group]), coordinator)).results
        if code:
            raise aiokafka.errors.for_code(code)
    finally:
        await admin.close()
