"""The test kit on real brokers: a test of a pipeline that waits for its consumer group."""

import threading

from confluent_kafka import Consumer

from purgatory.testing import daemon_process
from tests.kafka.clients import ClusterClients


def test_a_consumer_has_processed_all_records(clients: ClusterClients, topic: str) -> None:
    """`processed` returns once the group has committed past every record: all of them are in its table then."""
    group, rows, stop = f"copies-{topic}", [], threading.Event()

    def copy() -> None:
        """Copy one record after the other into the table, and commit each after it was copied."""
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": clients.bootstrap, **settings})
        consumer.subscribe([topic])
        while not stop.is_set():
            record = consumer.poll(0.05)
            if record is not None and record.error() is None:
                rows.append(record.value())
                consumer.commit(message=record, asynchronous=False)
        consumer.close()

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        with daemon_process("--source", f"kafka://{clients.bootstrap}?topics={topic}&groups={group}") as daemon:
            for number in range(1, 4):
                clients.produce(topic, 10)
                result = daemon.processed(group, topic, timeout=60)
                assert len(rows) == 10 * number
                assert result.partitions[f"kafka/{group}/{topic}-0"].reached_offset == 10 * number
    finally:
        stop.set()
        copying.join(60)
