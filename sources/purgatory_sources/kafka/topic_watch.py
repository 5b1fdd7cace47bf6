"""Keeps the ends of topics up to date: those that somebody waits on every few milliseconds, the others now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from purgatory_sources.errors import SourceBlind
from purgatory_sources.feed.observation import Observation
from purgatory_sources.kafka.cluster_view import ClusterView, Partition
from purgatory_sources.kafka.kafka_settings import NameSelection
from purgatory_sources.kafka.mark_names import NOTHING, MarkNames, WantedMarks
from purgatory_sources.kafka.topic_marks import Moved, TopicMarks

LOG: Final = logging.getLogger(__name__)

IDLE_S: Final = 10.0
"""How often what nobody waits on is looked at: an idle source asks three brokers less than twice a second."""
LOOK_S: Final = 1.0
"""How often leaders and partitions are looked up while somebody waits."""
IDS_S: Final = 30.0
RETRY_S: Final = 0.25
GONE_LOOKS: Final = 2
"""A topic is gone when so many looks in a row do not find it: a broker that has just started may not know it yet."""


class TopicWatch:
    """`observe` takes what was seen. `on_cut` and `on_gone` are told of logs that were cut and topics that are gone, or
    made anew, before that is observed.
    """

    def __init__(
        self,
        view: ClusterView,
        names: MarkNames,
        topics: NameSelection,
        poll_ms: int,
        observe: Callable[[Iterable[Observation]], None],
        on_cut: Callable[[Partition, int], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._view = view
        self._names = names
        self._selection = topics
        self._poll_s = poll_ms / 1000
        self._observe = observe
        self._on_cut = on_cut
        self._on_gone = on_gone
        self.marks: Final = TopicMarks()
        self.ids: Final[dict[str, str]] = {}
        self._known: dict[str, int] = {}
        self._missing: defaultdict[str, int] = defaultdict(int)
        self._in_flight: set[int] = set()
        self._polls: set[asyncio.Task[None]] = set()
        self._ids_at = -IDS_S
        self.blind_since: float | None = None
        """Since when no broker at all has answered."""
        self.blind_reason = ""
        self.has_looked = asyncio.Event()
        """Set once all topics have been looked at."""
        self._wake = asyncio.Event()
        self._look_now = asyncio.Event()
        self.wanted: WantedMarks = NOTHING

    def want(self, wanted: WantedMarks) -> None:
        """What is waited on now."""
        self.wanted = wanted
        self._wake.set()

    def look_now(self) -> None:
        """Something is wrong with a connection: see who leads now, and what can be seen."""
        self._look_now.set()

    def suspect(self, topic: str) -> None:
        """It may have been deleted or made anew: a group's offsets on it are gone."""
        self.marks.suspects.add(topic)
        self._look_now.set()

    def known_topics(self) -> dict[str, int]:
        """How many partitions each selected topic has."""
        return self._known

    def refused(self) -> dict[str, str]:
        """Topics that may not be seen, and why."""
        return self._view.refused

    async def run(self) -> None:
        """Both loops, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_on())
            group.create_task(self._poll_on())

    async def _look_on(self) -> None:
        while True:
            self._look_now.clear()
            await self._look()
            is_busy = bool(self.wanted.logs()) or self.blind_since is not None
            waited = await _within(self._look_now.wait(), LOOK_S if is_busy else IDLE_S)
            if waited:  # changes come in bursts: one look is enough for several
                await asyncio.sleep(RETRY_S / 2)

    async def _look(self) -> None:
        try:
            await self._view.look()
        except SourceBlind as blind:
            self.blind_since = self.blind_since or time.monotonic()
            self.blind_reason = str(blind)
            return
        self.blind_since = None
        found = {name: count for name, count in self._view.topics.items() if self._is_ours(name)}
        for topic in self._known.keys() - found.keys():
            self._missing[topic] += 1
            if self._missing[topic] < GONE_LOOKS and self._known[topic]:
                found[topic] = self._known[topic]
                self._look_now.set()
            else:
                self._forget(topic)
        for topic in found.keys() & self._view.topics.keys():
            self._missing.pop(topic, None)
        new = found.keys() - self._known.keys()
        await self._look_at_ids(found, new)
        grown = any(found[topic] != self._known.get(topic) for topic in found)
        self._known = found
        if grown:
            await self._poll(self._partitions(found))
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
                LOG.warning("topic %s was made anew: its marks begin a new lineage", topic)
                self._forget(topic)
                self._known.pop(topic, None)
            self.ids[topic] = found_id
            self.marks.suspects.discard(topic)

    def _forget(self, topic: str) -> None:
        self._on_gone(topic)
        self._missing.pop(topic, None)
        self.ids.pop(topic, None)
        name = self._names.of_topic(topic)
        gone = self.marks.forget(topic)
        if name is not None:
            self._observe([Observation(name, number, None) for _, number in gone])

    async def _poll_on(self) -> None:
        idle_at = time.monotonic()
        while True:
            begun = time.monotonic()
            wanted = {one for one in self.wanted.logs() if self._is_ours(one[0])}
            if begun >= idle_at:
                wanted |= set(self._partitions(self._known))
                idle_at = begun + IDLE_S
            doubtful = {one for one in wanted if self.marks.is_doubtful(one)}
            self._start_polls(wanted)
            if doubtful:
                self._look_now.set()
                idle_at = min(idle_at, begun + RETRY_S)
            until = begun + self._poll_s if self.wanted.logs() else idle_at
            self._wake.clear()
            await _within(self._wake.wait(), max(0.001, until - time.monotonic()))

    def _start_polls(self, partitions: Iterable[Partition]) -> None:
        """One for each broker that has answered the last one: one that hangs does not hold up the others."""
        by_leader: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in partitions:
            by_leader[self._view.leaders.get(partition, -1)].append(partition)
        for leader, asked in by_leader.items():
            if leader in self._in_flight:
                continue
            self._in_flight.add(leader)
            task = asyncio.create_task(self._poll(asked))
            self._polls.add(task)
            task.add_done_callback(lambda done, leader=leader: self._polled(done, leader))  # type: ignore[misc]

    def _polled(self, task: asyncio.Task[None], leader: int) -> None:
        self._in_flight.discard(leader)
        self._polls.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("looking at ends failed", exc_info=task.exception())

    async def _poll(self, partitions: Iterable[Partition]) -> None:
        begun = time.monotonic()
        found = await self._view.ends(partitions)
        # A topic that was deleted meanwhile is not to come back by an answer that was under way.
        known = {one: end for one, end in found.items() if one[0] in self._view.topics}
        self.take(self.marks.seen(known, begun))

    def take(self, moved: Iterable[Moved]) -> None:
        """Hand on what has moved."""
        seen = []
        for partition, end, is_cut in moved:
            if is_cut:
                LOG.warning("%s-%d was cut: it ends at %d now", *partition, end)
                self._on_cut(partition, end)
            name = self._names.of_topic(partition[0])
            if name is not None:
                seen.append(Observation(name, partition[1], end, self.ids.get(partition[0], ""), is_cut))
        if seen:
            self._observe(seen)

    def _partitions(self, topics: dict[str, int]) -> list[Partition]:
        return [(topic, number) for topic, count in topics.items() for number in range(count)]

    def _is_ours(self, topic: str) -> bool:
        return self._selection.matches(topic) and (not topic.startswith("__") or topic in self._selection.patterns)


async def _within(waiting: object, seconds: float) -> bool:
    """Whether it came in that time."""
    try:
        async with asyncio.timeout(seconds):
            await waiting  # type: ignore[misc]
    except TimeoutError:
        return False
    return True
