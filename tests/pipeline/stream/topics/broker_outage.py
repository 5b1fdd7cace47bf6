"""A stream between topics of a real broker that dies and comes back, and its outcomes.

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
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS

from examples.kafka_cluster import KafkaCluster
from examples.stream_demo.connector import connector_jars
from tests.pipeline.conftest import worker_environment
from tests.pipeline.stream.simulated_history import Outcome, SimulatedHistory, outcomes_of
from tests.pipeline.stream.topics.history_records import TopicRecord, records_of, spaced_history

TOPICS = ("registrations", "events", "results")
STEPS = 500
DELAY_MS = 300
BEFORE_MS = 400
"""So much of the history comes before the broker dies: more than the delay, so that some of it has outcomes."""
END_S = 200


class TopicsOfStream:
    """The three topics of a cluster, written and read."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._brokers = cluster.bootstrap
        admin = AdminClient({"bootstrap.servers": self._brokers})
        topics = [NewTopic(name, 1, config={"retention.ms": "-1"}) for name in TOPICS]  # records may be of any time
        for topic in admin.create_topics(topics).values():
            topic.result(60)

    def send(self, records: Sequence[TopicRecord]) -> None:
        """Registrations, then events: what tells the time must not be read first."""
        for topic in ("registrations", "events"):
            producer = Producer({"bootstrap.servers": self._brokers})
            for record in (one for one in records if one.topic == topic):
                producer.produce(topic, record.octets, key=record.caller, timestamp=record.at_ms)
            assert producer.flush(60) == 0, "the broker did not take all"

    def outcomes(self) -> list[Outcome]:
        """All records of the topic of results. The stream may have written some of them twice."""
        settings: dict[str, str | bool] = {
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        consumer = Consumer({"bootstrap.servers": self._brokers, **settings})
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


@contextlib.contextmanager
def streaming(cluster: KafkaCluster, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command between the topics. It logs to `FOLDER/log` and is killed at the end."""
    topics = f"kafka://{cluster.bootstrap}"
    command = [
        sys.executable, "-m", "purgatory_pipeline.cli", "stream", "--registrations", f"{topics}/registrations",
        "--events", f"{topics}/events", "--results", f"{topics}/results", "--shards", "2", "--master", "local[2]",
        "--delay", f"{DELAY_MS}ms",
        "--checkpoint", str(folder / "checkpoint"), "--quarantine", str(folder / "quarantine"),
        "--conf", f"spark.jars={','.join(map(str, connector_jars()))}", "--conf", "spark.ui.enabled=false",
        "--conf", "spark.driver.bindAddress=127.0.0.1",
    ]  # fmt: skip
    with (folder / "log").open("ab") as log:
        environment = {**os.environ, **worker_environment()}
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def outcomes_over_outage(folder: Path, down_s: float) -> tuple[SimulatedHistory, list[Outcome]]:
    """A history comes in two pieces; the broker is killed and comes back between them.

    Returns the history, and all outcomes.
    """
    history = spaced_history(1, STEPS)
    records, begin_ms = records_of(history.rows), history.rows[0]["at_ms"]
    malformed = TopicRecord("registrations", begin_ms, "", b"\xff\xff\xff")
    first = [record for record in records if record.at_ms < begin_ms + BEFORE_MS]
    heartbeat = TopicRecord("events", history.end_ms + DELAY_MS, "", b"")
    with KafkaCluster(folder / "kafka") as cluster:
        topics = TopicsOfStream(cluster)
        topics.send([*first, malformed])
        with streaming(cluster, folder) as stream:

            def answered(count: int) -> Callable[[], bool]:
                return lambda: len(set(map(repr, topics.outcomes()))) >= count

            until(answered(1), stream, folder)
            cluster.kill(1)
            time.sleep(down_s)  # that long it is down
            cluster.start(1)
            topics.send([*records[len(first) :], heartbeat])
            until(answered(len(history.outcomes)), stream, folder)
            return history, topics.outcomes()


def until(reached: Callable[[], bool], stream: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a condition. Fails if the stream ends first."""
    deadline = time.monotonic() + END_S
    while not reached():
        said = (folder / "log").read_text("utf-8", "replace")[-3_000:]
        assert stream.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def main() -> int:
    """Says what became of the outcomes."""
    parser = argparse.ArgumentParser(description="Kills the broker under a stream.")
    parser.add_argument("--seconds", type=float, default=60)
    down_s = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="broker-outage-") as folder:
        history, outcomes = outcomes_over_outage(Path(folder), down_s)
    found, expected = set(map(repr, outcomes)), set(map(repr, history.outcomes))
    twice = len(outcomes) - len(found)
    print(f"down for {down_s:.0f} s: {len(found)} outcomes, {twice} of them twice, {len(found - expected)} wrong")
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main())
