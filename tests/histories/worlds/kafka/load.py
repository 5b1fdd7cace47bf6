"""The load of the history check: records and commits of groups, with each writer in a thread."""

import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.histories.worlds.kafka.judge import GONE, Mark
from tests.histories.worlds.kafka.record import Record, admin_call, group_mark, topic_mark

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
"""A topic written by transactions."""
GROWING: Final = "growing"
"""A topic that gains partitions."""
VOLATILE: Final = "volatile"
"""A topic that is deleted and recreated."""
LOSSY: Final = "lossy"
"""A topic with two replicas and unclean elections."""
PARTITIONS: Final = {ORDERS: 4, PAYMENTS: 2, GROWING: 1, VOLATILE: 2, LOSSY: 2}
TOPICS_OF: Final = {
    "group0": (ORDERS, VOLATILE),
    "group1": (ORDERS, VOLATILE),
    "group2": (ORDERS, GROWING),
    "group3": (ORDERS, PAYMENTS),
    "group4": (ORDERS, LOSSY),
    "group5": (LOSSY, GROWING),
}
"""Groups that commit without members."""
LIVE: Final = "live"
"""A group whose consumers join and leave."""
LIVE_TOPICS: Final = (ORDERS, PAYMENTS)
QUIET: Final = {"log_level": 0, "socket.timeout.ms": 4000, "topic.metadata.refresh.interval.ms": 2000}
FLUSH_S: Final = 60.0
WITHIN_A_BURST: Final = {
    VOLATILE: {"acks": "all", "retries": 20},
    LOSSY: {"acks": "all", "retries": 20, "max.in.flight.requests.per.connection": 1},
}
"""Topics whose records are all acknowledged before another thread may change them. Without idempotence, because its
sequence numbers survive neither a recreated topic nor a truncated log.
"""


class Load:
    """Writes from when it is entered. Groups commit only existing offsets, so only their commits move their marks.

    On exit, producers stop first. `run_dry` stops only those, and the consumers read on.
    """

    def __init__(self, bootstrap: str, seed: int, record: Record) -> None:
        self.record: Final = record
        self._bootstrap: Final = bootstrap
        self._stopping: Final = threading.Event()
        self._is_dry: Final = threading.Event()
        self._failures: Final[list[Exception]] = []
        writes: list[Callable[[random.Random], None]] = [
            partial(self._produce, (ORDERS, GROWING), {"acks": "all", "enable.idempotence": True, "linger.ms": 0}),
            *(partial(self._produce, (topic,), settings) for topic, settings in WITHIN_A_BURST.items()),
            self._transact,
        ]
        reads: list[Callable[[random.Random], None]] = [
            *(partial(self._commit, group, topics) for group, topics in TOPICS_OF.items()),
            self._live,
            self._live,
        ]
        self._writers: Final = self._threads(writes, seed * 100)
        self._readers: Final = self._threads(reads, seed * 100 + 50)

    def __enter__(self) -> Self:
        for thread in [*self._writers, *self._readers]:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run_dry()
        self._stopping.set()
        _join(self._readers)
        if self._failures:
            raise self._failures[0]

    def run_dry(self) -> None:
        """Stop producing, with all transactions ended."""
        self._is_dry.set()
        _join(self._writers)

    def _threads(self, calls: Iterable[Callable[[random.Random], None]], seed: int) -> list[threading.Thread]:
        chances = enumerate(calls, seed)
        return [threading.Thread(target=self._guarded, args=(call, random.Random(one))) for one, call in chances]

    def _guarded(self, call: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            call(chance)
        except Exception as error:  # noqa: BLE001 - raised when the load ends; a thread would only print it
            self._failures.append(error)

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

    def _produce(self, topics: tuple[str, ...], settings: dict[str, Any], chance: random.Random) -> None:
        record = self.record
        producer, incarnation = self._producer(settings), 1
        while not self._is_dry.wait(0.02):
            topic = chance.choice(topics)
            with record.gates[topic].used() as is_open:
                if not is_open:
                    continue
                if incarnation != record.incarnations[topic]:  # the old producer finds the new topic late
                    producer, incarnation = self._producer(settings), record.incarnations[topic]
                for _ in range(chance.randint(0, 6)):
                    self._send(producer, topic, chance.randrange(record.partitions[topic]))
                if topic in WITHIN_A_BURST:
                    producer.flush(FLUSH_S)
                    time.sleep(0.1)
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
        consumer = self._consumer(group)
        try:
            while not self._stopping.wait(chance.uniform(0.01, 0.06)):
                if chance.random() < 0.003:
                    self._delete_group(group, topics)
                    continue
                topic = chance.choice(topics)
                with self.record.gates[topic].used() as is_open:
                    if is_open:
                        self._commit_on(group, topic, consumer, chance)
        finally:
            consumer.close()

    def _commit_on(self, group: str, topic: str, consumer: Consumer, chance: random.Random) -> None:
        record, dice = self.record, chance.random()
        number = chance.randrange(record.partitions[topic])
        mark, end = group_mark(group, topic, number), record.present_of(topic_mark(topic, number))
        step = -chance.randint(1, 80) if dice < 0.02 or dice > 0.997 else chance.randint(0, 20)
        offset = min(end, max(0, record.present_of(mark) + step))
        if dice > 0.993:
            altering = partial(admin_call, self._bootstrap, "alter", group, topic, number, offset)
            record.change("offsets altered", {mark: offset}, altering)
        else:
            place = TopicPartition(topic, number, offset)
            record.change("offsets committed", {mark: offset}, partial(_committed, consumer, [place]))

    def _delete_group(self, group: str, topics: tuple[str, ...]) -> None:
        gates = [self.record.gates[topic] for topic in topics]
        with gates[0].used() as first, gates[1].used() as second:
            if first and second:
                gone = {mark: GONE for mark in list(self.record.present) if mark[0].startswith(f"kafka/{group}/")}
                self.record.change("groups deleted", gone, partial(admin_call, self._bootstrap, "delete", group))

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


def _committed(consumer: Consumer, places: list[TopicPartition]) -> None:
    for one in consumer.commit(offsets=places, asynchronous=False) or []:
        if one.error is not None:
            raise KafkaException(one.error)


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
