"""Test clients of a cluster: topics, records, transactions, commits of groups."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

QUIET = {"log_level": 0, "socket.timeout.ms": 30_000, "reconnect.backoff.max.ms": 500}


class ClusterClients:
    """Clients of one cluster, with its connection settings. Each call returns once its effect is complete."""

    def __init__(self, bootstrap: str, connection: Mapping[str, str] | None = None) -> None:
        self.bootstrap = bootstrap
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, **QUIET, **(connection or {})}
        self.admin = AdminClient(self._common)
        self.producer = Producer({**self._common, "acks": "all", "enable.idempotence": True})

    def create(self, topic: str, partitions: int = 1, replicas: int = 1, config: dict[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, replicas, config=config or {})
        deadline = time.monotonic() + 60
        is_again = False
        while True:
            try:
                self.admin.create_topics([new], operation_timeout=60, request_timeout=60)[topic].result()
                break
            except KafkaException as error:
                code = error.args[0].code()
                if is_again and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    break
                # The client drops a broker that is fenced for a moment, as on a busy machine, and its requests fail.
                if code != KafkaError._DESTROY_BROKER or time.monotonic() > deadline:
                    raise
                is_again = True
        deadline = time.monotonic() + 60
        while len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions) < partitions:
            assert time.monotonic() < deadline, f"{topic} did not get {partitions} partitions"
            time.sleep(0.05)

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic], operation_timeout=60, request_timeout=60).values():
            future.result()

    def grow(self, topic: str, partitions: int) -> None:
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result()

    def produce(self, topic: str, count: int = 1, partition: int = 0) -> None:
        for number in range(count):
            self.producer.produce(topic, str(number).encode(), partition=partition)
        assert self.producer.flush(90) == 0, "records were not acknowledged in 90 s"

    @contextmanager
    def transaction(self, topic: str, count: int = 10, name: str = "tests") -> Iterator[Producer]:
        """An open transaction with some records; the caller commits or aborts it."""
        producer = Producer({**self._common, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, str(number).encode(), partition=0)
        producer.flush(30)
        yield producer

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit without members, as an operator's tool or a consumer with `assign` does."""
        consumer = Consumer({**self._common, "group.id": group})
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        deadline = time.monotonic() + 30
        try:
            while True:
                try:
                    done = consumer.commit(offsets=wanted, asynchronous=False)
                    break
                except KafkaException:  # no coordinator yet, as for a cluster's first group
                    assert time.monotonic() < deadline, f"{group} could not commit"
                    time.sleep(0.1)
            assert not [one.error for one in done or [] if one.error is not None]
        finally:
            consumer.close()

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """A group's committed offset of each of these partitions, from its coordinator."""
        consumer = Consumer({**self._common, "group.id": group})
        try:
            found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=30)
            return {at.partition: at.offset for at in found if at.offset >= 0}
        finally:
            consumer.close()

    def allow(self, principal: str, *rights: tuple[ResourceType, str, AclOperation]) -> None:
        """Grant rights on resources by name; "*": all resources of the type."""
        for future in self.admin.create_acls([_access(principal, *right) for right in rights]).values():
            future.result()

    def revoke(self, principal: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
        pattern, anybody, allowed = ResourcePatternType.LITERAL, "*", AclPermissionType.ALLOW
        one = AclBindingFilter(kind, name, pattern, f"User:{principal}", anybody, operation, allowed)
        for future in self.admin.delete_acls([one]).values():
            assert future.result(), "there was no such right"

    def delete_group(self, group: str) -> None:
        for future in self.admin.delete_consumer_groups([group]).values():
            future.result()

    def reset(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set an idle group's offsets, as kafka-consumer-groups --reset-offsets does."""
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        for future in self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]).values():
            future.result()

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        for future in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result()


def _access(principal: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    pattern, anybody, allowed = ResourcePatternType.LITERAL, "*", AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, f"User:{principal}", anybody, operation, allowed)
