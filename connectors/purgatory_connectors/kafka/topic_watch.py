"""Keeps the ends of topics up to date: every few milliseconds for partitions with pending waits, rarely for others."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from purgatory_client.session.backoff import set_within

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.kafka.cluster_view import ClusterView, EndSeen
from purgatory_connectors.kafka.group_watch import GroupWatch
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.mark_names import NOTHING, MarkNames, WantedMarks
from purgatory_connectors.kafka.offset_records import Partition
from purgatory_connectors.publisher.observation import Observation
from purgatory_connectors.publisher.publisher import Publisher

GRACE_S: Final = 1.0
"""A partition is stale if it cannot be seen for longer than this; a change of leader takes less time."""


class Moved(NamedTuple):
    """The end of a partition has moved. `is_cut`: the log was truncated to this offset."""

    partition: Partition
    end: int
    is_cut: bool = False


@dataclass(slots=True)
class _LogEnd:
    seen_at: float
    not_before: float
    """Readings requested earlier belong to a log that has been truncated since."""
    end: int = -1
    leader_epoch: int = -1
    lower: int = -1
    """An end below the known one, seen once."""
    failing_since: float | None = None
    reason: str = ""


class TopicMarks:
    """The ends of all watched partitions. Times are seconds of one clock.

    Rejects outdated readings and detects truncated logs. No I/O.
    """

    def __init__(self) -> None:
        self._logs: Final[dict[Partition, _LogEnd]] = {}
        self.suspects: Final[set[str]] = set()
        """Topics that may have been recreated: an end or a leader epoch was lower. The caller empties the set."""

    def seen(self, found: Mapping[Partition, EndSeen], asked_at: float) -> list[Moved]:
        """Apply the results of a poll that began at `asked_at`."""
        moved = []
        for partition, end in found.items():
            log = self._logs.get(partition)
            if log is None:
                log = self._logs[partition] = _LogEnd(asked_at, asked_at)
            if asked_at < log.not_before:
                continue
            reason = end.error
            if end.offset >= 0 and 0 <= end.leader_epoch < log.leader_epoch:
                # Either a former leader that does not know yet that it was replaced, or a new topic of the same name.
                self.suspects.add(partition[0])
                reason = "a broker that is no longer its leader has answered"
            elif end.offset >= 0:
                log.seen_at, log.failing_since = max(asked_at, log.seen_at), None
                log.leader_epoch = max(log.leader_epoch, end.leader_epoch)
                moved += self._apply(partition, log, end.offset)
                continue
            if log.failing_since is None:
                log.failing_since = asked_at
            log.reason = reason
        return moved

    def _apply(self, partition: Partition, log: _LogEnd, end: int) -> list[Moved]:
        if end == log.end:
            log.lower = -1
            return []
        if end > log.end:
            log.end, log.lower = end, -1
            return [Moved(partition, end)]
        self.suspects.add(partition[0])
        if log.lower < 0:
            log.lower = end  # wait for a second reading: polls of one partition may overtake each other
            return []
        log.end, log.lower = end, -1
        return [Moved(partition, end, is_cut=True)]

    def fetched(self, ends: Mapping[Partition, int], now: float) -> list[Moved]:
        """Records or the ends of these logs were read, so each log has this end or a later one."""
        moved = []
        for partition, end in ends.items():
            log = self._logs.get(partition)
            if log is not None and end > log.end and log.lower < 0:
                log.end, log.seen_at, log.failing_since = end, max(now, log.seen_at), None
                moved.append(Moved(partition, end))
        return moved

    def forget(self, topic: str) -> list[Partition]:
        """Forget a topic that was deleted or replaced by another of the same name."""
        gone = [partition for partition in self._logs if partition[0] == topic]
        for partition in gone:
            del self._logs[partition]
        self.suspects.discard(topic)
        return gone

    def doubt(self, partition: Partition, now: float, leader_epoch: int) -> None:
        """The log was truncated to an unknown offset: ignore readings requested before `now`."""
        log = self._logs.get(partition)
        if log is not None:
            log.end, log.lower, log.not_before = -1, -1, now
            log.leader_epoch = max(log.leader_epoch, leader_epoch)

    def leader_epoch(self, partition: Partition) -> int:
        """Kafka's own leader epoch, which is not published; -1: not known."""
        log = self._logs.get(partition)
        return -1 if log is None else log.leader_epoch

    def end(self, partition: Partition) -> int:
        """The last known end; -1: not known."""
        log = self._logs.get(partition)
        return -1 if log is None else log.end

    def is_doubtful(self, partition: Partition) -> bool:
        """Whether the partition must be polled again at once."""
        log = self._logs.get(partition)
        return log is None or log.lower >= 0 or log.failing_since is not None

    def stale(self, now: float) -> dict[Partition, tuple[float, str]]:
        """Seconds since the last reading, and the reason, for each partition that has failed for more than GRACE_S."""
        return {
            partition: (now - log.seen_at, log.reason)
            for partition, log in self._logs.items()
            if log.failing_since is not None and now - log.failing_since >= GRACE_S
        }


LOG: Final = logging.getLogger(__name__)

IDLE_S: Final = 10.0
"""Polling interval without demand: an idle source sends under two requests per second to three brokers."""
LOOK_S: Final = 1.0
"""How often leaders and partitions are looked up while there is demand."""
IDS_S: Final = 30.0
RETRY_S: Final = 0.25
GONE_LOOKS: Final = 2
"""A topic is gone after this many looks without it: a broker that has just started may not know it yet."""


class TopicWatch:
    """Watches the ends of topics.

    A truncated log lowers the marks of groups, and a deleted topic removes them. `groups` is notified before the
    topic's own mark is published, so that no group seems to have reached the new end with an offset of the old log.
    """

    def __init__(
        self, view: ClusterView, groups: GroupWatch, names: MarkNames, settings: KafkaSettings, publisher: Publisher
    ) -> None:
        self._view: Final = view
        self._groups: Final = groups
        self._names: Final = names
        self._selection: Final = settings.topics
        self._poll_s: Final = settings.poll_ms / 1000
        self._publisher: Final = publisher
        self.marks: Final = TopicMarks()
        self.stable: Final = TopicMarks()
        """Last stable offsets of the partitions in `_stable`."""
        self._stable: Final[set[Partition]] = set()
        """Partitions whose last stable offset has had a wait or is known to a daemon."""
        self._refused: set[str] = set()
        self.ids: Final[dict[str, str]] = {}
        self.topics: dict[str, int] = {}
        """Number of partitions of each selected topic."""
        self._missing: defaultdict[str, int] = defaultdict(int)
        self._polls: Final[dict[tuple[int, bool], asyncio.Task[None]]] = {}
        """Polls in flight, by broker; True: of last stable offsets."""
        self._ids_at = -IDS_S
        self.stale_since: float | None = None
        """Time since which no broker has answered; None: one has."""
        self.stale_reason = ""
        self.has_looked = asyncio.Event()
        """Set after the first look at all topics."""
        self._wake = asyncio.Event()
        self._look_now = asyncio.Event()
        self.wanted: WantedMarks = NOTHING

    def want(self, wanted: WantedMarks) -> None:
        self.wanted = wanted
        self._stable.update(one for one in wanted.stable if self._is_ours(one[0]))
        self._wake.set()

    def keep_stable(self, partition: Partition) -> None:
        """A daemon has the last stable offset of this partition, so poll it at the idle interval."""
        self._stable.add(partition)

    def look_now(self) -> None:
        """A connection has failed: look up leaders and visible topics now."""
        self._look_now.set()

    def suspect(self, topic: str) -> None:
        """The topic may have been deleted or recreated, because a group's offsets on it are gone."""
        if topic in self.topics:
            self.marks.suspects.add(topic)
            self._look_now.set()

    def refused(self) -> dict[str, tuple[float, str]]:
        """Topics that may not be seen: since when, and why."""
        return self._view.refused

    async def run(self) -> None:
        """Run both loops until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_on())
            group.create_task(self._poll_on())

    async def _look_on(self) -> None:
        while True:
            self._look_now.clear()
            await self._look()
            is_busy = self._is_busy or self.stale_since is not None
            waited = await set_within(self._look_now, LOOK_S if is_busy else IDLE_S)
            if waited:  # changes come in bursts, and one look covers several
                await asyncio.sleep(RETRY_S / 2)

    @property
    def _is_busy(self) -> bool:
        return bool(self.wanted.partitions or self.wanted.commits or self.wanted.stable)

    async def _look(self) -> None:
        begun = time.monotonic()  # before the call: a missing answer takes seconds to time out
        try:
            wanted = self._ours(self.wanted.logs() | self.wanted.stable)
            await self._view.look(self.topics.keys(), {topic for topic, _ in wanted})
        except SourceStale as stale:
            self.stale_since = self.stale_since or begun
            self.stale_reason = str(stale)
            return
        self.stale_since = None
        found = {name: count for name, count in self._view.topics.items() if self._is_ours(name)}
        for topic in self.topics.keys() - found.keys():
            if topic in self._view.refused:  # it may still exist, so its marks are stale, not gone
                found[topic] = self.topics[topic]
                continue
            self._missing[topic] += 1
            if self._missing[topic] < GONE_LOOKS and self.topics[topic]:
                found[topic] = self.topics[topic]
                self._look_now.set()
            else:
                self._forget(topic)
        for topic in found.keys() & self._view.topics.keys():
            self._missing.pop(topic, None)
        new = found.keys() - self.topics.keys()
        await self._look_at_ids(found, new)
        refused = {topic for topic in found if topic in self._view.refused}
        grown = any(found[topic] != self.topics.get(topic) for topic in found)
        turned = refused ^ self._refused
        self.topics, self._refused = found, refused
        self._publisher.observe_replicas({
            (name, number): seen
            for (topic, number), seen in self._view.replicas.items()
            if topic in found and (name := self._names.of_topic(topic))
        })  # fmt: skip
        if grown:
            await self._poll(self._partitions(found))
        elif turned:
            await self._poll(self._partitions({topic: found[topic] for topic in turned if topic in found}))
        self.has_looked.set()

    async def _look_at_ids(self, found: Iterable[str], new: Iterable[str]) -> None:
        now = time.monotonic()
        wanted = {*new, *self.marks.suspects}
        if now - self._ids_at >= IDS_S:
            self._ids_at = now
            wanted |= set(found)
        wanted = {topic for topic in wanted if topic in self._view.topics}
        if not wanted:
            return
        for topic, found_id in (await self._view.topic_ids(wanted)).items():
            before = self.ids.get(topic)
            if before is not None and before != found_id:
                LOG.warning("topic %s was recreated; its marks start a new lineage", topic)
                self._forget(topic)
                self.topics.pop(topic, None)
            self.ids[topic] = found_id
            self.marks.suspects.discard(topic)

    def _forget(self, topic: str) -> None:
        self._groups.forget_topic(topic)
        self._missing.pop(topic, None)
        self.ids.pop(topic, None)
        gone = [(self._names.of_topic(topic), number) for _, number in self.marks.forget(topic)]
        stable = {one for one in self._stable if one[0] == topic}
        gone += [(self._names.of_stable(topic), number) for _, number in stable]
        self.stable.forget(topic)
        self._stable.difference_update(stable - self.wanted.stable)
        self._publisher.observe([Observation(name, number, None) for name, number in gone if name is not None])

    async def _poll_on(self) -> None:
        idle_at = time.monotonic()
        while True:
            begun = time.monotonic()
            wanted, stable = self._ours(self.wanted.logs()), self._stable & self.wanted.stable
            if begun >= idle_at:
                wanted |= set(self._partitions(self.topics))
                stable |= self._stable
                idle_at = begun + IDLE_S
            stable |= {one for one in self._stable if one[1] < self.topics.get(one[0], 0) and self.stable.end(one) < 0}
            is_doubtful = any(map(self.marks.is_doubtful, wanted)) or any(map(self.stable.is_doubtful, stable))
            self._start_polls(wanted)
            self._start_polls(stable, is_stable=True)
            if is_doubtful:
                self._look_now.set()
                idle_at = min(idle_at, begun + RETRY_S)
            until = begun + self._poll_s if self._is_busy else idle_at
            self._wake.clear()
            await set_within(self._wake, max(0.001, until - time.monotonic()))

    def _ours(self, logs: Iterable[Partition]) -> set[Partition]:
        return {one for one in logs if self._is_ours(one[0])}

    def _start_polls(self, partitions: Iterable[Partition], *, is_stable: bool = False) -> None:
        """Start one poll per broker whose last poll has ended: a broker that hangs does not delay the others."""
        by_leader: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in partitions:
            by_leader[self._view.leaders.get(partition, -1)].append(partition)
        for leader, asked in by_leader.items():
            which = leader, is_stable
            if which not in self._polls:
                task = self._polls[which] = asyncio.create_task(self._poll(asked, is_stable=is_stable))
                task.add_done_callback(partial(self._polled, which))

    def _polled(self, which: tuple[int, bool], task: asyncio.Task[None]) -> None:
        del self._polls[which]
        if not task.cancelled() and task.exception() is not None:
            LOG.error("querying log ends failed", exc_info=task.exception())

    async def _poll(self, partitions: Iterable[Partition], *, is_stable: bool = False) -> None:
        begun = time.monotonic()
        found = await self._view.ends(partitions, is_stable=is_stable)
        # A late answer must not bring back a topic that was deleted in the meantime.
        there = self._view.topics.keys() | self._view.refused.keys()
        known = {one: end for one, end in found.items() if one[0] in there}
        if is_stable:
            self._publish_stable(self.stable.seen(known, begun))
            self.marks.suspects.update(self.stable.suspects)
            self.stable.suspects.clear()
        else:
            self.publish(self.marks.seen(known, begun))

    def publish(self, moved: Iterable[Moved]) -> None:
        seen = []
        for partition, end, is_cut in moved:
            if is_cut:
                LOG.warning("%s-%d was truncated to offset %d", *partition, end)
                self._groups.cut(*partition, end)
                self._cut_stable(partition)
            name = self._names.of_topic(partition[0])
            if name is not None:
                seen.append(Observation(name, partition[1], end, self.ids.get(partition[0], ""), is_cut))
        if seen:
            self._publisher.observe(seen)

    def _publish_stable(self, moved: Iterable[Moved]) -> None:
        self._publisher.observe(
            Observation(name, number, end, self.ids.get(topic, ""), is_cut)
            for (topic, number), end, is_cut in moved
            if (name := self._names.of_stable(topic)) is not None
        )

    def _cut_stable(self, partition: Partition) -> None:
        """After a truncation the last stable offset may be below the new end. It is 0 until the next poll."""
        if partition not in self._stable:
            return
        self.stable.doubt(partition, time.monotonic(), self.marks.leader_epoch(partition))
        self._publish_stable([Moved(partition, 0, is_cut=True)])
        self._wake.set()

    def _partitions(self, topics: dict[str, int]) -> list[Partition]:
        return [(topic, number) for topic, count in topics.items() for number in range(count)]

    def _is_ours(self, topic: str) -> bool:
        return self._selection.matches(topic) and (not topic.startswith("__") or topic in self._selection.patterns)
