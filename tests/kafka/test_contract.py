"""The Kafka source passes the tests that every connector passes, with a group's committed offset."""

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from examples.kafka_cluster import KafkaCluster
from purgatory.testing import ConnectorContract, WatchedSystem
from tests.kafka.clients import QUIET, ClusterClients


class Group(WatchedSystem):
    """A group that has processed each record of a topic as soon as it is written."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster, self._clients = cluster, ClusterClients(cluster.bootstrap)
        self._topic = f"contract-{uuid.uuid4().hex[:8]}"
        self.uri = f"kafka://{cluster.bootstrap}?topics={self._topic}"
        self.ends, self.mark = f"kafka/contract/{self._topic}", f"kafka/contract/{self._topic}-0"
        self.consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "contract", **QUIET})
        self._written = 0
        self._clients.create(self._topic, 1, 3)

    def write(self) -> int:
        self._clients.produce(self._topic)
        self._written += 1
        self._clients.commit("contract", {(self._topic, 0): self._written})
        return self._written

    def position(self) -> int:
        return int(self.consumer.committed([TopicPartition(self._topic, 0)], 30)[0].offset)

    def stop(self) -> None:
        for broker in self._cluster.brokers:
            self._cluster.hang(broker)

    def start(self) -> None:
        for broker in self._cluster.brokers:
            self._cluster.wake(broker)

    def begin_again(self) -> None:
        self._written = 0
        self._clients.delete(self._topic)
        self._clients.create(self._topic, 1, 3)


@pytest.fixture(scope="module")
def system(three_brokers: KafkaCluster) -> Iterator[Group]:
    group = Group(three_brokers)
    yield group
    group.consumer.close()


@pytest.mark.slow
class TestContract(ConnectorContract): ...
