"""Orders that are written to Kafka, and read from the SQLite table that a consumer builds from them."""

import asyncio
import sqlite3
import sys
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from purgatory_client.sources.source_names import kafka_group

from examples.read_your_writes.shop import Orders

TOPIC: Final = "orders"
GROUP: Final = "orders-view"
RECORDS_MAX: Final = 100
SLOW_S: Final = 0.05
"""Seconds that the consumer takes for each batch of records, to imitate real work."""


class KafkaOrders(Orders):
    """Writes records and reads rows."""

    def __init__(self, bootstrap: str, table: Path) -> None:
        self._producer: Final = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1, "log_level": 0}
        )
        self._database: Final = sqlite3.connect(table, isolation_level=None)
        self._loop: Final = asyncio.get_running_loop()
        self._polling: Final = self._loop.create_task(self._poll())

    async def write(self, order_id: str) -> dict[str, int]:
        stored: asyncio.Future[Message] = self._loop.create_future()

        def delivered(error: object, message: Message) -> None:
            if error is not None:
                stored.set_exception(OSError(str(error)))
            else:
                stored.set_result(message)

        self._producer.produce(TOPIC, key=order_id, on_delivery=delivered)
        message = await stored
        partition, offset = message.partition(), message.offset()
        assert partition is not None, "a record that was delivered has a partition"
        assert offset is not None, "and an offset"
        # The group commits the offset that it will read next.
        return {f"{kafka_group(GROUP, TOPIC)}-{partition}": offset + 1}

    async def read(self, order_id: str) -> bool:
        return self._database.execute("SELECT 1 FROM orders WHERE id = ?", (order_id,)).fetchone() is not None

    async def close(self) -> None:
        self._polling.cancel()
        await asyncio.gather(self._polling, return_exceptions=True)
        self._database.close()

    async def _poll(self) -> None:
        while True:  # calls `delivered`
            self._producer.poll(0)
            await asyncio.sleep(0.001)


def make_topic(bootstrap: str) -> None:
    """Create the topic, with two partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until it exists: it closes with its last reference
    for created in admin.create_topics([NewTopic(TOPIC, 2, 1)]).values():
        created.result(60.0)


def make_table(path: Path) -> None:
    """Create an empty table that allows one writer and concurrent readers."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY) WITHOUT ROWID")


def keep_up_to_date(bootstrap: str, path: Path) -> None:
    """Run the consumer until it is killed. Rows are stored before the commit, so every committed record can be read."""
    database = sqlite3.connect(path, isolation_level=None)
    consumer = Consumer(
        {
            "log_level": 0,
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    while True:
        records = consumer.consume(RECORDS_MAX, 0.05)
        ids = [key for record in records if record.error() is None and (key := record.key()) is not None]
        if not ids:
            continue
        time.sleep(SLOW_S)
        database.execute("BEGIN")
        database.executemany("INSERT OR IGNORE INTO orders VALUES (?)", [(_text(one),) for one in ids])
        database.execute("COMMIT")
        consumer.commit(asynchronous=False)


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode()


if __name__ == "__main__":
    keep_up_to_date(sys.argv[1], Path(sys.argv[2]))
