"""Measures the latency of answers between topics of a real broker: the purgatory as a stream, and a copying query.

    python -m bench.stream.stream_latency [--rate 1000] [--seconds 40]

The queries run one after another on one broker, in one Spark session, under the same load: `rate` registrations per
second, each with the mark that satisfies it 30 ms later. Latency is the time from sending that mark (for the copy: its
record) to the arrival of the answer at the broker, both by the clock of this machine. The first seconds are ignored.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from purgatory_pipeline.spark.spark_session import pass_settings, spark_session
from purgatory_pipeline.stream.endpoints import StreamInput, StreamOutput
from purgatory_pipeline.stream.stream_query import StreamOptions, start_stream
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.kafka_cluster import KafkaCluster
from examples.stream_demo.connector import connector_jars
from purgatory.v1 import event_pb2, operation_pb2

__all__ = ["main"]

MARK_AFTER_S: Final = 0.03
TICK_S: Final = 0.01
WARM_S: Final = 20.0
TAIL_S: Final = 10.0
DELAY_MS: Final = 50
"""Delay of the stream: registrations and marks are sent in order, but in two topics."""
PARTITIONS: Final = 10
ACK_S: Final = 30.0


@dataclass(frozen=True)
class Topics:
    """The topics of one run."""

    registrations: str
    marks: str
    answers: str


def main() -> None:
    """Measure the copy, and the stream in one and in two shards."""
    parser = argparse.ArgumentParser(prog="bench.stream.stream_latency")
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=40)
    given = parser.parse_args()
    jars = ",".join(map(str, connector_jars()))
    pass_settings("local[2]", ["spark.ui.enabled=false", "spark.driver.memory=2g", f"spark.jars={jars}"])
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name) / "kafka") as cluster:
        session = spark_session("stream latency")
        alone: tuple[float, float] | None = None
        for run, start in RUNS.items():
            topics = Topics(*(f"{run}-{what}" for what in ("registrations", "marks", "answers")))
            make_topics(cluster.bootstrap, topics)
            query = start(session, cluster.bootstrap, topics, Path(name) / run)
            sent = send(cluster.bootstrap, topics, given.rate, given.seconds)
            time.sleep(TAIL_S)
            query.stop()
            took = latencies_ms(cluster.bootstrap, topics, sent)
            cuts = statistics.quantiles(took, n=100)
            alone = alone or (cuts[49], cuts[98])
            print(
                f"{run}: {len(took):,} answers, p50 {cuts[49]:,.0f} ms, p99 {cuts[98]:,.0f} ms; beside the copy "
                f"{cuts[49] / alone[0]:.2f} and {cuts[98] / alone[1]:.2f} times",
                flush=True,
            )
        session.stop()


def make_topics(bootstrap: str, topics: Topics) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, 1) for name in (topics.registrations, topics.marks, topics.answers)])
    for topic in made.values():
        topic.result(ACK_S)


def copying(session: SparkSession, bootstrap: str, topics: Topics, folder: Path) -> StreamingQuery:
    """A stateless query that answers each registration with the registration itself."""
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    rows = reader.option("subscribe", topics.registrations).option("startingOffsets", "earliest").load()
    keyed = rows.selectExpr("key", "value")
    writer = keyed.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return writer.option("topic", topics.answers).option("checkpointLocation", str(folder)).start()


def waiting(shards: int) -> Callable[[SparkSession, str, Topics, Path], StreamingQuery]:
    """The purgatory as a stream."""

    def start(session: SparkSession, bootstrap: str, topics: Topics, folder: Path) -> StreamingQuery:
        inputs = [
            StreamInput(side, f"kafka://{bootstrap}/{topic}", "", 1, 500_000)
            for side, topic in ((OPERATION, topics.registrations), (EVENT, topics.marks))
        ]
        options = StreamOptions(checkpoint=str(folder / "ck"), shards=shards, delay_ms=DELAY_MS)
        output = StreamOutput(f"kafka://{bootstrap}/{topics.answers}", str(folder / "quarantine"))
        return start_stream(session, inputs, output, options)

    return start


RUNS: Final = {"copy": copying, "one-shard": waiting(1), "two-shards": waiting(2)}


def send(bootstrap: str, topics: Topics, rate: int, seconds: float) -> dict[str, float]:
    """Send the load. Returns, by key, the time in seconds from which each operation could be answered."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    possible_s: dict[str, float] = {}
    is_copy = topics.registrations.startswith("copy")
    began_s = time.time()
    number = marked = 0
    while (now_s := time.time()) < began_s + seconds + WARM_S:
        while number < (now_s - began_s) * rate:
            number += 1
            key = f"web/{number}" if not is_copy else str(number)
            producer.produce(topics.registrations, registration(number), key="web" if not is_copy else key)
            possible_s[key] = now_s + (0 if is_copy else MARK_AFTER_S)
        ripe = int((now_s - began_s - MARK_AFTER_S) * rate)
        if ripe > marked and not is_copy:
            for partition in range(PARTITIONS):
                producer.produce(topics.marks, mark(partition, ripe), key=str(partition))
            marked = ripe
        producer.poll(0)
        time.sleep(TICK_S)
    for turn in range(int(TAIL_S / TICK_S / 10)):  # what is left is reached, and time goes on
        producer.produce(topics.marks, mark(turn % PARTITIONS, number))
        producer.poll(0)
        time.sleep(TICK_S)
    producer.flush(ACK_S)
    counted_from_s = began_s + WARM_S
    return {key: at_s for key, at_s in possible_s.items() if at_s >= counted_from_s}


def registration(number: int) -> bytes:
    """A wait for its own number."""
    message = operation_pb2.Operation(operation_id=number, timeout_ms=60_000)
    partition = message.produce.partitions.add(required_offset=number)
    partition.topic_partition.topic, partition.topic_partition.partition = "orders", number % PARTITIONS
    return message.SerializeToString()


def mark(partition: int, offset: int) -> bytes:
    event = event_pb2.Event(high_watermark=event_pb2.HighWatermark(offset=offset))
    event.topic_partition.topic, event.topic_partition.partition = "orders", partition
    return event.SerializeToString()


def latencies_ms(bootstrap: str, topics: Topics, sent: dict[str, float]) -> list[float]:
    """The time from each operation's earliest possible answer to its first one. Asserts that all were answered."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topics.answers, 0, OFFSET_BEGINNING)])
    answered_ms: dict[str, float] = {}
    while (message := consumer.poll(ACK_S)) is not None and not message.error():
        key = message.key()
        assert key is not None, "an answer without a key"
        answered_ms.setdefault(key.decode(), message.timestamp()[1])
    consumer.close()
    missing = sent.keys() - answered_ms.keys()
    assert not missing, f"{len(missing)} of {len(sent)} not answered: {sorted(missing)[:5]}"
    return [answered_ms[key] - at_s * 1_000 for key, at_s in sent.items()]


if __name__ == "__main__":
    main()
