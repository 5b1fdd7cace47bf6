"""A producer that writes to Kafka, and a slow consumer group."""

import sys
import time
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 2
RECORD_S: Final = 0.2
"""Seconds that the consumer takes per record."""
FLUSH_S: Final = 60.0
QUIET: Final = {"log_level": 0}
"""librdkafka logs every connection attempt, and this demonstration stops a broker on purpose."""


def make_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until they exist: it closes with its last reference
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        created.result(FLUSH_S)


class Writer:
    """Writes orders. Returned offsets have been acknowledged by the broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap: Final = bootstrap
        self._producer: Final = Producer({**QUIET, "bootstrap.servers": bootstrap, "acks": "all"})

    def write(self, count: int, partition: int) -> int:
        """Write `count` records; returns the offset of the last one."""
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                raise KafkaException(error)
            offsets.append(message.offset() or 0)

        for _ in range(count):
            self._producer.produce(TOPIC, b"an order", partition=partition, on_delivery=delivered)
        self._producer.flush(FLUSH_S)
        return max(offsets)

    def write_and_abort(self, count: int, partition: int) -> None:
        """Write records in a transaction and abort it, which leaves offsets that no consumer sees."""
        producer = Producer({**QUIET, "bootstrap.servers": self._bootstrap, "transactional.id": "demo"})
        producer.init_transactions(FLUSH_S)
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(TOPIC, b"never mind", partition=partition)
        producer.flush(FLUSH_S)
        producer.abort_transaction(FLUSH_S)


def process_slowly(bootstrap: str) -> None:
    """Run the consumer group until it is killed. It commits each record after processing it."""
    consumer = Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        time.sleep(RECORD_S)
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException:
            continue  # the broker is down; the next commit covers this record


if __name__ == "__main__":
    process_slowly(sys.argv[1])
