"""Questions to a cluster about its topics: which there are, who leads their partitions, where these end.

librdkafka's calls block, so they run in a few threads. Each broker is asked by itself: one that hangs must not make the
partitions of the others blind.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from purgatory_sources.errors import SourceBlind
from purgatory_sources.kafka.kafka_settings import KafkaSettings

ANSWER_S: Final = 1.5
"""How long a broker may take to say where partitions end."""
METADATA_S: Final = 4.0
THREADS: Final = 8
LATEST: Final = -1
EARLIEST: Final = -2

Partition = tuple[str, int]
_T = TypeVar("_T")


class EndSeen(NamedTuple):
    """`offset` -1: it could not be seen, and `error` says why. `leader_epoch` -1: not told."""

    offset: int
    leader_epoch: int = -1
    error: str = ""
    code: int = 0


class ClusterView:
    """`on_error` is called from librdkafka's threads with what befalls the connections."""

    def __init__(self, settings: KafkaSettings, on_error: Callable[[KafkaError], None]) -> None:
        self._settings = settings
        # read_uncommitted: the high watermark. read_committed would be told the last stable offset.
        self._consumer = Consumer(settings.librdkafka(isolation_level="read_uncommitted", error_cb=on_error))
        self._committed: Consumer | None = None
        self._threads = ThreadPoolExecutor(THREADS, "kafka-view")
        self.leaders: dict[Partition, int] = {}
        """Who leads each partition of each topic, -1: nobody. As of the last `look`."""
        self.topics: dict[str, int] = {}
        """How many partitions each topic has that may be seen."""
        self.refused: dict[str, str] = {}
        """Topics that may not be seen, and why."""

    async def look(self) -> None:
        """Renew `leaders` and `topics`. Raises SourceBlind."""
        try:
            found = await self._run(self._consumer.list_topics, timeout=METADATA_S)
        except KafkaException as error:
            raise SourceBlind(f"no broker answers: {error.args[0].str()}") from error
        leaders: dict[Partition, int] = {}
        topics: dict[str, int] = {}
        refused: dict[str, str] = {}
        for name, topic in found.topics.items():
            if topic.error is not None:
                if topic.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    refused[name] = f"may not see topic {name!r}; allow Describe on it"
                if topic.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
                    continue
            topics[name] = len(topic.partitions)
            for number, partition in topic.partitions.items():
                leaders[name, number] = partition.leader
        self.leaders, self.topics, self.refused = leaders, topics, refused

    async def ends(self, partitions: Iterable[Partition], at: int = LATEST) -> dict[Partition, EndSeen]:
        """Where partitions end (LATEST: the high watermark), or begin. Every one has an answer."""
        by_leader: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in partitions:
            by_leader[self.leaders.get(partition, -1)].append(partition)
        ask = [self._ask(leader, names, at) for leader, names in by_leader.items()]
        answers: dict[Partition, EndSeen] = {}
        for found in await asyncio.gather(*ask):
            answers |= found
        return answers

    async def last_stable(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Up to where whoever reads only what is committed can read; partitions that cannot be seen are left out."""
        if self._committed is None:
            self._committed = Consumer(self._settings.librdkafka(isolation_level="read_committed"))
        wanted = [TopicPartition(topic, number, LATEST) for topic, number in partitions]
        try:
            found = await self._run(self._committed.offsets_for_times, wanted, timeout=ANSWER_S)
        except KafkaException:
            return {}
        return {(at.topic, at.partition): at.offset for at in found if at.error is None and at.offset >= 0}

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics; those that cannot be told are left out, as by brokers that have none."""
        return {} if not topics else await self._run(self._describe, list(topics))

    async def close(self) -> None:
        await self._run(self._consumer.close)
        if self._committed is not None:
            await self._run(self._committed.close)
        self._threads.shutdown(wait=False)

    async def _ask(self, leader: int, partitions: list[Partition], at: int) -> dict[Partition, EndSeen]:
        if leader < 0:
            gone = EndSeen(-1, error="no broker leads it now", code=KafkaError.LEADER_NOT_AVAILABLE)
            unknown = EndSeen(-1, error="there is no such partition", code=KafkaError.UNKNOWN_TOPIC_OR_PART)
            return {one: gone if one in self.leaders else unknown for one in partitions}
        wanted = [TopicPartition(topic, number, at) for topic, number in partitions]
        try:
            found = await self._run(self._consumer.offsets_for_times, wanted, timeout=ANSWER_S)
        except KafkaException as error:
            what: KafkaError = error.args[0]
            return dict.fromkeys(partitions, EndSeen(-1, error=f"broker {leader} does not answer", code=what.code()))
        return {(one.topic, one.partition): _seen(one, leader) for one in found}

    def _describe(self, topics: list[str]) -> dict[str, str]:
        # A client of its own for each time: one whose broker dies stays with that broker. It must outlive its futures.
        admin = AdminClient(
            {key: value for key, value in self._settings.librdkafka().items() if key not in CONSUMER_ONLY}
        )
        futures = admin.describe_topics(TopicCollection(topics), request_timeout=METADATA_S)
        ids = {}
        for topic, future in futures.items():
            try:
                ids[topic] = str(future.result(METADATA_S + 1.0).topic_id)
            except (KafkaException, TimeoutError):
                continue
        return ids

    async def _run(self, call: Callable[..., _T], *arguments: Any, **named: Any) -> _T:  # noqa: ANN401 - passed on
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(call, *arguments, **named))


CONSUMER_ONLY: Final = {
    "group.id", "enable.auto.commit", "enable.auto.offset.store", "isolation.level", "allow.auto.create.topics",
}  # fmt: skip
"""Settings that a client which is no consumer warns of."""


def _seen(at: TopicPartition, leader: int) -> EndSeen:
    if at.error is not None:
        return EndSeen(-1, error=at.error.str(), code=at.error.code())
    if at.offset < 0:
        return EndSeen(-1, error=f"broker {leader} does not know", code=KafkaError.UNKNOWN)
    epoch: int | None = at.leader_epoch
    return EndSeen(at.offset, -1 if epoch is None else epoch)
