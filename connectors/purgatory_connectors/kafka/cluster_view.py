"""Queries a cluster for its topics, the leaders of their partitions, and the ends of the partitions.

librdkafka's calls block, so they run in a few threads. Each broker is queried separately, so that a broker that hangs
does not make the partitions of other brokers stale.
"""

import asyncio
import bisect
import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka.kafka_events import EventQueue
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.offset_records import Partition
from purgatory_connectors.publisher.observation import SeenReplicas

ANSWER_S: Final = 1.5
"""How long a broker may take to return the ends of partitions."""
METADATA_S: Final = 4.0
NAMED_MAX: Final = 5
"""Maximum number of missing topics that one look requests by name. An idle source looks every ten seconds."""
THREADS: Final = 8
LATEST: Final = -1
EARLIEST: Final = -2

_T = TypeVar("_T")


class EndSeen(NamedTuple):
    """The end of a partition. `offset` -1: unknown, and `error` is the reason. `leader_epoch` -1: not returned."""

    offset: int
    leader_epoch: int = -1
    error: str = ""
    code: int = 0


NOT_YET: Final = EndSeen(-1)
"""All records are older than the time asked for."""


class ClusterView:
    """Topics and partitions of a cluster. Connection errors are put into `events`."""

    def __init__(self, settings: KafkaSettings, events: EventQueue) -> None:
        self._settings = settings
        # read_uncommitted returns the high watermark; read_committed would return the last stable offset.
        self._consumer = Consumer(
            settings.librdkafka(isolation_level="read_uncommitted", error_cb=events.connection_failed)
        )
        self._committed_reader: Consumer | None = None
        self._threads = ThreadPoolExecutor(THREADS, "kafka-view")
        self._listing = asyncio.Lock()
        self._named_last = ""
        self.leaders: dict[Partition, int] = {}
        """Leader of each partition of each topic as of the last `look`; -1: none."""
        self.topics: dict[str, int] = {}
        """Number of partitions of each visible topic."""
        self.replicas: dict[Partition, SeenReplicas] = {}
        """Replicas of each partition that has a leader."""
        self.refused: dict[str, tuple[float, str]] = {}
        """Topics that may not be seen: since when (seconds), and why."""

    async def look(self, known: Collection[str] = (), wanted: Collection[str] = ()) -> None:
        """Update `leaders`, `topics`, `replicas` and `refused`. Raises SourceStale.

        Brokers leave out topics that may not be seen, unless they are requested by name. Each look requests all missing
        `known` topics by name, and some of the missing `wanted` and refused ones.
        """
        found = await self._listed()
        leaders: dict[Partition, int] = {}
        topics: dict[str, int] = {}
        replicas: dict[Partition, SeenReplicas] = {}
        for name, topic in found.topics.items():
            if topic.error is not None and topic.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
                continue
            topics[name] = len(topic.partitions)
            for number, at in topic.partitions.items():
                leaders[name, number] = at.leader
                if at.leader >= 0:
                    seen = SeenReplicas(at.leader, tuple(sorted(at.replicas)), tuple(sorted(at.isrs)))
                    replicas[name, number] = seen
        for name in [name for name in known if name not in topics and name not in self.refused]:
            await self.is_refused(name)
        for name in self._some({*self.refused, *wanted} - topics.keys()):
            await self.is_refused(name)
        self.refused = {name: why for name, why in self.refused.items() if name not in topics}
        self.leaders, self.topics, self.replicas = leaders, topics, replicas

    async def _listed(self, *topic: str) -> ClusterMetadata:
        # One call at a time: in librdkafka, concurrent calls first wait for one that times out, and then for their own
        # timeout.
        async with self._listing:
            try:
                return await self._run(self._consumer.list_topics, *topic, timeout=METADATA_S)
            except KafkaException as error:
                await self._run(self._consumer.poll, 0)  # the cause is reported only during a poll
                raise SourceStale(f"no broker answers: {error.args[0].str()}") from error

    def _some(self, names: set[str]) -> list[str]:
        """The next few of these names, in rotation."""
        ordered = sorted(names)
        first = bisect.bisect(ordered, self._named_last)
        some = [*ordered[first:], *ordered[:first]][:NAMED_MAX]
        self._named_last = some[-1] if some else ""
        return some

    async def is_refused(self, topic: str) -> bool:
        """Whether this topic may not be seen, found by requesting it by name. Updates `refused`. Raises SourceStale."""
        at = (await self._listed(topic)).topics.get(topic)
        if at is not None and at.error is not None and at.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.refused.setdefault(
                topic, (time.monotonic(), f"not authorized to see topic {topic!r}; allow Describe on it")
            )
            return True
        self.refused.pop(topic, None)
        return False

    async def refused_among(self, topics: set[str]) -> set[str]:
        """Which of these topics may not be seen: all of them while no broker answers."""
        refused = topics & self.refused.keys()
        try:
            return refused | {topic for topic in topics - refused if await self.is_refused(topic)}
        except SourceStale:
            return topics

    async def ends(
        self, partitions: Iterable[Partition], at: int = LATEST, *, is_stable: bool = False
    ) -> dict[Partition, EndSeen]:
        """The ends of partitions (LATEST: the high watermark; with `is_stable`, the last stable offset), their starts
        (EARLIEST), or the first offsets with records of at least a time (`at`: milliseconds since the epoch; NOT_YET:
        there are none). The result contains every partition.
        """
        by_leader: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in partitions:
            by_leader[self.leaders.get(partition, -1)].append(partition)
        ask = [self._ask(leader, names, at, is_stable=is_stable) for leader, names in by_leader.items()]
        answers: dict[Partition, EndSeen] = {}
        for found in await asyncio.gather(*ask):
            answers |= found
        return answers

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics. Topics without a known id are left out, as with brokers that do not support ids."""
        return {} if not topics else await self._run(self._describe, list(topics))

    async def close(self) -> None:
        await self._run(self._consumer.close)
        if self._committed_reader is not None:
            await self._run(self._committed_reader.close)
        self._threads.shutdown(wait=False)

    def _reader(self, *, is_stable: bool) -> Consumer:
        if not is_stable:
            return self._consumer
        if self._committed_reader is None:
            self._committed_reader = Consumer(self._settings.librdkafka(isolation_level="read_committed"))
        return self._committed_reader

    async def _ask(
        self, leader: int, partitions: list[Partition], at: int, *, is_stable: bool
    ) -> dict[Partition, EndSeen]:
        if leader < 0:
            gone = EndSeen(-1, error="it has no leader", code=KafkaError.LEADER_NOT_AVAILABLE)
            unknown = EndSeen(-1, error="there is no such partition", code=KafkaError.UNKNOWN_TOPIC_OR_PART)
            answers = {one: gone if one in self.leaders else unknown for one in partitions}
            for one in partitions:
                if one[0] in self.refused:
                    why = self.refused[one[0]][1]
                    answers[one] = EndSeen(-1, error=why, code=KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return answers
        wanted = [TopicPartition(topic, number, at) for topic, number in partitions]
        reader = self._reader(is_stable=is_stable)
        try:
            found = await self._run(reader.offsets_for_times, wanted, timeout=ANSWER_S)
        except KafkaException as error:
            what: KafkaError = error.args[0]
            if is_stable:
                await self._find_leaders(reader, partitions[0][0])
            return dict.fromkeys(partitions, EndSeen(-1, error=f"broker {leader} does not answer", code=what.code()))
        seen = _seen_at if at >= 0 else _seen
        return {(one.topic, one.partition): seen(one, leader) for one in found}

    async def _find_leaders(self, reader: Consumer, topic: str) -> None:
        """Let a reader look up the leaders of a topic, which it would do by itself only after ten seconds or more."""
        with contextlib.suppress(KafkaException):  # no broker answers: the next failed call tries again
            await self._run(reader.list_topics, topic, timeout=ANSWER_S)

    def _describe(self, topics: list[str]) -> dict[str, str]:
        # Each call uses a new client, because a client stays with its broker even after that broker dies. The client
        # must outlive its futures.
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
"""Settings that cause warnings in a client that is not a consumer."""


def _seen_at(at: TopicPartition, leader: int) -> EndSeen:
    return NOT_YET if at.error is None and at.offset == OFFSET_END else _seen(at, leader)


def _seen(at: TopicPartition, leader: int) -> EndSeen:
    if at.error is not None:
        return EndSeen(-1, error=at.error.str(), code=at.error.code())
    if at.offset < 0:
        return EndSeen(-1, error=f"broker {leader} does not know the offset", code=KafkaError.UNKNOWN)
    epoch: int | None = at.leader_epoch
    return EndSeen(at.offset, -1 if epoch is None else epoch)
