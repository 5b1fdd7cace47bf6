"""A stream between topics of a real broker that dies and comes back, and its answers.

python -m tests.pipeline.stream.topics.broker_outage --seconds 60
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.kafka_cluster import KafkaCluster
from examples.stream_demo.connector import connector_jars
from purgatory.v1 import event_pb2, operation_pb2
from tests.pipeline.conftest import worker_environment
from tests.pipeline.stream.topics.history_records import TopicRecord

Answer = dict[str, object]
TOPICS = ("registrations", "events", "results")
OPERATIONS = 40
"""Before the broker dies, and as many afterwards."""
REACHED = 20
TIMEOUT_MS = 10_000
END_S = 200


def operation(number: int) -> bytes:
    """Waits for the offset of its own number."""
    message = operation_pb2.Operation(operation_id=number, timeout_ms=TIMEOUT_MS)
    partition = message.produce.partitions.add(required_offset=number)
    partition.topic_partition.topic, partition.topic_partition.partition = "orders", number % 3
    return message.SerializeToString()


def mark(partition: int, offset: int) -> bytes:
    event = event_pb2.Event(high_watermark=event_pb2.HighWatermark(offset=offset))
    event.topic_partition.topic, event.topic_partition.partition = "orders", partition
    return event.SerializeToString()


class TopicsOfStream:
    """The three topics of a cluster, written and read."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._brokers = cluster.bootstrap
        admin = AdminClient({"bootstrap.servers": self._brokers})
        topics = [NewTopic(name, 1, config={"retention.ms": "-1"}) for name in TOPICS]  # records may be of any time
        for topic in admin.create_topics(topics).values():
            topic.result(60)

    def write(self, first: int, begin_ms: int, *, malformed: bool) -> None:
        """Forty operations, marks for half of them five seconds later, and a mark by which the others have expired."""
        numbers = range(first, first + OPERATIONS)
        records = [TopicRecord("registrations", begin_ms + number, "web", operation(number)) for number in numbers]
        if malformed:
            records.append(TopicRecord("registrations", begin_ms, "", b"\xff\xff\xff"))
        reached = first - 1 + REACHED
        records += [TopicRecord("events", begin_ms + 5_000, "", mark(partition, reached)) for partition in range(3)]
        self.send([*records, TopicRecord("events", begin_ms + 60_000, "", mark(0, reached))])

    def send(self, records: Sequence[TopicRecord]) -> None:
        """Registrations, then events: what tells the time must not be read first."""
        for topic in ("registrations", "events"):
            producer = Producer({"bootstrap.servers": self._brokers})
            for record in (one for one in records if one.topic == topic):
                producer.produce(topic, record.octets, key=record.caller, timestamp=record.at_ms)
            assert producer.flush(60) == 0, "the broker did not take all"

    def answers(self) -> list[Answer]:
        """All records of the topic of results."""
        settings: dict[str, str | bool] = {
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        consumer = Consumer({"bootstrap.servers": self._brokers, **settings})
        consumer.assign([TopicPartition("results", 0, OFFSET_BEGINNING)])
        found: list[Answer] = []
        try:
            while True:
                message = consumer.poll(60)
                assert message is not None, f"only {len(found)} came"
                if message.error():
                    return found
                key, value = message.key(), message.value()
                assert key is not None and value is not None, "a record without key or value"  # noqa: PT018 - for mypy
                found.append(json.loads(value) | {"key": key.decode()})
        finally:
            consumer.close()


@contextlib.contextmanager
def streaming(cluster: KafkaCluster, folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command between the topics, with `more` options. It logs to `FOLDER/log` and is killed at the end."""
    topics = f"kafka://{cluster.bootstrap}"
    command = [
        sys.executable, "-m", "purgatory_pipeline.cli", "stream", "--registrations", f"{topics}/registrations",
        "--events", f"{topics}/events", "--results", f"{topics}/results", "--shards", "2", "--master", "local[2]",
        "--checkpoint", str(folder / "checkpoint"), "--quarantine", str(folder / "quarantine"),
        "--conf", f"spark.jars={','.join(map(str, connector_jars()))}", "--conf", "spark.ui.enabled=false",
        "--conf", "spark.driver.bindAddress=127.0.0.1", *more,
    ]  # fmt: skip
    with (folder / "log").open("ab") as log:
        environment = {**os.environ, **worker_environment()}
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers_over_outage(folder: Path, down_s: float) -> list[Answer]:
    """Operations 1 to 40 are answered; the broker is killed; it comes back with 41 to 80. Returns all answers."""
    begin_ms = time.time_ns() // 1_000_000 - 300_000
    with KafkaCluster(folder / "kafka") as cluster:
        topics = TopicsOfStream(cluster)
        topics.write(1, begin_ms, malformed=True)
        with streaming(cluster, folder) as stream:

            def answered(count: int) -> Callable[[], bool]:
                return lambda: len({answer["key"] for answer in topics.answers()}) >= count

            until(answered(OPERATIONS), stream, folder)
            cluster.kill(1)
            time.sleep(down_s)  # that long it is down
            cluster.start(1)
            topics.write(OPERATIONS + 1, begin_ms + 120_000, malformed=False)
            until(answered(2 * OPERATIONS), stream, folder)
            return topics.answers()


def until(reached: Callable[[], bool], stream: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a condition. Fails if the stream ends first."""
    deadline = time.monotonic() + END_S
    while not reached():
        said = (folder / "log").read_text("utf-8", "replace")[-3_000:]
        assert stream.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def expected() -> dict[str, tuple[str, int]]:
    """The outcome and wait of each operation, by its key."""
    found = {}
    for number in range(1, 2 * OPERATIONS + 1):
        place = (number - 1) % OPERATIONS
        is_reached = place < REACHED
        found[f"web/{number}"] = ("satisfied", 5_000 - number) if is_reached else ("expired", TIMEOUT_MS)
    return found


def main() -> int:
    """Says what became of the answers."""
    parser = argparse.ArgumentParser(description="Kills the broker under a stream.")
    parser.add_argument("--seconds", type=float, default=60)
    down_s = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="broker-outage-") as folder:
        answers = answers_over_outage(Path(folder), down_s)
    found = {str(answer["key"]): (answer["outcome"], answer["waited_ms"]) for answer in answers}
    wrong = {key: (found.get(key), one) for key, one in expected().items() if found.get(key) != one}
    twice = len(answers) - len(found)
    print(f"down for {down_s:.0f} s: {len(found)} operations answered, {twice} of them twice, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
