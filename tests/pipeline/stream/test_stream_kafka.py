"""The stream between topics of a real broker, through the command and Spark's connector (`make stream-demo`)."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION

from examples.kafka_cluster import ClusterUnavailable, KafkaCluster, kafka_jars
from examples.stream_demo import connector
from tests.histories.plan import Step
from tests.histories.worlds.spark import SparkProgram
from tests.kafka.clients import ClusterClients
from tests.kit.programs import skip_unless_required
from tests.pipeline.stream.simulated_history import Outcome, Record, SimulatedHistory, generator_of, outcomes_of

TOPICS = {OPERATION: "registrations", EVENT: "events"}
STEPS = 500
DELAY_MS = 300
BEFORE_MS = 400
"""Length of the history before the broker dies: more than the delay, so that some of it has outcomes."""
DOWN_S = 1.0


class TopicsOfStream:
    """The three topics of a cluster, written and read."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._clients = ClusterClients(cluster.bootstrap)
        for topic in (*TOPICS.values(), "results"):
            self._clients.create(topic, config={"retention.ms": "-1"})  # records may be of any time

    def send(self, records: Sequence[Record]) -> None:
        """Registrations, then events: records that advance the time must not be read first."""
        for side, topic in TOPICS.items():
            for record in (one for one in records if one.side == side):
                self._clients.producer.produce(topic, record.octets, key=record.caller, timestamp=record.at_ms)
            assert self._clients.producer.flush(60) == 0, "the broker did not take all"

    def outcomes(self) -> list[Outcome]:
        """All records of the topic of results. The stream may have written some of them twice."""
        settings = {"group.id": "test", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self._clients.bootstrap, **settings})
        consumer.assign([TopicPartition("results", 0, OFFSET_BEGINNING)])
        rows: list[dict[str, object]] = []
        try:
            while True:
                message = consumer.poll(60)
                assert message is not None, f"only {len(rows)} came"
                if message.error():
                    return outcomes_of(pa.Table.from_pylist(rows, OUTCOME_ROWS))
                key, value = message.key(), message.value()
                assert key is not None and value is not None, "a record without key or value"  # noqa: PT018 - for mypy
                row = json.loads(value)
                assert key.decode() == f"{row['caller']}/{row['operation_id']}"
                instants = ("registered_at", "ended_at")
                rows.append(row | {name: datetime.fromisoformat(row[name]) for name in instants})
        finally:
            consumer.close()


def start_stream(cluster: KafkaCluster, folder: Path, jars: Sequence[Path]) -> SparkProgram:
    """The command between the topics. It logs to `FOLDER/log`."""
    topics = f"kafka://{cluster.bootstrap}"
    return SparkProgram(folder / "log", [
        "purgatory_pipeline.cli", "stream", "--registrations", f"{topics}/registrations",
        "--events", f"{topics}/events", "--results", f"{topics}/results", "--shards", "2", "--master", "local[2]",
        "--delay", f"{DELAY_MS}ms", "--checkpoint", str(folder / "checkpoint"),
        "--quarantine", str(folder / "quarantine"), "--conf", f"spark.jars={','.join(map(str, jars))}",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1",
    ])  # fmt: skip


@pytest.fixture
def connector_jars() -> list[Path]:
    """Spark's connector. Without it, or Kafka's jars, the test is skipped, or fails where Kafka is required."""
    try:
        kafka_jars()
        return connector.connector_jars()
    except ClusterUnavailable as missing:
        skip_unless_required("KAFKA", missing)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_history_between_topics_ends_as_by_the_engine_over_a_death_of_the_broker(
    tmp_path: Path, connector_jars: list[Path]
) -> None:
    """Operations and events as records of two topics, in two pieces, between which the broker dies and comes back:
    the same outcomes, times, codes and items are in a third topic. Kafka's timestamp is the time, its key the caller; a
    malformed record is set aside.
    """
    steps = (step for drawn in generator_of(1).steps(STEPS) for step in (drawn, Step(None, pass_ms=1)))
    history = SimulatedHistory(steps)  # time passes after each step: records of one millisecond have no order
    records, begin_ms = history.records, history.records[0].at_ms
    first = [record for record in records if record.at_ms < begin_ms + BEFORE_MS]
    heartbeat = Record(EVENT, history.end_ms + DELAY_MS, "", b"")
    with KafkaCluster(tmp_path / "kafka") as cluster:
        topics = TopicsOfStream(cluster)
        topics.send([*first, Record(OPERATION, begin_ms, "", b"\xff\xff\xff")])
        stream = start_stream(cluster, tmp_path, connector_jars)

        def answered(count: int) -> Callable[[], bool]:
            return lambda: len(set(map(repr, topics.outcomes()))) >= count

        try:
            stream.until(answered(1))
            cluster.kill(1)
            time.sleep(DOWN_S)  # that long it is down
            cluster.start(1)
            topics.send([*records[len(first) :], heartbeat])
            stream.until(answered(len(history.outcomes)))
        finally:
            stream.kill()
        assert set(map(repr, topics.outcomes())) == set(map(repr, history.outcomes))
    assert "1 malformed" in (tmp_path / "log").read_text()
