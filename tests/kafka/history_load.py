"""What the history check does to a cluster, and the record of it: who wrote what, from when to when."""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.kafka.history_judge import Mark, RecordedStep

TOPIC: Final = "orders"
PARTITIONS: Final = 4
GROUPS: Final = 6
QUIET: Final = {"log_level": 0, "socket.timeout.ms": 4000, "topic.metadata.refresh.interval.ms": 2000}
FLUSH_S: Final = 60.0


class HistoryLoad:
    """One thread that writes records and one for each group; `changes` is what they did. Used as a context manager.

    Groups commit what exists only, so nothing but their commits may move their marks.
    No AdminClient: it aborts the process when a coordinator dies.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.changes: Final[list[RecordedStep]] = []
        self.present: Final[dict[Mark, int]] = {("kafka/" + TOPIC, number): 0 for number in range(PARTITIONS)}
        for group in range(GROUPS):
            self.present.update({(f"kafka/group{group}/{TOPIC}", number): 0 for number in range(PARTITIONS)})
        self.lost = 0
        """Records that were not acknowledged before the end: not known, so nothing could be judged."""
        self._bootstrap: Final = bootstrap
        self._stopping: Final = threading.Event()
        self._failures: Final[list[Exception]] = []
        writes = [partial(self._produce, random.Random(seed))]
        writes += [partial(self._commit, f"group{one}", random.Random(seed * 100 + one)) for one in range(GROUPS)]
        self._threads: Final = [threading.Thread(target=self._guarded, args=(write,)) for write in writes]

    def __enter__(self) -> "HistoryLoad":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - raised where the load ends: a thread's own would only be printed
            self._failures.append(error)

    def _produce(self, chance: random.Random) -> None:
        settings: dict[str, Any] = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
        producer = Producer({"bootstrap.servers": self._bootstrap, **settings, **QUIET})

        def delivered(begun_s: float, error: object, message: Message) -> None:
            if error is not None:
                self.lost += 1
                return
            number, offset = message.partition(), message.offset()
            assert number is not None, "a record without a partition was acknowledged"
            assert offset is not None, "a record without an offset was acknowledged"
            mark = ("kafka/" + TOPIC, number)
            self.changes.append(RecordedStep(mark, offset + 1, begun_s, time.monotonic()))
            self.present[mark] = offset + 1

        while not self._stopping.wait(0.02):
            for _ in range(chance.randint(0, 6)):
                on_delivery = partial(delivered, time.monotonic())
                producer.produce(TOPIC, b"x", partition=chance.randrange(PARTITIONS), on_delivery=on_delivery)
            producer.poll(0)
        self.lost += producer.flush(FLUSH_S)

    def _commit(self, group: str, chance: random.Random) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group, **QUIET})
        try:
            while not self._stopping.wait(chance.uniform(0.01, 0.06)):
                dice = chance.random()
                number = chance.randrange(PARTITIONS)
                mark, end = (f"kafka/{group}/{TOPIC}", number), self.present["kafka/" + TOPIC, number]
                step = -chance.randint(1, 80) if dice < 0.02 else chance.randint(0, 20)
                offset = min(end, max(0, self.present[mark] + step))
                place = TopicPartition(TOPIC, number, offset)
                self._change([mark], offset, partial(_committed, consumer, place))
        finally:
            consumer.close()

    def _change(self, marks: list[Mark], offset: int, change: Callable[[], object]) -> None:
        begun_s, acknowledged_s = time.monotonic(), None
        with contextlib.suppress(KafkaException):  # not known then whether it happened
            change()
            acknowledged_s = time.monotonic()
        for mark in marks:
            self.changes.append(RecordedStep(mark, offset, begun_s, acknowledged_s))
            if acknowledged_s is not None:
                self.present[mark] = max(0, offset)


def _committed(consumer: Consumer, place: TopicPartition) -> None:
    for one in consumer.commit(offsets=[place], asynchronous=False) or []:
        if one.error is not None:
            raise KafkaException(one.error)
