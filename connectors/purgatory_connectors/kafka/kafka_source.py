"""The Kafka source: connects the watchers, readers and pollers of one cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.kafka.cluster_view import EARLIEST, ClusterView, EndSeen, Partition
from purgatory_connectors.kafka.commit_reader import OFFSETS_TOPIC, CommitBatch, CommitReader
from purgatory_connectors.kafka.group_marks import UncertainOffset
from purgatory_connectors.kafka.group_poller import GroupPoller
from purgatory_connectors.kafka.group_watch import GroupWatch
from purgatory_connectors.kafka.idle_groups import IdleGroups, Probe
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.mark_names import MarkNames
from purgatory_connectors.kafka.offset_records import CommitName
from purgatory_connectors.kafka.topic_fetcher import TopicFetcher
from purgatory_connectors.kafka.topic_watch import IDLE_S, TopicWatch
from purgatory_connectors.kafka.visibility import BEHIND_S, LogVisibility, report
from purgatory_connectors.kafka.visible_records import VisibleRecords
from purgatory_connectors.publisher.observation import MarkName, Observation, SeenReplicas
from purgatory_connectors.publisher.publisher import Publisher
from purgatory_connectors.publisher.reports import End, SourceState
from purgatory_connectors.publisher.source import Source

LOG: Final = logging.getLogger(__name__)

REPORT_S: Final = 0.5
RECONCILE_S: Final = 0.5
RECONCILE_MAX_S: Final = 10.0
CLUES: Final = {
    KafkaError._AUTHENTICATION: "authentication failed; look at security.protocol, sasl.mechanism, sasl.username",  # noqa: SLF001
    KafkaError._SSL: "TLS failed; look at security.protocol and ssl.ca.location",  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED: "authentication failed; look at sasl.username and sasl.password",
}
"""Messages for errors that waiting does not fix."""


class KafkaSource(Source):
    """Watches one cluster."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings: Final = settings
        self.name = settings.name
        self._names = MarkNames(settings.label)
        self.topic_prefixes = (self._names.prefix,)
        self._publisher: Publisher | None = None
        self._clue = ""
        self._begun_at = time.monotonic()

    async def run(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        settings = self.settings
        self._begun_at = time.monotonic()
        try:
            self._view = ClusterView(settings, self._on_error)
        except KafkaException as error:  # raised before connecting, for a setting that librdkafka rejects
            raise SourceRefused(f"the settings of the Kafka source cannot be used: {error.args[0].str()}") from error
        arguments = settings.aiokafka()
        if arguments is None:
            LOG.warning("groups cannot be polled with this sasl.mechanism: only what __consumer_offsets has is seen")
        self._poller = None if arguments is None else GroupPoller(arguments)
        self._topics = TopicWatch(
            self._view, self._names, settings.topics, settings.poll_ms, self._observe, self._observe_replicas,
            self._on_cut, self._on_gone,
        )  # fmt: skip
        self._groups = GroupWatch(
            self._names,
            settings.groups,
            settings.topics,
            self._poller,
            self._observe,
            self._on_doubts,
            self._on_removed,
            self._are_refused,
            lambda group: self._published_commits(self._names.group_prefix(group)),
        )
        self._drained = IdleGroups(
            self._groups.marks, self._topics.marks.end, self._groups.publish, self._groups.knows, self._open_probe
        )
        self._logs = LogVisibility()
        self._fetcher = None
        if settings.low_latency is not None:
            self._fetcher = TopicFetcher(settings, self._on_fetched)
        self._reader = CommitReader(
            settings, self._on_count, self._on_batches, self._on_reading_refused, self._on_error
        )
        try:
            await self._run(publisher)
        finally:
            self._publisher = None
            await self._close()

    async def _run(self, publisher: Publisher) -> None:
        if self.settings.commits == "poll":
            if self._poller is None:
                raise SourceRefused("commits=poll needs sasl.mechanism PLAIN or SCRAM, or no SASL")
            self._groups.poll_only()
        else:
            self._reader.start()
        publisher.on_demand(self._want)
        self._want(publisher.demand)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._topics.run())
            group.create_task(self._groups.run(self._ends_of_logs))
            group.create_task(self._drained.run())
            group.create_task(self._look_at_logs())
            group.create_task(self._report_on(publisher))
            group.create_task(self._reconcile_on(publisher))

    async def _close(self) -> None:
        await asyncio.to_thread(self._reader.stop)
        if self._fetcher is not None:
            await asyncio.to_thread(self._fetcher.stop)
        await self._drained.close()
        if self._poller is not None:
            await self._poller.close()
        await self._view.close()

    async def ends(self, names: Sequence[str]) -> list[End]:
        if self._publisher is None:
            raise SourceStale("the source is starting")
        asked: dict[str, list[tuple[str | None, int]]] = {}
        partitions: set[Partition] = set()
        wanted = [(name, *self._checked_name(name)) for name in names]
        await self._look_once({topic for _, _, topic in wanted})
        for name, group, topic in wanted:
            count = self._view.topics.get(topic)
            if count is None:
                refused = self._view.refused.get(topic)
                raise SourceStale(refused[1] if refused else f"there is no topic {topic!r} in the cluster")
            asked[name] = [(group, number) for number in range(count)]
            partitions |= {(topic, number) for number in range(count)}
        begun = time.monotonic()
        latest, earliest = await asyncio.gather(self._view.ends(partitions), self._view.ends(partitions, EARLIEST))
        for (topic, number), seen in [*latest.items(), *earliest.items()]:
            if seen.offset < 0:
                raise SourceStale(f"the end of {topic}-{number} cannot be seen: {seen.error}")
        self._topics.take(self._topics.marks.seen(latest, begun))
        ends: list[End] = []
        for name, group, topic in wanted:
            for _, number in asked[name]:
                end = latest[topic, number].offset
                if end > earliest[topic, number].offset:  # otherwise the partition has nothing to read
                    ends.append(End(name, number, end))
            if group is not None:
                self._drained.ask((group, topic, number) for _, number in asked[name])
        return ends

    def _checked_name(self, name: str) -> tuple[str | None, str]:
        parsed = self._names.parse(name)
        if parsed is None:
            raise SourceStale(f"{name!r} is no name of a topic or group: {self._names.prefix}[GROUP/]TOPIC")
        group, topic, _ = parsed
        if not self._is_selected(group, topic):
            raise SourceStale(f"{name!r} is not among the topics and groups that this source was told to watch")
        return group, topic

    def _is_selected(self, group: str | None, topic: str) -> bool:
        return self.settings.topics.matches(topic) and (group is None or self.settings.groups.matches(group))

    async def _look_once(self, topics: set[str]) -> None:
        """Look up topics now, so that new topics and partitions are known."""
        await self._view.look(wanted=topics)
        if any(self._topics.known_topics().get(topic) != self._view.topics.get(topic) for topic in topics):
            self._topics.look_now()

    # Inputs.

    def _want(self, names: Iterable[MarkName]) -> None:
        wanted = self._names.wanted(names)
        self._topics.want(wanted)
        self._groups.want(wanted)
        self._drained.want(wanted.commits)
        low_latency = self.settings.low_latency
        if self._fetcher is not None and low_latency is not None:
            self._fetcher.want({one for one in wanted.partitions if low_latency.matches(one[0])})

    def _observe(self, observations: Iterable[Observation]) -> None:
        if self._publisher is not None:
            self._publisher.observe(observations)

    def _observe_replicas(self, replicas: Mapping[MarkName, SeenReplicas]) -> None:
        if self._publisher is not None:
            self._publisher.observe_replicas(replicas)

    def _on_batches(self, batches: Sequence[CommitBatch]) -> None:
        self._soon(self._groups.take, batches)

    def _on_count(self, count: int) -> None:
        self._soon(self._take_count, count)

    def _take_count(self, count: int) -> None:
        self._groups.marks.partition_count = count
        self._groups.marks.remember_published(self._published_commits(self._names.prefix))

    def _published_commits(self, prefix: str) -> dict[CommitName, int]:
        """The marks of groups that daemons have under this prefix."""
        if self._publisher is None:
            return {}
        told = {}
        for (name, number), mark in self._publisher.published(prefix).items():
            parsed = self._names.parse(name)
            if parsed is not None and parsed.group is not None and self._is_selected(parsed.group, parsed.topic):
                told[parsed.group, parsed.topic, number] = mark.offset
        return told

    def _on_fetched(self, partition: Partition, end: int) -> None:
        self._soon(lambda: self._topics.take(self._topics.marks.fetched(partition, end, time.monotonic())))

    def _on_reading_refused(self, why: str) -> None:
        self._soon(self._stop_reading, why)

    def _stop_reading(self, why: str) -> None:
        if self.settings.commits == "read" or self._poller is None:
            if self._groups.reading_refused is None:
                LOG.error("%s", why)
            self._groups.refuse_reading(why, {name[0] for name in self._published_commits(self._names.prefix)})
            return
        self._reader.give_up()
        LOG.warning("%s; until then groups are polled, those that somebody waits on", why)
        self._groups.poll_only()

    def _on_error(self, error: KafkaError) -> None:
        clue = CLUES.get(error.code())
        if clue is not None and clue != self._clue:
            self._clue = clue
            LOG.error("%s: %s", clue, error.str())
        self._soon(self._topics.look_now)

    def _soon(self, call: object, *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]
        except RuntimeError:
            LOG.debug("the loop has ended before the threads")

    # Connections between the parts.

    def _on_cut(self, partition: Partition, end: int) -> None:
        self._groups.publish(self._groups.marks.cut(*partition, end, time.monotonic_ns() // 1_000_000))

    def _on_gone(self, topic: str) -> None:
        changes, groups = self._groups.marks.forget_topic(topic, time.monotonic_ns() // 1_000_000)
        self._groups.publish(changes)
        self._groups.ask_again(groups)

    def _on_doubts(self, doubts: Sequence[UncertainOffset]) -> None:
        self._drained.doubt(doubts)

    def _on_removed(self, topic: str) -> None:
        if topic in self._topics.known_topics():
            self._topics.suspect(topic)

    async def _are_refused(self, topics: set[str]) -> set[str]:
        refused = topics & self._view.refused.keys()
        try:
            return refused | {topic for topic in topics - refused if await self._view.is_refused(topic)}
        except SourceStale:
            return topics  # unknown, so known offsets are kept

    def _open_probe(self) -> Probe:
        return VisibleRecords(self.settings.librdkafka(), self.settings.isolation)

    async def _ends_of_logs(self, logs: set[int]) -> dict[int, int]:
        found = await self._view.ends([(OFFSETS_TOPIC, log) for log in logs])
        return {log: seen.offset for (_, log), seen in found.items() if seen.offset >= 0}

    # Reports.

    async def _look_at_logs(self) -> None:
        """Compare read positions with the ends of logs, because readers do not report that they receive nothing."""
        while True:
            count = self._groups.marks.partition_count
            if self._groups.is_reading and count and self._groups.loaded:
                begun = time.monotonic()
                found = await self._view.ends([(OFFSETS_TOPIC, log) for log in self._groups.loaded])
                for (_, log), seen in found.items():
                    self._logs.looked(log, seen.offset, self._groups.marks.position(log), begun, seen.error)
                await self._look_at_held(found)
            is_busy = bool(self._groups.wanted.commits) or self._logs.late(time.monotonic())
            await asyncio.sleep(BEHIND_S / 2 if is_busy else IDLE_S)

    async def _look_at_held(self, found: dict[Partition, EndSeen]) -> None:
        """For partitions not read to the end: find out whether a transaction is open, or nothing visible is left."""
        suspects = [log for log in self._logs.suspects(time.monotonic()) if found[OFFSETS_TOPIC, log].offset >= 0]
        if not suspects:
            return
        answers = await self._view.ends([(OFFSETS_TOPIC, log) for log in suspects], is_stable=True)
        stable = {log: seen.offset for log, seen in answers.items() if seen.offset >= 0}
        spans: dict[Partition, tuple[int, int]] = {}
        for (topic, log), end in stable.items():
            position = self._groups.marks.position(log)
            if end <= position:
                self._logs.held.add(log)
            else:
                self._logs.held.discard(log)
                spans[topic, log] = position, end
        for (_, log), is_drained in (await self._drained.probe(spans)).items():
            if is_drained and stable[OFFSETS_TOPIC, log] >= found[OFFSETS_TOPIC, log].offset:
                self._logs.nothing_visible(log)

    async def _report_on(self, publisher: Publisher) -> None:
        while True:
            now = report(self._names, self._topics, self._groups, self._logs, self._begun_at)
            if self._topics.stale_since is None and self._topics.has_looked.is_set():
                self._clue = ""
            reason, state = now.reason, now.state
            if self._clue and now.stale:
                reason, state = f"{self._clue}; {reason}", SourceState.REFUSED
            publisher.report(state, reason[:1000], now.stale, now.lag_ms)
            await asyncio.sleep(REPORT_S)

    async def _reconcile_on(self, publisher: Publisher) -> None:
        """Remove marks that daemons have but the cluster does not, and check marks above the committed offset."""
        pause_s = RECONCILE_S
        while True:
            await asyncio.sleep(pause_s)
            if self._topics.has_looked.is_set() and self._groups.is_loaded and self._topics.stale_since is None:
                has_found = self._reconcile(publisher)
                # Each pass visits all marks, so the interval grows while nothing is found.
                pause_s = RECONCILE_S if has_found else min(pause_s * 2, RECONCILE_MAX_S)

    def _reconcile(self, publisher: Publisher) -> bool:
        gone: list[Observation] = []
        doubts: list[UncertainOffset] = []
        known = self._topics.known_topics()
        for (name, number), mark in publisher.published(self._names.prefix).items():
            parsed = self._names.parse(name)
            if parsed is None or not self._is_selected(parsed.group, parsed.topic):
                continue  # a mark of another source
            group, topic, is_stable = parsed
            if topic in self._view.refused:
                continue
            if group is None:
                if known.get(topic, 0) <= number:
                    gone.append(Observation(name, number, None))
                elif is_stable:
                    self._topics.keep_stable((topic, number))
            elif not self._groups.is_reading:
                self._groups.published.add(group)
            elif self._groups.knows(group):
                found = self._groups.marks.get((group, topic, number))
                if found is None:
                    gone.append(Observation(name, number, None))
                elif mark.offset > found[1]:
                    doubts += self._groups.marks.question((group, topic, number), mark.offset)
        if gone:
            self._observe(gone)
        if doubts:
            self._drained.doubt(doubts)
        return bool(gone or doubts)
