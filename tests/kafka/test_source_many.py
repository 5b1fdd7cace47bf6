"""The Kafka source with a thousand partitions and two hundred groups at once."""

import asyncio
import uuid

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import ClusterClients
from tests.kafka.recording_publisher import running_source

PARTITIONS, GROUPS, EACH = 1_000, 200, 50


async def test_a_thousand_partitions_and_two_hundred_groups(three_brokers: KafkaCluster) -> None:
    """Each end and each committed offset has its mark, both those from before the start and those written later."""
    clients = ClusterClients(three_brokers.bootstrap)
    topic = f"many-{uuid.uuid4().hex[:6]}"
    await asyncio.to_thread(clients.create, topic, PARTITIONS)
    truth = {(f"kafka/{topic}", number): 0 for number in range(PARTITIONS)}

    def commit(groups: range) -> None:
        for group in groups:
            offsets = {(topic, (group * 7 + number) % PARTITIONS): group + number for number in range(EACH)}
            clients.commit(f"many-{group}", offsets)
            truth.update({(f"kafka/many-{group}/{topic}", number): offset for (_, number), offset in offsets.items()})

    await asyncio.to_thread(commit, range(GROUPS // 2))
    async with running_source(clients.bootstrap, f"topics={topic}") as (_, feed):
        await feed.until(lambda: feed.marks == truth, "what was there")
        await asyncio.to_thread(commit, range(GROUPS // 2, GROUPS))
        await feed.until(lambda: feed.marks == truth, "what has come")
        feed.want(*truth)
        await asyncio.to_thread(clients.produce, topic, 3, PARTITIONS - 1)
        await feed.until(lambda: feed.marks[f"kafka/{topic}", PARTITIONS - 1] == 3)
        assert not [seen for seen in feed.observed if seen.is_set_back_to or seen.offset is None]
    await asyncio.to_thread(clients.delete, topic)
