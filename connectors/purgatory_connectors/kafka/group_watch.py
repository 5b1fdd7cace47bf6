"""Keeps the marks of groups up to date, by reading `__consumer_offsets` with polls as a check, or by polls alone."""

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from purgatory_client.session.backoff import set_within

from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.kafka.cluster_view import ClusterView
from purgatory_connectors.kafka.group_marks import GroupMarks, GroupMove
from purgatory_connectors.kafka.group_poller import GroupPoller
from purgatory_connectors.kafka.kafka_events import CommitBatch, EventQueue, OffsetRemoved, OffsetsUncertain
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.mark_names import NOTHING, MarkNames, WantedMarks
from purgatory_connectors.kafka.offset_records import OFFSETS_TOPIC, CommitName
from purgatory_connectors.publisher.observation import Observation
from purgatory_connectors.publisher.publisher import Publisher

LOG: Final = logging.getLogger(__name__)

CHECK_S: Final = 1.5
"""Polling interval for groups with pending waits, in addition to reading the topic."""
POLL_MIN_S: Final = 0.05
POLL_MAX_S: Final = 1.0
"""Without the topic: polling intervals of a group that commits, and of one that has not committed for a while."""
IDLE_POLL_S: Final = 1.0
"""Without the topic: interval at which one group without waits is polled, in rotation."""
REFUSED_POLL_S: Final = 10.0
"""Polling interval of a group that may not be described."""
FRESH_S: Final = 2.5
"""A poll of a group compensates for an unreadable partition of the topic for this long."""


class _Poll(NamedTuple):
    """Time of the last answered poll of a group, time of the next poll, and the interval."""

    answered_at: float
    due_at: float
    every_s: float


_NEVER: Final = _Poll(-math.inf, -math.inf, 0.0)


class GroupWatch:
    """Watches the committed offsets of groups. Without a `poller`, groups cannot be polled."""

    def __init__(
        self,
        view: ClusterView,
        names: MarkNames,
        settings: KafkaSettings,
        poller: GroupPoller | None,
        publisher: Publisher,
        events: EventQueue,
    ) -> None:
        self._view: Final = view
        self._names: Final = names
        self._settings: Final = settings
        self._poller: Final = poller
        self._publisher: Final = publisher
        self._events: Final = events
        self._remembered: Final[set[str]] = set()
        self.marks: Final = GroupMarks()
        self.loaded: Final[set[int]] = set()
        self.is_reading = True
        """False: the topic may not be read, so groups are polled."""
        self.reading_refused: tuple[float, str] | None = None
        """Since when and why the topic may not be read, if polling must not replace it."""
        self.published: Final[set[str]] = set()
        """Groups of which daemons have marks, if the topic may not be read."""
        self.refused: Final[dict[str, tuple[float, str]]] = {}
        """Groups that may not be polled: since when, and why."""
        self.stale: Final[dict[str, tuple[float, str]]] = {}
        """Groups whose coordinator does not answer: since when, and why."""
        self._polls: Final[dict[str, _Poll]] = {}
        self._idle_at = 0.0
        self._idle_last = ""
        self._wake = asyncio.Event()
        self.wanted: WantedMarks = NOTHING

    @property
    def is_loaded(self) -> bool:
        """Whether all partitions of the topic have been read to the end."""
        return not self.is_reading or 0 < self.marks.partition_count == len(self.loaded)

    def want(self, wanted: WantedMarks) -> None:
        """Set the current demand. Groups without earlier demand are polled at once."""
        new = wanted.groups() - self.wanted.groups()
        self.wanted = wanted
        for group in new:
            self._polls.pop(group, None)
        self._wake.set()

    def poll_only(self) -> None:
        """Use polls only, because the topic may not be read."""
        self.is_reading = False
        self.marks.partition_count = 0
        self._wake.set()

    def begin_reading(self, partition_count: int) -> None:
        """The topic exists, with this number of partitions."""
        self.marks.partition_count = partition_count
        self.marks.remember_published(self._published_marks(self._names.prefix))

    def refuse_reading(self, why: str) -> None:
        """The topic may not be read, and polling must not replace it."""
        if self.reading_refused is None:
            LOG.error("%s", why)
            self.reading_refused = time.monotonic(), why
        self.loaded.clear()
        self.published.update(group for group, _, _ in self._published_marks(self._names.prefix))

    def _published_marks(self, prefix: str) -> dict[CommitName, int]:
        """The marks of watched groups that daemons have under this prefix."""
        found = {}
        for (name, number), mark in self._publisher.published(prefix).items():
            parsed = self._names.parse(name)
            if parsed is None or parsed.group is None or parsed.is_share:
                continue
            if self._settings.selects(parsed.group, parsed.topic):
                found[parsed.group, parsed.topic, number] = mark.offset
        return found

    def apply(self, batches: Sequence[CommitBatch]) -> None:
        self.reading_refused = None
        now = time.monotonic()
        changes: list[GroupMove] = []
        for batch in batches:
            values = {name: offset for name, offset in batch.values.items() if self._settings.selects(*name[:2])}
            if batch.is_load:
                there = {name: offset for name, offset in values.items() if offset is not None}
                moved, doubts = self.marks.loaded(batch.partition, there, batch.position, now)
                changes += moved
                self.loaded.add(batch.partition)
                if doubts:
                    self._events.put(OffsetsUncertain(doubts))
                continue
            changes += self.marks.committed(batch.partition, values, now)
            changes += self.marks.read_to(batch.partition, batch.position, now)
            for name, offset in values.items():
                if offset is None:
                    self._events.put(OffsetRemoved(name[1]))
        self.publish(changes)

    def publish(self, changes: Iterable[GroupMove]) -> None:
        seen = []
        for name, offset, is_set_back in changes:
            topic = self._names.of_group(*name[:2]) if name[0] else None
            if topic is not None:
                seen.append(Observation(topic, name[2], offset, "", is_set_back))
        if seen:
            self._publisher.observe(seen)

    def cut(self, topic: str, partition: int, end: int) -> None:
        self.publish(self.marks.cut(topic, partition, end, time.monotonic()))

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted or recreated. Its groups are polled again at once."""
        changes, groups = self.marks.forget_topic(topic, time.monotonic())
        self.publish(changes)
        for group in groups:
            self._polls.pop(group, None)
        self._wake.set()

    def knows(self, group: str) -> bool:
        """Whether all committed offsets of a group have been read once."""
        if not self.is_reading:
            return group in self._polls
        return self.marks.partition_of(group) in self.loaded

    def answered_at(self, group: str) -> float:
        """When the last answered poll of the group began; minus infinity: there is none."""
        return self._polls.get(group, _NEVER).answered_at

    async def run(self) -> None:
        if self._poller is None:
            return
        while True:
            now = time.monotonic()
            due = [group for group in self._polled_groups() if self._polls.get(group, _NEVER).due_at <= now]
            due += self._next_idle(now)
            if due:
                await self._poll(due, now)
            for group in self._polls.keys() - self._polled_groups():
                del self._polls[group]
                if group not in self._idle_groups():
                    self.stale.pop(group, None)
                    self.refused.pop(group, None)
            upcoming = min((poll.due_at for poll in self._polls.values()), default=now + CHECK_S)
            if not self.is_reading:
                upcoming = min(upcoming, self._idle_at)
            self._wake.clear()
            await set_within(self._wake, max(0.005, upcoming - time.monotonic()))

    def _polled_groups(self) -> set[str]:
        return {group for group in self.wanted.groups() if self._settings.groups.matches(group)}

    def _idle_groups(self) -> set[str]:
        """Groups that have marks but no waits. Without the topic, only polls can detect a reset of such a group."""
        if self.is_reading:
            return set()
        known = self.marks.groups() | self.published
        return {group for group in known if self._settings.groups.matches(group)} - self.wanted.groups()

    def _next_idle(self, now: float) -> list[str]:
        if self.is_reading or now < self._idle_at:
            return []
        self._idle_at = now + IDLE_POLL_S
        groups = sorted(self._idle_groups())
        if not groups:
            return []
        self._idle_last = next((group for group in groups if group > self._idle_last), groups[0])
        return [self._idle_last]

    async def _poll(self, groups: list[str], now: float) -> None:
        assert self._poller is not None
        found = await self._poller.offsets_of(groups)
        answers: dict[str, dict[CommitName, int]] = {}
        for group, answer in found.items():
            if isinstance(answer, Exception):
                self._fail(group, answer, now)
            else:
                self.stale.pop(group, None)
                self.refused.pop(group, None)
                answers[group] = {name: at for name, at in answer.items() if self._settings.selects(*name[:2])}
        await self._keep_unseen(answers)
        changed = {group: values for group, values in answers.items() if self.marks.differs(group, values)}
        # After the answers: every commit that is contained in an answer must be below its fence.
        fences = await self._fences(changed)
        applied_at = time.monotonic()
        for group, values in answers.items():
            before = self._polls.get(group)
            every = CHECK_S
            if not self.is_reading:
                every = POLL_MIN_S if group in changed or before is None else min(before.every_s * 1.5, POLL_MAX_S)
            self._polls[group] = _Poll(now, now + every, every)
            if group not in changed or (self.is_reading and group not in fences):
                continue
            if not self.is_reading and group not in self._remembered:
                self._remembered.add(group)
                self.marks.remember_published(self._published_marks(self._names.group_prefix(group)))
            self.publish(self.marks.polled(group, values, fences.get(group), applied_at))
        if doubts := self.marks.doubts(changed):
            self._events.put(OffsetsUncertain(doubts))

    async def _keep_unseen(self, answers: Mapping[str, dict[CommitName, int]]) -> None:
        """Keep offsets on topics that may not be seen, because coordinators leave out such topics."""
        lost = {name for group, values in answers.items() for name in self.marks.committed_names(group) - values.keys()}
        if not lost:
            return
        refused = await self._view.refused_among({name[1] for name in lost})
        for name in lost:
            known = self.marks.get(name)
            if name[1] in refused and known is not None:
                answers[name[0]][name] = known[0]

    async def _fences(self, groups: Mapping[str, object]) -> dict[str, int]:
        """For each group, the end of its partition of the topic, read after the call began. Empty without the topic."""
        if not self.is_reading or not self.loaded:
            return {}
        logs = {group: log for group in groups if (log := self.marks.partition_of(group)) in self.loaded}
        ends = await self._view.ends([(OFFSETS_TOPIC, log) for log in set(logs.values())])
        found = {group: ends[OFFSETS_TOPIC, log].offset for group, log in logs.items()}
        return {group: end for group, end in found.items() if end >= 0}

    def _fail(self, group: str, why: Exception, now: float) -> None:
        answered_at = self.answered_at(group)
        if isinstance(why, SourceRefused):
            if group not in self.refused:
                LOG.error("%s", why)
            self.refused.setdefault(group, (now if answered_at < 0 else answered_at, str(why)))
            self.stale.pop(group, None)
        elif isinstance(why, SourceStale):
            since = self.stale.get(group, (now, ""))[0]
            self.stale[group] = (since, str(why))
        every = POLL_MAX_S if isinstance(why, SourceStale) else REFUSED_POLL_S
        self._polls[group] = _Poll(answered_at, now + every, every)
