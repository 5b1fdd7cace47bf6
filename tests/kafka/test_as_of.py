"""Ends as of a time, on real brokers: timestamps out of order, gaps, aborted transactions; and through a daemon."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from purgatory_connectors.errors import SourceStale

from tests.kafka.clients import ClusterClients
from tests.kafka.recording_publisher import running_source
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import PATIENCE_S
from tests.sources.publishing import publishing, until_mark

HOUR_MS = 3_600_000


@pytest.fixture
def noon_ms() -> int:
    """A time that the tests treat as noon: two hours ago, so that brokers do not delete the records as too old."""
    return int(time.time() * 1_000) - 2 * HOUR_MS


def write(clients: ClusterClients, topic: str, times_ms: Sequence[int], keys: Sequence[str] | None = None) -> None:
    """Write a record with each timestamp to partition 0, each in a batch of its own."""
    for place, at_ms in enumerate(times_ms):
        key = None if keys is None else keys[place]
        clients.producer.produce(topic, b"record", key, partition=0, timestamp=at_ms)
        assert clients.producer.flush(90) == 0, "records were not acknowledged in 90 s"


def abort(clients: ClusterClients, topic: str, count: int, at_ms: int) -> None:
    """Write records in a transaction, and abort it: its marker takes an offset too."""
    with clients.transaction(topic, 0, name=topic) as producer:
        for _ in range(count):
            producer.produce(topic, b"aborted", partition=0, timestamp=at_ms)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)


async def test_timestamps_out_of_order(clients: ClusterClients, topic: str, noon_ms: int) -> None:
    """The end is the first record that is not older than the time, even if older ones follow; the end of the log if all
    are older; and there is none for a partition whose first record is not older, or which is empty.
    """
    await asyncio.to_thread(write, clients, topic, [noon_ms + minute for minute in (-30, 0, 20, -10, 40, 30)])
    async with running_source(clients.bootstrap, f"topics={topic}") as (source, _):

        async def end_at(minute: int) -> list[tuple[int, int]]:
            ends = await source.ends_at([f"kafka/billing/{topic}"], noon_ms + minute)
            return [(end.partition, end.offset) for end in ends]

        assert await end_at(-31) == await end_at(-30) == []
        assert await end_at(-29) == await end_at(0) == [(0, 1)]
        assert await end_at(1) == await end_at(20) == [(0, 2)]
        assert await end_at(21) == await end_at(40) == [(0, 4)]
        assert await end_at(41) == [(0, 6)]
        await asyncio.to_thread(clients.delete_records, topic, 4)
        assert await end_at(30) == []
        assert await end_at(41) == [(0, 6)]
        with pytest.raises(SourceStale, match="not among"):
            await source.ends_at(["kafka/another"], noon_ms)


async def test_a_group_with_only_aborted_records_before_the_time(
    clients: ClusterClients, topic: str, noon_ms: int
) -> None:
    """A group that has stopped has processed everything before noon if only aborted records are left there, although
    records of the afternoon are in the log. A group that has a record of the morning left has not.
    """
    await asyncio.to_thread(write, clients, topic, [noon_ms - 5, noon_ms - 4, noon_ms - 3])
    await asyncio.to_thread(abort, clients, topic, 4, noon_ms - 2)
    await asyncio.to_thread(write, clients, topic, [noon_ms + 1, noon_ms + 2])
    done, behind = (f"kafka/done/{topic}", 0), (f"kafka/behind/{topic}", 0)
    await asyncio.to_thread(clients.commit, "done", {(topic, 0): 3})
    await asyncio.to_thread(clients.commit, "behind", {(topic, 0): 2})
    async with running_source(clients.bootstrap, f"topics={topic}") as (source, feed):
        ends = await source.ends_at([done[0], behind[0]], noon_ms)
        assert [(end.topic, end.offset) for end in ends] == [(done[0], 7), (behind[0], 7)], "up to the marker"
        feed.want(done, behind)
        await feed.until(lambda: feed.marks.get(done) == 7, "everything before noon")
        assert feed.marks[behind] == 2
        await asyncio.to_thread(clients.commit, "behind", {(topic, 0): 3})
        await feed.until(lambda: feed.marks[behind] == 7, "the other group too")
        assert [end.offset for end in await source.ends_at([done[0]], int(time.time() * 1_000) + HOUR_MS)] == [10]
        await asyncio.to_thread(clients.commit, "done", {(topic, 0): 10})
        await feed.until(lambda: feed.marks[done] == 10)


async def test_a_log_with_gaps(clients: ClusterClients, topic: str, noon_ms: int) -> None:
    """In a compacted log, offsets before the time are gone: the end is the first remaining record that is not older,
    and a group that has read up to the gap has processed everything before.
    """
    compacted = f"{topic}-compacted"
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    await asyncio.to_thread(clients.create, compacted, 1, 3, settings)
    keys = ["a", "b", "b", "b", "b", "b"]
    await asyncio.to_thread(write, clients, compacted, [noon_ms - 9, *[noon_ms - 8] * 5], keys)
    # Only closed segments are compacted, and a segment closes when a younger record arrives.
    await asyncio.to_thread(write, clients, compacted, [noon_ms + 1_000, noon_ms + 2_000], ["b", "c"])
    name = f"kafka/billing/{compacted}", 0
    await asyncio.to_thread(clients.commit, "billing", {(compacted, 0): 1})
    async with running_source(clients.bootstrap, f"topics={compacted}") as (source, feed):
        assert [end.offset for end in await source.ends_at([name[0]], noon_ms)] == [6]
        feed.want(name)
        await feed.until(lambda: feed.marks.get(name) == 6, "compaction, after which the gap has nothing to read")


async def test_caught_up_as_of_a_time_needs_older_records_only(
    clients: ClusterClients, topic: str, start_daemon: StartDaemon, noon_ms: int
) -> None:
    await asyncio.to_thread(write, clients, topic, [noon_ms - 2, noon_ms - 1, noon_ms, noon_ms + 1])
    await asyncio.to_thread(clients.commit, "billing", {(topic, 0): 2})
    async with publishing(start_daemon(), f"kafka://{clients.bootstrap}?topics={topic}") as client:
        await until_mark(client, f"kafka/billing/{topic}", lambda mark: mark.high_watermark == 2)
        noon = datetime.fromtimestamp(noon_ms / 1_000, UTC)
        result = await client.caught_up("billing", [topic], timeout=PATIENCE_S, as_of=noon)
        assert result.partitions[f"kafka/billing/{topic}-0"].required_offset == 2
        assert list((await client.ends([f"kafka/billing/{topic}"])).offsets.values()) == [4]
