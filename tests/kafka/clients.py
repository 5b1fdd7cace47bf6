"""Test clients of a cluster: topics, records, transactions, commits of groups."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
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
from confluent_kafka.cimpl import NewTopic

from tests.kit.eventually import wait_until

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

        def is_created() -> bool:
            try:
                _wait_for(self.admin.create_topics([new], operation_timeout=60, request_timeout=60))
            except KafkaException as error:
                # The client drops a broker that is fenced for a moment, as on a busy machine. Its requests fail, and
                # may have arrived.
                code = error.args[0].code()
                if code not in {KafkaError._DESTROY_BROKER, KafkaError.TOPIC_ALREADY_EXISTS}:
                    raise
                return bool(code == KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        def is_complete() -> bool:
            return len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions) == partitions

        wait_until(is_created, f"{topic} is created")
        wait_until(is_complete, f"{topic} has {partitions} partitions")

    def delete(self, *topics: str) -> None:
        _wait_for(self.admin.delete_topics(list(topics), operation_timeout=60, request_timeout=60))

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

        def is_committed() -> bool:
            done = consumer.commit(offsets=wanted, asynchronous=False)
            assert not [one.error for one in done or [] if one.error is not None]
            return True

        try:  # a cluster's first group has no coordinator yet
            wait_until(is_committed, f"{group} has committed", but=KafkaException)
        finally:
            consumer.close()

    def allow(self, principal: str, *rights: tuple[ResourceType, str, AclOperation]) -> None:
        """Grant rights on resources by name; "*": all resources of the type."""
        pattern, anybody, allowed = ResourcePatternType.LITERAL, "*", AclPermissionType.ALLOW
        given = [(kind, name, pattern, f"User:{principal}", anybody, how, allowed) for kind, name, how in rights]
        _wait_for(self.admin.create_acls([AclBinding(*one) for one in given]))

    def revoke(self, principal: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
        pattern, anybody, allowed = ResourcePatternType.LITERAL, "*", AclPermissionType.ALLOW
        one = AclBindingFilter(kind, name, pattern, f"User:{principal}", anybody, operation, allowed)
        assert all(_wait_for(self.admin.delete_acls([one]))), "there was no such right"

    def delete_group(self, group: str) -> None:
        _wait_for(self.admin.delete_consumer_groups([group]))

    def reset(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set an idle group's offsets, as kafka-consumer-groups --reset-offsets does."""
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        _wait_for(self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]))

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        _wait_for(self.admin.delete_records([TopicPartition(topic, partition, before)]))


def _wait_for(futures: Mapping[Any, Future[Any]]) -> list[Any]:
    """The results of calls of an admin client."""
    return [future.result() for future in futures.values()]
