"""The marks of share groups on real brokers: their start offsets."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]
from purgatory_client.sources.source_names import kafka_share
from purgatory_connectors.kafka.mark_names import MarkNames, ParsedName

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import QUIET, ClusterClients
from tests.kafka.recording_publisher import running_source
from tests.kit.eventually import PATIENCE_S


class ShareReader:
    """A member of a share group that acknowledges one by one."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
        self.consumer = ShareConsumer({**settings, **QUIET})
        self.consumer.subscribe([topic])

    def read(self, count: int) -> dict[int, Message]:
        """The next records, by offset. All of them are acquired and none is acknowledged."""
        found: dict[int, Message] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records were read"
            for message in self.consumer.poll(0.2):
                assert message.error() is None
                offset = message.offset()
                assert offset is not None
                found[offset] = message
        return found

    def acknowledge(self, message: Message, how: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        self.consumer.acknowledge(message, how)
        for error in self.consumer.commit_sync(30.0).values():
            assert error is None


def reset_to_earliest(cluster: KafkaCluster, group: str, topic: str) -> None:
    """Reset an empty share group with Kafka's tool."""
    command = ["--bootstrap-server", cluster.bootstrap, "--group", group, "--topic", topic]
    tool = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    cluster.tool(tool, *command, "--reset-offsets", "--to-earliest", "--execute")


@contextmanager
def reader(clients: ClusterClients, group: str, topic: str) -> Iterator[ShareReader]:
    """The only member of a group that begins with the first record."""
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    of_group = ConfigResource(ResourceType.GROUP, group, incremental_configs=[earliest])
    for future in clients.admin.incremental_alter_configs([of_group]).values():
        future.result()
    made = ShareReader(clients.bootstrap, group, topic)
    yield made
    made.consumer.close()


def test_names_of_share_groups_are_distinct_and_read_back() -> None:
    name = kafka_share("a/b", "orders")
    assert name == "kafka/share:a%2Fb/orders"
    assert MarkNames("kafka").parse(name) == ParsedName("a/b", "orders", is_share=True)
    wanted = MarkNames("kafka").wanted([(name, 3), ("kafka/a/orders", 1)])
    assert wanted.shares == {("a/b", "orders", 3)}
    assert wanted.commits == {("a", "orders", 1)}
    assert MarkNames("kafka").parse("kafka/share:/orders") is None


@pytest.mark.slow
async def test_mark_follows_acknowledgements_until_a_reset(
    three_brokers: KafkaCluster, clients: ClusterClients, topic: str
) -> None:
    """The mark passes no record that is not done, and reaches the end once all are done. A restarted source does not
    set it back, and it goes with the topic.
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
        await asyncio.to_thread(reset_to_earliest, three_brokers, group, topic)
        await publisher.until(lambda: publisher.marks[name] == 0, "the reset")
        assert any(seen.is_set_back_to for seen in publisher.seen_of(*name))
        assert len(publisher.identities_of(*name)) == 1
        await asyncio.to_thread(clients.delete, topic)
        await publisher.until(lambda: name not in publisher.marks, "the topic is gone")
