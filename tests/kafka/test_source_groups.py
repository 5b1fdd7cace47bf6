"""The Kafka source with active groups: consumers that join and leave, offsets that expire, and the test kit."""

import asyncio
import random
import threading
import time
import uuid

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.commit import OffsetCommitRequest
from confluent_kafka import Consumer, KafkaException

from purgatory.testing import daemon_process
from tests.kafka.clients import QUIET, ClusterClients
from tests.kafka.recording_publisher import running_source

PARTITIONS = 4


class LiveGroup:
    """A group whose members run in one thread, subscribe to a topic, and commit each record."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "group.id": group, **QUIET}
        self._settings |= {"auto.offset.reset": "earliest", "enable.auto.commit": False, "heartbeat.interval.ms": 100}
        self._topic = topic
        self._members: list[Consumer] = []
        self.rebalances = 0

    def join(self) -> None:
        member = Consumer(self._settings)
        member.subscribe([self._topic], on_assign=self._count)
        self._members.append(member)

    def leave(self, place: int) -> None:
        self._members.pop(place % len(self._members)).close()

    def read(self, seconds: float) -> int:
        """Let all members read for a while. Returns the number of records read and committed."""
        count = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for member in self._members:
                message = member.poll(0.01)
                if message is None or message.error() is not None:
                    continue
                try:
                    member.commit(message=message, asynchronous=False)
                    count += 1
                except KafkaException:
                    continue  # its partition has moved to another member, which will read the record again
        return count

    def end(self) -> None:
        while self._members:
            self.leave(0)

    def _count(self, _: Consumer, __: object) -> None:
        self.rebalances += 1


async def test_both_methods_agree_over_rebalances(clients: ClusterClients) -> None:
    """While consumers join and leave, no mark moves back or disappears. Both methods end with the same offsets."""
    topic, chance = f"lively-{uuid.uuid4().hex[:6]}", random.Random(3)
    group = f"group-{topic}"
    await asyncio.to_thread(clients.create, topic, PARTITIONS)
    for number in range(PARTITIONS):
        await asyncio.to_thread(clients.produce, topic, 400, number)
    live = LiveGroup(clients.bootstrap, group, topic)
    names = [(f"kafka/{group}/{topic}", number) for number in range(PARTITIONS)]
    async with (
        running_source(clients.bootstrap, f"topics={topic}&groups={group}&commits=read") as (_, reading),
        running_source(clients.bootstrap, f"topics={topic}&groups={group}&commits=poll") as (_, polling),
    ):
        reading.want(*names)
        polling.want(*names)
        try:
            live.join()
            for step in range(6):
                members = len(live._members)
                if members == 1 or (members < 3 and chance.random() < 0.5):
                    live.join()
                else:
                    await asyncio.to_thread(live.leave, step)
                await asyncio.to_thread(live.read, 0.7)
            deadline = time.monotonic() + 30
            while not await asyncio.to_thread(live.read, 0.3):
                assert time.monotonic() < deadline, "nothing was read"
        finally:
            await asyncio.to_thread(live.end)
        truth = await asyncio.to_thread(clients.committed, group, topic, PARTITIONS)
        assert live.rebalances > 6
        assert truth
        for feed in (reading, polling):
            for number, offset in truth.items():
                await feed.until(lambda feed=feed, at=names[number], offset=offset: feed.marks.get(at) == offset)  # type: ignore[misc]
            assert not [seen for seen in feed.observed if seen.is_set_back_to or seen.offset is None]


async def commit_for(bootstrap: str, group: str, topic: str, offset: int, retention_ms: int) -> None:
    """Commit as old clients could: with an expiry time, whatever the broker's setting."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    await admin.start()
    try:
        coordinator = await admin.find_coordinator(group)
        request = OffsetCommitRequest(group, -1, "", retention_ms, [(topic, [(0, offset, "")])])
        answer = await admin._send_request(request, coordinator)
        assert [code for _, partitions in answer.topics for _, code in partitions] == [0]
    finally:
        await admin.close()


async def test_both_methods_see_offsets_expire(clients: ClusterClients) -> None:
    """Both methods remove an expired offset. The group's next commit is a mark again; other groups keep theirs."""
    topic = f"expiring-{uuid.uuid4().hex[:6]}"
    await asyncio.to_thread(clients.create, topic)
    await asyncio.to_thread(clients.produce, topic, 20)
    short, long = f"short-{topic}", f"long-{topic}"
    names = [(f"kafka/{group}/{topic}", 0) for group in (short, long)]
    await asyncio.to_thread(clients.commit, short, {(topic, 0): 1})
    async with (
        running_source(clients.bootstrap, f"topics={topic}&commits=read") as (_, reading),
        running_source(clients.bootstrap, f"topics={topic}&commits=poll") as (_, polling),
    ):
        for feed in (reading, polling):
            feed.want(*names)
        await asyncio.to_thread(clients.commit, long, {(topic, 0): 7})
        await commit_for(clients.bootstrap, short, topic, 9, retention_ms=3_000)
        for feed in (reading, polling):
            await feed.until(lambda feed=feed: [feed.marks.get(name) for name in names] == [9, 7], "both")  # type: ignore[misc]
        for feed in (reading, polling):
            await feed.until(lambda feed=feed: names[0] not in feed.marks, "the end of the short one")  # type: ignore[misc]
        await asyncio.to_thread(clients.commit, short, {(topic, 0): 4})
        for feed in (reading, polling):
            await feed.until(lambda feed=feed: [feed.marks.get(name) for name in names] == [4, 7], "its return")  # type: ignore[misc]


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


def test_processed_returns_once_the_group_has_committed_all_records(clients: ClusterClients, topic: str) -> None:
    group, rows, stop = f"copies-{topic}", [], threading.Event()

    def copy() -> None:
        """Copy one record after the other into the table, and commit each after it was copied."""
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": clients.bootstrap, **settings})
        consumer.subscribe([topic])
        while not stop.is_set():
            record = consumer.poll(0.05)
            if record is not None and record.error() is None:
                rows.append(record.value())
                consumer.commit(message=record, asynchronous=False)
        consumer.close()

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        with daemon_process("--source", f"kafka://{clients.bootstrap}?topics={topic}&groups={group}") as daemon:
            for number in range(1, 4):
                clients.produce(topic, 10)
                result = daemon.processed(group, topic, timeout=60)
                assert len(rows) == 10 * number
                assert result.partitions[f"kafka/{group}/{topic}-0"].reached_offset == 10 * number
    finally:
        stop.set()
        copying.join(60)
