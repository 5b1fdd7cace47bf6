"""The marks of share groups on real brokers: their start offsets."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from purgatory_client.sources.source_names import kafka_share
from purgatory_connectors.kafka.mark_names import MarkNames, ParsedName

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import QUIET, ClusterClients
from tests.kafka.recording_publisher import running_source
from tests.kit.eventually import PATIENCE_S

TAGS = ("tags", TaggedFields)
TEXT = CompactString("utf-8")
ERROR = (("error_code", Int16), ("error_message", TEXT))


class ResetAnswer(Response):
    API_KEY = 91
    API_VERSION = 0
    PARTITION = (("partition", Int32), *ERROR, TAGS)
    TOPIC = (("topic", TEXT), ("id_high", Int64), ("id_low", Int64), ("partitions", CompactArray(*PARTITION)), TAGS)
    SCHEMA = Schema(("throttle_time_ms", Int32), *ERROR, ("topics", CompactArray(*TOPIC)), TAGS)


class ResetStruct(RequestStruct):
    API_KEY = 91
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ResetAnswer
    PARTITION = (("partition", Int32), ("start_offset", Int64), TAGS)
    TOPIC = (("topic", TEXT), ("partitions", CompactArray(*PARTITION)), TAGS)
    SCHEMA = Schema(("group", TEXT), ("topics", CompactArray(*TOPIC)), TAGS)


class Reset(Request[ResetStruct]):
    """Sets the start offset of an empty share group on partition 0 of a topic."""

    API_KEY = 91

    def __init__(self, group: str, topic: str, offset: int) -> None:
        self._values: Any = group, [(topic, [(0, offset, {})], {})], {}

    def build(self, request_struct_class: type[ResetStruct]) -> ResetStruct:
        return request_struct_class(*self._values)


async def reset(bootstrap: str, group: str, topic: str, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer: Any = await admin._send_request(Reset(group, topic, offset), await admin.find_coordinator(group))
        assert answer.error_code == 0, answer
        assert answer.topics[0][3][0][1] == 0, answer
    finally:
        await admin.close()


class ShareReader:
    """A member of a share group that acknowledges one by one."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        self._consumer = ShareConsumer({**settings, **QUIET})
        self._consumer.subscribe([topic])

    def read(self, count: int) -> dict[int, Message]:
        """The next records, by offset. All of them are acquired and none is acknowledged."""
        found: dict[int, Message] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records were read"
            for message in self._consumer.poll(0.2):
                assert message.error() is None
                offset = message.offset()
                assert offset is not None
                found[offset] = message
        return found

    def acknowledge(self, message: Message, how: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        self._consumer.acknowledge(message, how)
        for error in self._consumer.commit_sync(30.0).values():
            assert error is None

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def reader(clients: ClusterClients, group: str, topic: str) -> Iterator[ShareReader]:
    """The only member of a group that begins with the first record."""
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    of_group = ConfigResource(ResourceType.GROUP, group, incremental_configs=[earliest])
    for future in clients.admin.incremental_alter_configs([of_group]).values():
        future.result()
    made = ShareReader(clients.bootstrap, group, topic)
    yield made
    made.close()


def test_names() -> None:
    """The names of share groups are distinct from those of consumer groups, and can be read back."""
    name = kafka_share("a/b", "orders")
    assert name == "kafka/share:a%2Fb/orders"
    assert MarkNames("kafka").parse(name) == ParsedName("a/b", "orders", is_share=True)
    wanted = MarkNames("kafka").wanted([(name, 3), ("kafka/a/orders", 1)])
    assert wanted.shares == {("a/b", "orders", 3)}
    assert wanted.commits == {("a", "orders", 1)}
    assert MarkNames("kafka").parse("kafka/share:/orders") is None


@pytest.mark.slow
async def test_a_mark_follows_acknowledgements(clients: ClusterClients, topic: str) -> None:
    """The mark passes no record that is not done, and reaches the end once all are done. A reset sets it back, a
    restarted source does not, and it goes with the topic.
    """
    group = f"share-{topic}"
    name = (kafka_share(group, topic), 0)
    await asyncio.to_thread(clients.produce, topic, 5)
    async with running_source(clients.bootstrap, f"topics={topic}") as (source, publisher):
        publisher.want(name)
        with reader(clients, group, topic) as member:
            records = await asyncio.to_thread(member.read, 5)
            for offset in (0, 2, 3):
                await asyncio.to_thread(member.acknowledge, records[offset])
            await publisher.until(lambda: name in publisher.marks, "the group has a mark")
            await asyncio.to_thread(member.acknowledge, records[4])
            # Brokers store the start offset with the next acknowledgement.
            await publisher.until(lambda: publisher.marks[name] == 1, "the gap holds the mark")
            ends = {(end.topic, end.partition): end.offset for end in await source.ends([name[0]])}
            assert ends == {name: 5}
            await asyncio.to_thread(member.acknowledge, records[1], AcknowledgeType.REJECT)
            await publisher.until(lambda: publisher.marks[name] == 5, "everything is done")
            await asyncio.to_thread(clients.produce, topic)
            records = await asyncio.to_thread(member.read, 1)
            publisher.observed.clear()
            await publisher.until(lambda: len(publisher.seen_of(*name)) > 3, "some polls")
            assert {(seen.offset, seen.is_set_back_to) for seen in publisher.seen_of(*name)} == {(5, False)}
            await asyncio.to_thread(member.acknowledge, records[5])
            await publisher.until(lambda: publisher.marks[name] == 6, "that record is done too")
        async with running_source(clients.bootstrap, f"topics={topic}", {name: 6}) as (_, restarted):
            await restarted.until(lambda: len(restarted.seen_of(*name)) > 2, "some polls while no operation waits")
            restarted.want(name)
            await restarted.until(lambda: len(restarted.seen_of(*name)) > 3, "some polls")
            assert {(seen.offset, seen.is_set_back_to) for seen in restarted.seen_of(*name)} == {(6, False)}
        await reset(clients.bootstrap, group, topic, 2)
        await publisher.until(lambda: publisher.marks[name] == 2, "the reset")
        assert any(seen.is_set_back_to for seen in publisher.seen_of(*name))
        assert len(publisher.identities[name]) == 1
        await asyncio.to_thread(clients.delete, topic)
        await publisher.until(lambda: name not in publisher.marks, "the topic is gone")


@pytest.mark.slow
async def test_brokers_that_hang(three_brokers: KafkaCluster, clients: ClusterClients, topic: str) -> None:
    """While the brokers hang, the marks of a share group are stale. A group that does not exist has no marks."""
    name, missing = (kafka_share(f"share-{topic}", topic), 0), (kafka_share("nobody", topic), 0)
    await asyncio.to_thread(clients.produce, topic)
    async with running_source(clients.bootstrap, f"topics={topic}") as (_, publisher):
        publisher.want(name, missing)
        with reader(clients, f"share-{topic}", topic) as member:
            records = await asyncio.to_thread(member.read, 1)
            await asyncio.to_thread(member.acknowledge, records[0])
        await publisher.until(lambda: publisher.marks.get(name) == 1, "the record is done")
        assert missing not in publisher.marks
        assert not publisher.stale_reason(*name)
        for broker in three_brokers.brokers:
            three_brokers.hang(broker)
        try:
            # Either the coordinator does not answer, or no broker answers at all: both are noticed, in any order.
            await publisher.until(lambda: " answer" in publisher.stale_reason(*name), "stale")
        finally:
            for broker in three_brokers.brokers:
                three_brokers.wake(broker)
        await publisher.until(lambda: not publisher.stale_reason(*name), "fresh")
