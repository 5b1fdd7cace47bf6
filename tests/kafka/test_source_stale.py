"""The Kafka source while brokers are down: stale marks, recovery, and truncated logs."""

import asyncio
import uuid

from purgatory_connectors.publisher.observation import SourceState

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import ClusterClients
from tests.kafka.recording_publisher import running_source


async def test_a_leader_that_is_killed_and_comes_back(three_brokers: KafkaCluster, clients: ClusterClients) -> None:
    """Two topics are on the killed broker, and one of them has no other replica: only this one is stale until the
    broker is back. The marks of the other continue under a new leader, nothing moves back, and commits are seen the
    whole time. Each change of leader and in-sync set is published.
    """
    everybody = (1, 2, 3)
    alone, many = f"alone-{uuid.uuid4().hex[:6]}", f"many-{uuid.uuid4().hex[:6]}"
    await asyncio.to_thread(clients.create, many, 1, 3)
    await asyncio.to_thread(clients.create, alone, 3, 1)
    group = f"group-{many}"
    names = [(f"kafka/{many}", 0), (f"kafka/{group}/{many}", 0), *((f"kafka/{alone}", number) for number in range(3))]
    await asyncio.to_thread(clients.produce, many, 5)
    async with running_source(clients.bootstrap, f"topics={alone},{many}") as (_, feed):
        feed.want(*names)
        await feed.until(lambda: feed.marks.get(names[0]) == 5)
        victim = clients.leader(many)
        assert feed.replicas[names[0]] == (victim, everybody, everybody)
        lost = [number for number in range(3) if clients.leader(alone, number) == victim]
        await asyncio.to_thread(three_brokers.kill, victim)
        try:
            await asyncio.to_thread(clients.produce, many, 5)
            await asyncio.to_thread(clients.commit, group, {(many, 0): 7})
            await feed.until(lambda: feed.marks.get(names[0]) == 10, "the end under the new leader")
            await feed.until(lambda: feed.marks.get(names[1]) == 7, "a commit while the broker is away")
            others = tuple(one for one in everybody if one != victim)
            await feed.until(lambda: feed.replicas[names[0]][1:] == (everybody, others), "the smaller set")
            assert feed.replicas[names[0]].leader_id in others
            if lost:
                await feed.until(lambda: feed.stale_reason(f"kafka/{alone}", lost[0]), "stale marks")
                assert feed.reported[0] == SourceState.STALE
                stale = next(entry for entry in feed.reported[2] if entry.topic_prefix == f"kafka/{alone}")
                assert list(stale.partitions) == lost
            await feed.until(lambda: not feed.stale_reason(f"kafka/{many}"))
        finally:
            await asyncio.to_thread(three_brokers.start, victim)
        await feed.until_live()
        await feed.until(lambda: feed.replicas[names[0]][1:] == (everybody, everybody), "all three in sync")
        for number in range(3):
            await asyncio.to_thread(clients.produce, alone, 2, number)
        await feed.until(lambda: all(feed.marks.get((f"kafka/{alone}", number)) == 2 for number in range(3)))
        assert not [seen for seen in feed.observed if seen.is_set_back_to or seen.offset is None]


async def test_a_broker_that_hangs(three_brokers: KafkaCluster) -> None:
    """A broker keeps its connections but answers nothing. Its partitions are seen again under their new leaders, and
    those of other brokers the whole time.
    """
    # Each request of the producer that is sent to the hanging broker costs it this timeout, one after another.
    clients = ClusterClients(three_brokers.bootstrap, {"socket.timeout.ms": "5000"})
    topic = f"hung-{uuid.uuid4().hex[:6]}"
    await asyncio.to_thread(clients.create, topic, 6, 3)
    async with running_source(clients.bootstrap, f"topics={topic}") as (_, feed):
        feed.want(*((f"kafka/{topic}", number) for number in range(6)))
        for number in range(6):  # the producer gets its id and its connections before the broker hangs
            await asyncio.to_thread(clients.produce, topic, 1, number)
        await feed.until(lambda: all(feed.marks.get((f"kafka/{topic}", number)) == 1 for number in range(6)))
        leaders = [clients.leader(topic, number) for number in range(6)]
        hung = leaders[0]
        three_brokers.hang(hung)
        try:
            await feed.until(
                lambda: feed.stale_reason(f"kafka/{topic}") or feed.reported[0] == SourceState.STALE, "stale"
            )
            for number in range(6):
                await asyncio.to_thread(clients.produce, topic, 3, number)
            await feed.until(lambda: all(feed.marks[f"kafka/{topic}", number] == 4 for number in range(6)), "ends")
        finally:
            three_brokers.wake(hung)
        await feed.until_live()
        assert not [seen for seen in feed.observed if seen.is_set_back_to]


async def test_an_unclean_election_cuts_topic_and_group(three_brokers: KafkaCluster, clients: ClusterClients) -> None:
    """A replica without the last records becomes the leader. The topic's mark moves back to its end, and so does the
    mark of the group, whose committed offset belongs to lost records: each with one break. The last stable offset also
    moves back, and is 0 until it has been polled again.
    """
    topic = f"cut-{uuid.uuid4().hex[:6]}"
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    await asyncio.to_thread(clients.create, topic, 1, 2, config)
    first, second = clients.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].replicas
    ends, commits = (f"kafka/{topic}", 0), (f"kafka/group-{topic}/{topic}", 0)
    stable = f"kafka/stable:{topic}", 0
    async with running_source(clients.bootstrap, f"topics={topic}") as (_, feed):
        feed.want(ends, commits, stable)
        await asyncio.to_thread(clients.produce, topic, 10)
        await feed.until(lambda: (feed.marks.get(ends), feed.marks.get(stable)) == (10, 10))
        try:
            await asyncio.to_thread(three_brokers.kill, second)
            await asyncio.to_thread(clients.produce, topic, 15)
            await asyncio.to_thread(clients.commit, f"group-{topic}", {(topic, 0): 25})
            await feed.until(lambda: (feed.marks.get(ends), feed.marks.get(commits)) == (25, 25), "more by one replica")
            await asyncio.to_thread(three_brokers.kill, first)
            # Two of three are down, so the controllers lack a quorum. The replica without the records starts first.
            await asyncio.to_thread(three_brokers.start, second)
            await feed.until(lambda: feed.marks.get(ends) == 10, "the topic's cut")
            await feed.until(lambda: feed.marks.get(commits) == 10, "the group's cut")
            await feed.until(lambda: feed.marks.get(stable) == 10, "the stable offset's cut")
        finally:
            await asyncio.to_thread(three_brokers.start, first, second)
        assert [seen.offset for seen in feed.seen_of(*ends) if seen.is_set_back_to] == [10]
        assert [seen.offset for seen in feed.seen_of(*commits) if seen.is_set_back_to] == [10]
        assert {seen.offset for seen in feed.seen_of(*stable) if seen.is_set_back_to} <= {0, 10}
        await feed.until_live()
        # A new producer: to the idempotent one, the truncation is a gap in its sequence numbers.
        await asyncio.to_thread(ClusterClients(clients.bootstrap).produce, topic, 5)
        await asyncio.to_thread(clients.commit, f"group-{topic}", {(topic, 0): 12})
        await feed.until(lambda: (feed.marks[ends], feed.marks[commits]) == (15, 12), "both go on")
