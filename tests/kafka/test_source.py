"""The Kafka source on three real brokers: commits, ends, transactions, recreated topics, and brokers that are down."""

import asyncio
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from purgatory_client.sources.source_names import kafka_share
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka import cluster_view
from purgatory_connectors.publisher.observation import SourceState

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import ClusterClients
from tests.kafka.recording_publisher import running_source

METHODS = ["commits=read", "commits=poll"]


def options(topic: str, more: str = "") -> str:
    return f"topics={topic}&{more}" if more else f"topics={topic}"


@pytest.mark.parametrize("method", METHODS)
async def test_commits_resets_and_deletions(clients: ClusterClients, topic: str, method: str) -> None:
    """Both methods see commits, resets (also of a group that had waits and has none now), and deletions. A deleted
    group has no marks until it commits again.
    """
    name = f"kafka/group-{topic}/{topic}", 1
    group, place = f"group-{topic}", (topic, 1)
    await asyncio.to_thread(clients.produce, topic, 10, 1)
    await asyncio.to_thread(clients.commit, group, {place: 4})
    async with running_source(clients.bootstrap, options(topic, method)) as (_, feed):
        feed.want(name)
        await feed.until(lambda: feed.marks.get(name) == 4, "the first commit")
        await asyncio.to_thread(clients.commit, group, {place: 9})
        await feed.until(lambda: feed.marks.get(name) == 9, "a commit")
        feed.want()
        await asyncio.to_thread(clients.reset, group, {place: 2})
        await feed.until(lambda: feed.marks.get(name) == 2, "the reset")
        seen = feed.seen_of(*name)
        assert [(one.offset, one.is_set_back_to) for one in seen] == [(4, False), (9, False), (2, True)]
        feed.want(name)
        await asyncio.to_thread(clients.delete_group, group)
        await feed.until(lambda: name not in feed.marks, "the end of the group")
        await asyncio.to_thread(clients.commit, group, {place: 3})
        await feed.until(lambda: feed.marks.get(name) == 3, "the group that came back")


async def test_low_latency_topics_do_not_wait_for_the_poll(clients: ClusterClients, topic: str) -> None:
    async with running_source(clients.bootstrap, options(topic, f"low-latency={topic}&poll-ms=10000")) as (_, feed):
        name = f"kafka/{topic}", 0
        feed.want(name)
        await feed.until(lambda: feed.marks.get(name) == 0)
        for end in range(1, 11):
            await asyncio.to_thread(clients.produce, topic)
            assert await feed.until(lambda end=end: feed.marks[name] >= end) < 9  # type: ignore[misc]


async def test_a_topic_made_anew_is_another_lineage(clients: ClusterClients, topic: str) -> None:
    ends = f"kafka/{topic}", 0
    await asyncio.to_thread(clients.produce, topic, 10)
    async with running_source(clients.bootstrap, options(topic)) as (_, feed):
        feed.want(ends)
        await feed.until(lambda: feed.marks.get(ends) == 10)
        await asyncio.to_thread(clients.delete, topic)
        await asyncio.to_thread(clients.create, topic, 2, 3)
        await asyncio.to_thread(clients.produce, topic, 12)
        await feed.until(lambda: len(feed.identities_of(*ends)) == 2, "the new topic's id")
        await feed.until(lambda: feed.marks.get(ends) == 12)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_group_that_stops_before_a_marker_has_caught_up(
    clients: ClusterClients, topic: str, is_committed: bool
) -> None:
    name = f"kafka/billing/{topic}", 0
    await asyncio.to_thread(clients.produce, topic, 3)
    with clients.transaction(topic, 4, name=topic) as producer:
        await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 3})
        async with running_source(clients.bootstrap, options(topic)) as (source, feed):
            feed.want(name)
            ends = await source.ends([name[0]])
            assert [(end.partition, end.offset) for end in ends] == [(0, 7)]  # the second partition is empty
            await feed.until(lambda: feed.marks.get(name) == 3)
            if is_committed:
                await asyncio.to_thread(producer.commit_transaction, 30)
                await asyncio.sleep(0.5)
                assert feed.marks[name] == 3  # visible records are left
                await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 7})
            else:
                await asyncio.to_thread(producer.abort_transaction, 30)
            await feed.until(lambda: feed.marks[name] == 8, "the mark behind the marker")
            await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 8})
            await feed.until_polled()
            await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 7})
            await feed.until(lambda: feed.marks[name] == 7, "a set-back from what was committed")
            assert [one.offset for one in feed.seen_of(*name) if one.is_set_back_to] == [7]


async def test_ends_leave_deleted_ranges_and_empty_partitions_out(clients: ClusterClients, topic: str) -> None:
    async with running_source(clients.bootstrap, options(topic, "poll-ms=10000")) as (source, _):
        await asyncio.to_thread(clients.produce, topic, 10)
        assert [one.offset for one in await source.ends([f"kafka/{topic}"])] == [10]
        await asyncio.to_thread(clients.delete_records, topic, 10)
        assert await source.ends([f"kafka/billing/{topic}"]) == []
        with pytest.raises(SourceStale, match="not among"):
            await source.ends(["kafka/another"])


@pytest.mark.parametrize("method", METHODS)
async def test_a_restart_does_not_lower_a_raised_mark(clients: ClusterClients, topic: str, method: str) -> None:
    """A daemon has 14, of which 10 is committed; above it are a marker and aborted records. The mark stays. The mark of
    a group that was reset while the source was down moves back.
    """
    await asyncio.to_thread(clients.produce, topic, 10)
    with clients.transaction(topic, 3, name=topic) as producer:
        await asyncio.to_thread(producer.abort_transaction, 30)
    await asyncio.to_thread(clients.commit, "raised", {(topic, 0): 10})
    await asyncio.to_thread(clients.commit, "reset", {(topic, 0): 6})
    raised, reset = (f"kafka/raised/{topic}", 0), (f"kafka/reset/{topic}", 0)
    async with running_source(clients.bootstrap, options(topic, method), told={raised: 14, reset: 9}) as (_, feed):
        feed.want(raised, reset)
        await feed.until(lambda: reset in feed.marks and raised in feed.marks)
        assert [(one.offset, one.is_set_back_to) for one in feed.seen_of(*raised)] == [(14, False)]
        assert [(one.offset, one.is_set_back_to) for one in feed.seen_of(*reset)] == [(6, True)]


async def test_an_open_transaction_holds_back_and_polls_make_up(clients: ClusterClients, topic: str) -> None:
    """Offsets sent to an open transaction hold back their partition of __consumer_offsets. A group there with waits is
    polled instead, and each reset is published once.
    """
    name = f"kafka/billing/{topic}", 0
    await asyncio.to_thread(clients.produce, topic, 10)
    async with running_source(clients.bootstrap, options(topic, "commits=read")) as (_, feed):
        feed.want(name)
        with clients.transaction(topic, 1, name=topic) as producer:
            consumer = Consumer({"bootstrap.servers": clients.bootstrap, "group.id": "billing"})
            metadata = consumer.consumer_group_metadata()
            await asyncio.to_thread(producer.send_offsets_to_transaction, [TopicPartition(topic, 1, 1)], metadata, 30)
            for offset in (5, 8):
                await asyncio.to_thread(clients.commit, "billing", {(topic, 0): offset})
            assert await feed.until(lambda: feed.marks.get(name) == 8, "a poll") < 20
            await feed.until(lambda: feed.reported[0] in {SourceState.HELD, SourceState.LIVE})
            await asyncio.to_thread(producer.commit_transaction, 30)
            consumer.close()
        await feed.until(lambda: feed.marks.get((f"kafka/billing/{topic}", 1)) == 1, "the transaction's offset")
        assert not [one for one in feed.seen_of(*name) if one.is_set_back_to]
        assert feed.marks[name] == 8


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_last_stable_offset_waits_for_the_transaction(
    clients: ClusterClients, topic: str, is_committed: bool
) -> None:
    """While a transaction is open, the last stable offset stays before it. Afterwards it is the end of the log, whether
    the records were committed or aborted. "Everything written before now" also means the end of the log.
    """
    ends, stable = (f"kafka/{topic}", 0), (f"kafka/stable:{topic}", 0)
    await asyncio.to_thread(clients.produce, topic, 3)
    async with running_source(clients.bootstrap, options(topic)) as (source, feed):
        assert stable not in feed.marks, "nobody has waited on it yet"
        feed.want(ends, stable)
        await feed.until(lambda: (feed.marks.get(ends), feed.marks.get(stable)) == (3, 3), "the same without one")
        with clients.transaction(topic, 6, name=topic) as producer:
            await feed.until(lambda: feed.marks[ends] == 9, "the end")
            assert [(one.topic, one.offset) for one in await source.ends([stable[0]])] == [(stable[0], 9)]
            assert feed.marks[stable] == 3
            await asyncio.to_thread(producer.commit_transaction if is_committed else producer.abort_transaction, 30)
            await feed.until(lambda: feed.marks[stable] == 10, "the last stable offset behind the marker")
        assert not [one for one in feed.seen_of(*stable) if one.is_set_back_to]


async def test_marks_of_hundreds_of_partitions_and_groups_are_complete(clients: ClusterClients) -> None:
    partitions, groups, each = 400, 40, 50
    topic = f"many-{uuid.uuid4().hex[:6]}"
    await asyncio.to_thread(clients.create, topic, partitions)
    truth = {(f"kafka/{topic}", number): 0 for number in range(partitions)}

    def commit(chosen: range) -> None:
        for group in chosen:
            offsets = {(topic, (group * 7 + number) % partitions): group + number for number in range(each)}
            clients.commit(f"many-{group}", offsets)
            truth.update({(f"kafka/many-{group}/{topic}", number): offset for (_, number), offset in offsets.items()})

    await asyncio.to_thread(commit, range(groups // 2))
    async with running_source(clients.bootstrap, f"topics={topic}") as (_, feed):
        await feed.until(lambda: feed.marks == truth, "what was there")
        await asyncio.to_thread(commit, range(groups // 2, groups))
        await feed.until(lambda: feed.marks == truth, "what has come")
        feed.want(*truth)
        await asyncio.to_thread(clients.produce, topic, 3, partitions - 1)
        await feed.until(lambda: feed.marks[f"kafka/{topic}", partitions - 1] == 3)
        assert not [seen for seen in feed.observed if seen.is_set_back_to or seen.offset is None]
    await asyncio.to_thread(clients.delete, topic)


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


async def test_no_mark_moves_while_brokers_hang(three_brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one broker keeps its connections and answers nothing, its partitions are seen again under their new
    leaders. While all hang, all marks are stale with the reason. Then they continue, and no commit is lost or reset.
    """
    monkeypatch.setattr(cluster_view, "METADATA_S", 1.0)
    # Each request of the producer that is sent to the hanging broker costs it this timeout, one after another.
    clients = ClusterClients(three_brokers.bootstrap, {"socket.timeout.ms": "5000"})
    topic = f"hung-{uuid.uuid4().hex[:6]}"
    ends = [(f"kafka/{topic}", number) for number in range(6)]
    commits, missing = (f"kafka/billing/{topic}", 0), (kafka_share("nobody", topic), 0)
    await asyncio.to_thread(clients.create, topic, 6, 3)
    async with running_source(clients.bootstrap, f"topics={topic}") as (source, feed):

        async def until_each_has(offset: int) -> None:
            """Write to each partition, and wait until all are seen there."""
            for number in range(6):
                await asyncio.to_thread(clients.produce, topic, 3, number)
            await feed.until(lambda: all(feed.marks.get(name) == offset for name in ends), "the ends")

        feed.want(*ends, commits, missing)
        await until_each_has(3)  # the producer gets its id and its connections before the broker hangs
        hung = clients.leader(topic)
        three_brokers.hang(hung)
        try:
            await feed.until(lambda: feed.stale_reason(*ends[0]) or feed.reported[0] == SourceState.STALE, "stale")
            await until_each_has(6)
        finally:
            three_brokers.wake(hung)
        await feed.until_live()
        await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 3})
        await feed.until(lambda: feed.marks.get(commits) == 3)
        marks = dict(feed.marks)
        for broker in three_brokers.brokers:
            three_brokers.hang(broker)
        try:
            # Either the coordinator does not answer, or no broker answers at all: both are noticed, in any order.
            await feed.until(lambda: " answer" in feed.stale_reason(*missing), "stale")
            await feed.until(lambda: feed.stale_reason(*ends[0]) and feed.stale_reason(*commits), "all of them")
            with pytest.raises(SourceStale, match=r"broker|seen"):
                await source.ends([ends[0][0]])
            assert feed.marks == marks
        finally:
            for broker in three_brokers.brokers:
                three_brokers.wake(broker)
        await feed.until_live()
        await until_each_has(9)
        await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 5})
        await feed.until(lambda: feed.marks[commits] == 5, "the group goes on")
        assert missing not in feed.marks
        assert not [seen for seen in feed.observed if seen.is_set_back_to or seen.offset is None]


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
