"""Which marks a Kafka source cannot see, and since when: its health report."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from purgatory_connectors.kafka.cluster_view import ClusterView, EndSeen
from purgatory_connectors.kafka.group_watch import FRESH_S, GroupWatch
from purgatory_connectors.kafka.idle_groups import IdleGroups
from purgatory_connectors.kafka.mark_names import MarkNames
from purgatory_connectors.kafka.offset_records import OFFSETS_TOPIC
from purgatory_connectors.kafka.topic_watch import IDLE_S, TopicWatch
from purgatory_connectors.publisher.observation import SourceState, StaleMarks

ENTRIES_MAX: Final = 500
"""Maximum number of entries in a report. Marks with pending waits come first."""
BEHIND_S: Final = 2.0
"""A log is late if its reader has not reached the end of this long ago, which readers do not report themselves."""

VisibilityReport = tuple[SourceState, str, Sequence[StaleMarks], int]
"""The arguments of a publisher's `report`: state, reason, stale marks, lag in milliseconds."""


class LogVisibility:
    """Compares read positions in `__consumer_offsets` with the ends, because readers do not report that they receive
    nothing. Times are seconds of the monotonic clock.
    """

    def __init__(self, view: ClusterView, groups: GroupWatch, idle: IdleGroups) -> None:
        self._view: Final = view
        self._groups: Final = groups
        self._idle: Final = idle
        self._targets: Final[dict[int, tuple[int, float]]] = {}
        self._failing: Final[dict[int, tuple[float, str]]] = {}
        self.held: Final[set[int]] = set()
        """Partitions that are held back by an open transaction."""

    async def run(self) -> None:
        while True:
            if self._groups.is_reading and self._groups.loaded:
                begun = time.monotonic()
                found = await self._view.ends([(OFFSETS_TOPIC, log) for log in self._groups.loaded])
                ends = {log: seen for (_, log), seen in found.items()}
                for log, seen in ends.items():
                    self._compare(log, seen, self._groups.marks.position(log), begun)
                await self._look_at_held(ends)
            is_busy = bool(self._groups.wanted.commits) or self.late(time.monotonic())
            await asyncio.sleep(BEHIND_S / 2 if is_busy else IDLE_S)

    async def _look_at_held(self, ends: Mapping[int, EndSeen]) -> None:
        """For partitions not read to the end: find out whether a transaction is open, or nothing visible is left."""
        now = time.monotonic()
        suspects = [log for log, (_, since) in self._targets.items() if now - since >= BEHIND_S / 2]
        suspects = [log for log in suspects if log in ends and ends[log].offset >= 0]
        if not suspects:
            return
        answers = await self._view.ends([(OFFSETS_TOPIC, log) for log in suspects], is_stable=True)
        spans = {}
        for partition, seen in answers.items():
            position = self._groups.marks.position(partition[1])
            if 0 <= seen.offset <= position:
                self.held.add(partition[1])
            elif seen.offset > position:
                self.held.discard(partition[1])
                spans[partition] = position, seen.offset
        for partition, is_drained in (await self._idle.probe(spans)).items():
            # Only transaction markers and aborted records are left up to the end, which a reader never receives.
            if is_drained and spans[partition][1] >= ends[partition[1]].offset:
                self._targets.pop(partition[1], None)
                self.held.discard(partition[1])

    def _compare(self, partition: int, seen: EndSeen, position: int, at: float) -> None:
        end = seen.offset
        if end < 0:
            self._failing.setdefault(partition, (at, seen.error))
            return
        self._failing.pop(partition, None)
        if position >= end:
            self._targets.pop(partition, None)
            self.held.discard(partition)
        elif partition not in self._targets or position >= self._targets[partition][0]:
            self._targets[partition] = (end, at)

    def late(self, now: float) -> dict[int, tuple[float, str]]:
        """Late partitions, including those held back: for how long (seconds), and why."""
        late = {
            partition: (now - since, "no records received, although the log has some")
            for partition, (_, since) in self._targets.items()
            if now - since >= BEHIND_S
        }
        for partition, (since, why) in self._failing.items():
            if now - since >= BEHIND_S / 2:
                late[partition] = (max(now - since, late.get(partition, (0.0, ""))[0]), why)
        return late


def report(
    names: MarkNames, topics: TopicWatch, groups: GroupWatch, logs: LogVisibility, begun_at: float
) -> VisibilityReport:
    """The current health of the source."""
    now = time.monotonic()
    if topics.stale_since is not None:
        stale = [StaleMarks("", stale_ms=_ms(now - topics.stale_since), reason=topics.stale_reason)]
        return SourceState.STALE, topics.stale_reason, stale, 0
    if not topics.has_looked.is_set() or not (groups.is_loaded or groups.reading_refused):
        stale = [StaleMarks("", stale_ms=_ms(now - begun_at), reason="loading")]
        return SourceState.LOADING, "loading existing data", stale, 0
    late = logs.late(now)
    held = {log: since for log, since in late.items() if log in logs.held}
    entries = [*_stale_topics(names, topics, now), *_stale_groups(names, groups, topics.refused(), late, now)]
    if not entries and held:
        lag_ms = _ms(max(since for since, _ in held.values()))
        return SourceState.HELD, "an open transaction holds back the commits of groups", (), lag_ms
    if not entries:
        return SourceState.LIVE, "", (), 0
    wanted = {names.group_prefix(group) for group in groups.wanted.groups()}
    wanted |= {name for topic, _ in topics.wanted.partitions if (name := names.of_topic(topic)) is not None}
    entries.sort(key=lambda entry: entry.topic_prefix not in wanted)
    are_groups = all(entry.topic_prefix.endswith("/") and entry.topic_prefix != names.prefix for entry in entries)
    state = SourceState.HELD if len(held) == len(late) > 0 and are_groups else SourceState.STALE
    refusals = {why for _, why in [*topics.refused().values(), *groups.refused.values()]}
    if groups.reading_refused is not None:
        refusals.add(groups.reading_refused[1])
    if all(entry.reason in refusals for entry in entries):
        state = SourceState.REFUSED
    return state, entries[0].reason, entries[:ENTRIES_MAX], max(entry.stale_ms for entry in entries)


def _stale_topics(names: MarkNames, topics: TopicWatch, now: float) -> Iterable[StaleMarks]:
    for marks, name_of in ((topics.marks, names.of_topic), (topics.stable, names.of_stable)):
        by_topic: defaultdict[str, list[tuple[int, float, str]]] = defaultdict(list)
        for (topic, number), (seconds, why) in marks.stale(now).items():
            by_topic[topic].append((number, seconds, why))
        for topic, partitions in by_topic.items():
            name = name_of(topic)
            if name is not None:
                oldest = max(partitions, key=lambda one: one[1])
                numbers = sorted(number for number, _, _ in partitions)
                yield StaleMarks(name, exact=True, partitions=numbers, stale_ms=_ms(oldest[1]), reason=oldest[2])
    for topic in topics.refused().keys() - topics.topics.keys():  # known topics have stale partitions
        since, why = topics.refused()[topic]
        for name in (names.of_topic(topic), names.of_stable(topic)):
            if name is not None:
                yield StaleMarks(name, exact=True, stale_ms=_ms(now - since), reason=why)


def _stale_groups(
    names: MarkNames,
    groups: GroupWatch,
    refused_topics: Mapping[str, tuple[float, str]],
    late: Mapping[int, tuple[float, str]],
    now: float,
) -> Iterable[StaleMarks]:
    if groups.reading_refused is not None:
        since, why = groups.reading_refused
        for group in groups.marks.groups() | groups.wanted.groups() | groups.published:
            yield StaleMarks(names.group_prefix(group), stale_ms=_ms(now - since), reason=why)
    elif not groups.is_reading:
        for group, (since, why) in {**groups.stale, **groups.refused}.items():
            yield StaleMarks(names.group_prefix(group), stale_ms=_ms(now - since), reason=why)
        # Coordinators leave out offsets of topics that may not be seen.
        for topic, (since, why) in refused_topics.items():
            for group in groups.marks.groups_on(topic) | {at[0] for at in groups.wanted.commits if at[1] == topic}:
                name = names.of_group(group, topic)
                if name is not None:
                    yield StaleMarks(name, exact=True, stale_ms=_ms(now - since), reason=why)
    elif late:
        for group in groups.marks.groups() | groups.wanted.groups():
            log = late.get(groups.marks.partition_of(group))
            silent_s = now - groups.answered_at(group)
            if log is not None and silent_s >= FRESH_S:
                yield StaleMarks(names.group_prefix(group), stale_ms=_ms(min(log[0], silent_s)), reason=log[1])


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))
