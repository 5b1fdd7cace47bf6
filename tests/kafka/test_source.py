"""The Kafka source on three real brokers: commits, ends, transactions and recreated topics."""

import asyncio

import pytest
from confluent_kafka import Consumer, TopicPartition
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka import topic_watch
from purgatory_connectors.publisher.observation import SourceState

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


async def test_ends_are_seen_and_new_partitions_found(
    clients: ClusterClients, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition has its high watermark and the topic's id; added partitions are found without a restart."""
    monkeypatch.setattr(topic_watch, "IDLE_S", 1.0)
    async with running_source(clients.bootstrap, options(topic)) as (_, feed):
        await feed.until(lambda: feed.marks.get((f"kafka/{topic}", 1)) == 0, "empty partitions are at 0")
        feed.want((f"kafka/{topic}", 0))
        await asyncio.to_thread(clients.produce, topic, 5)
        await feed.until(lambda: feed.marks.get((f"kafka/{topic}", 0)) == 5)
        await asyncio.to_thread(clients.grow, topic, 3)
        await feed.until(lambda: feed.marks.get((f"kafka/{topic}", 2)) == 0, "the third partition")
        assert len(feed.identities[f"kafka/{topic}", 0]) == 1


async def test_low_latency_topics_do_not_wait_for_the_poll(clients: ClusterClients, topic: str) -> None:
    async with running_source(clients.bootstrap, options(topic, f"low-latency={topic}&poll-ms=10000")) as (_, feed):
        name = f"kafka/{topic}", 0
        feed.want(name)
        await feed.until(lambda: feed.marks.get(name) == 0)
        for end in range(1, 11):
            await asyncio.to_thread(clients.produce, topic)
            assert await feed.until(lambda end=end: feed.marks[name] >= end) < 9  # type: ignore[misc]


async def test_a_topic_made_anew_is_another_lineage(clients: ClusterClients, topic: str) -> None:
    """The topic's mark changes its identity. The group's mark is removed, and returns with new commits."""
    ends, commits = (f"kafka/{topic}", 0), (f"kafka/billing/{topic}", 0)
    await asyncio.to_thread(clients.produce, topic, 10)
    await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 10})
    async with running_source(clients.bootstrap, options(topic)) as (_, feed):
        feed.want(ends, commits)
        await feed.until(lambda: (feed.marks.get(ends), feed.marks.get(commits)) == (10, 10))
        await asyncio.to_thread(clients.delete, topic)
        await asyncio.to_thread(clients.create, topic, 2, 3)
        await asyncio.to_thread(clients.produce, topic, 12)
        await feed.until(lambda: len(feed.identities[ends]) == 2, "the new topic's id")
        await feed.until(lambda: feed.marks.get(ends) == 12)
        assert feed.marks.get(commits, 0) == 0  # the new topic is empty, so the group has nothing left to read
        await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 3})
        await feed.until(lambda: feed.marks.get(commits) == 3)


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


async def test_ends_cover_every_record_acknowledged_before_the_question(clients: ClusterClients, topic: str) -> None:
    """Deleted ranges are left out."""
    async with running_source(clients.bootstrap, options(topic, "poll-ms=10000")) as (source, _):
        for end in range(1, 11):
            await asyncio.to_thread(clients.produce, topic)
            assert [one.offset for one in await source.ends([f"kafka/{topic}"])] == [end]
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
