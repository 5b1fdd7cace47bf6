"""Brokers for tests of the Kafka source: one cluster for this folder, in one worker.

It ends with the last of these tests: three brokers that do nothing take a tenth of a processor.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from purgatory_connectors.kafka import kafka_source

from examples.kafka_cluster import ClusterUnavailable, KafkaCluster, kafka_jars
from tests.kafka import guarded
from tests.kafka.clients import ClusterClients
from tests.kafka.guarded import GuardedBrokers
from tests.kit.programs import skip_unless_required
from tests.quick_java import ensure_archive


@pytest.fixture(scope="session")
def kafka_brokers() -> Path:
    """Kafka's jars. If brokers cannot be started, the test is skipped, or fails if they are required."""
    try:
        jars = kafka_jars()
    except ClusterUnavailable as missing:
        skip_unless_required("KAFKA", missing)
    ensure_archive("kafka", jars)
    return jars


@pytest.fixture(scope="package")
def brokers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kafka")


@pytest.fixture(scope="package")
def three_brokers(kafka_brokers: Path, brokers_folder: Path) -> Iterator[KafkaCluster]:
    """Three brokers with two listeners each. A test that stops one starts it again."""
    settings: dict[str, object] = {"broker.session.timeout.ms": 3000, "offsets.topic.num.partitions": 12}
    settings |= {"offsets.retention.check.interval.ms": 500, "log.cleaner.backoff.ms": 200}
    settings |= {"auto.leader.rebalance.enable": "false"}  # a test moves the lead itself
    settings |= {"unclean.leader.election.enable": "false", "transaction.state.log.num.partitions": 4}
    settings |= {"group.share.min.heartbeat.interval.ms": 500, "group.share.heartbeat.interval.ms": 500}
    settings |= {"share.coordinator.state.topic.num.partitions": 4}
    settings |= guarded.broker_settings(brokers_folder)
    with KafkaCluster(brokers_folder, 3, settings, guard=guarded.PROTOCOL) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def frequent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources in this process report what they see ten times as often: most tests wait for several reports."""
    monkeypatch.setattr(kafka_source, "REPORT_S", 0.05)


@pytest.fixture
def clients(three_brokers: KafkaCluster) -> ClusterClients:
    return ClusterClients(three_brokers.bootstrap)


@pytest.fixture
def guarded_brokers(three_brokers: KafkaCluster, brokers_folder: Path, tmp_path: Path) -> GuardedBrokers:
    return GuardedBrokers(three_brokers, brokers_folder, tmp_path)


@pytest.fixture
def topic(clients: ClusterClients) -> str:
    """A topic with two partitions and three replicas, used by one test only."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    clients.create(name, 2, 3)
    return name
