"""The Kafka source. Each run has a session: connections, watchers and readers, and the events between them."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from purgatory.source_uri import SourceUri
from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.kafka import kafka_events as events
from purgatory_connectors.kafka.cluster_view import EARLIEST, NOT_YET, ClusterView
from purgatory_connectors.kafka.consumer_threads import CommitReader, TopicFetcher
from purgatory_connectors.kafka.group_poller import GroupPoller
from purgatory_connectors.kafka.group_watch import GroupWatch
from purgatory_connectors.kafka.idle_groups import IdleGroups
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.mark_names import MarkNames
from purgatory_connectors.kafka.offset_records import Partition
from purgatory_connectors.kafka.share_groups import ShareGroups
from purgatory_connectors.kafka.topic_watch import TopicWatch
from purgatory_connectors.kafka.visibility import LogVisibility, report
from purgatory_connectors.publisher.observation import End, MarkName, Observation, PublishedMark, SourceState
from purgatory_connectors.publisher.publisher import Publisher, Source

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
    """Raises SourceRefused, SourceUriInvalid."""

    def __init__(self, uri: SourceUri) -> None:
        self.settings: Final = KafkaSettings.from_uri(uri)
        self.name = self.settings.name
        self.topic_prefixes = (f"{self.settings.label}/",)
        self._session: KafkaSession | None = None

    async def run(self, publisher: Publisher) -> None:
        session = self._session = KafkaSession(self.settings, publisher)
        try:
            await session.run()
        finally:
            self._session = None
            await session.close()

    async def ends(self, names: Sequence[str]) -> list[End]:
        return await self.ends_at(names, None)

    async def ends_at(self, names: Sequence[str], as_of_ms: int | None) -> list[End]:
        if self._session is None:
            raise SourceStale("the source is starting")
        return await self._session.ends(names, as_of_ms)


class KafkaSession:
    """Complete once it is created; `run` only starts its parts. `close` must be called in the end.

    Raises:
        SourceRefused: A setting cannot be used.
    """

    def __init__(self, settings: KafkaSettings, publisher: Publisher) -> None:
        self._settings: Final = settings
        self._publisher: Final = publisher
        self._names: Final = MarkNames(settings.label)
        self._begun_at: Final = time.monotonic()
        self._clue = ""
        arguments = settings.aiokafka()
        if arguments is None:
            if settings.commits == "poll":
                raise SourceRefused("commits=poll needs sasl.mechanism PLAIN or SCRAM, or no SASL")
            LOG.warning("groups cannot be polled with this sasl.mechanism: only commits in __consumer_offsets are read")
        self._poller: Final = None if arguments is None else GroupPoller(arguments)
        self._events: Final = events.EventQueue()
        try:
            self._view: Final = ClusterView(settings, self._events)
        except KafkaException as error:  # raised before connecting, for a setting that librdkafka rejects
            raise SourceRefused(f"the settings of the Kafka source cannot be used: {error.args[0].str()}") from error
        self._groups: Final = GroupWatch(self._view, self._names, settings, self._poller, publisher, self._events)
        self._shares: Final = ShareGroups(self._view, self._names, settings, self._poller, publisher)
        self._topics: Final = TopicWatch(self._view, self._groups, self._names, settings, publisher)
        self._idle: Final = IdleGroups(settings, self._groups, self._topics)
        self._logs: Final = LogVisibility(self._view, self._groups, self._idle)
        self._fetcher: Final = TopicFetcher(settings, self._events)
        self._reader: Final = CommitReader(settings, self._events)

    async def run(self) -> None:
        if self._settings.commits == "poll":
            self._groups.poll_only()
        else:
            self._reader.start()
        # A part that fails ends all others, and the publisher then starts a new session.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._handle_events())
            group.create_task(self._follow_demand())
            group.create_task(self._topics.run())
            group.create_task(self._groups.run())
            group.create_task(self._idle.run())
            group.create_task(self._shares.run())
            group.create_task(self._logs.run())
            group.create_task(self._report_on())
            group.create_task(self._reconcile_on())

    async def close(self) -> None:
        # Blocks until the thread has closed its consumer, which takes seconds if a broker hangs.
        await asyncio.to_thread(self._reader.stop)
        await asyncio.to_thread(self._fetcher.stop)
        await self._idle.close()
        if self._poller is not None:
            await self._poller.close()
        await self._view.close()

    async def _follow_demand(self) -> None:
        while True:
            wanted = self._names.wanted(self._publisher.demand)
            self._topics.want(wanted)
            self._groups.want(wanted)
            self._shares.want(wanted.shares)
            self._idle.want(wanted.commits)
            self._fetcher.want(wanted.partitions)
            await self._publisher.demand_changed()

    # Events.

    async def _handle_events(self) -> None:
        while True:
            self._handle(await self._events.get())

    def _handle(self, event: events.KafkaEvent) -> None:
        match event:
            # Batches must be applied in the order in which they were read, which one queue guarantees.
            case events.CommitsRead(batches):
                self._groups.apply(batches)
            case events.EndsFetched(ends):
                self._topics.publish(self._topics.marks.fetched(ends, time.monotonic()))
            case events.OffsetsUncertain(doubts):
                self._idle.doubt(doubts)
            case events.OffsetRemoved(topic):
                self._topics.suspect(topic)
            case events.OffsetsTopicFound(partition_count):
                self._groups.begin_reading(partition_count)
            case events.ReadingRefused(reason):
                self._stop_reading(reason)
            case events.ConnectionFailed(error):
                clue = CLUES.get(error.code())
                if clue is not None and clue != self._clue:
                    self._clue = clue
                    LOG.error("%s: %s", clue, error.str())
                self._topics.look_now()

    def _stop_reading(self, why: str) -> None:
        if self._settings.commits == "read" or self._poller is None:
            self._groups.refuse_reading(why)  # the reader retries
            return
        self._reader.give_up()
        LOG.warning("%s; polling the groups that have waits until then", why)
        self._groups.poll_only()

    # Ends.

    async def ends(self, names: Sequence[str], as_of_ms: int | None = None) -> list[End]:
        wanted = [(name, *self._checked_name(name)) for name in names]
        topics = {topic for _, _, topic in wanted}
        await self._view.look(wanted=topics)
        if any(self._topics.topics.get(topic) != self._view.topics.get(topic) for topic in topics):
            self._topics.look_now()
        for topic in topics - self._view.topics.keys():
            refused = self._view.refused.get(topic)
            raise SourceStale(refused[1] if refused else f"there is no topic {topic!r} in the cluster")
        partitions = {topic: [(topic, number) for number in range(self._view.topics[topic])] for topic in topics}
        spans = await self._spans([one for of_topic in partitions.values() for one in of_topic], as_of_ms)
        ends = []
        for name, group, topic in wanted:
            for partition in partitions[topic]:
                start, end = spans[partition]
                if end <= start:
                    continue  # the partition has nothing to read
                ends.append(End(name, partition[1], end))
                # A group may stop below the end because only markers or aborted records follow. Its mark is raised only
                # if that is checked, and a wait for this end would otherwise never complete.
                if group is not None:
                    self._idle.ask((group, *partition), end)
        return ends

    async def _spans(
        self, partitions: Sequence[Partition], as_of_ms: int | None = None
    ) -> dict[Partition, tuple[int, int]]:
        """Start and end of each partition, read after the call began. Raises SourceStale."""
        begun = time.monotonic()
        # Before the present ends: where no record is that young, the end also covers what was written in between.
        at_time = {} if as_of_ms is None else await self._view.ends(partitions, as_of_ms)
        for (topic, number), seen in at_time.items():
            if seen.error:
                raise SourceStale(f"the end of {topic}-{number} at {as_of_ms} is unknown: {seen.error}")
        latest, earliest = await asyncio.gather(self._view.ends(partitions), self._view.ends(partitions, EARLIEST))
        for (topic, number), seen in [*latest.items(), *earliest.items()]:
            if seen.offset < 0:
                raise SourceStale(f"the end of {topic}-{number} is unknown: {seen.error}")
        # These readings are as good as those of a poll, so they are published too.
        self._topics.publish(self._topics.marks.seen(latest, begun))
        ends = {one: latest[one] if at_time.get(one, NOT_YET) is NOT_YET else at_time[one] for one in partitions}
        return {one: (earliest[one].offset, ends[one].offset) for one in partitions}

    def _checked_name(self, name: str) -> tuple[str | None, str]:
        """The consumer group, if it is a mark of one, and the topic. Raises SourceStale."""
        parsed = self._names.parse(name)
        if parsed is None:
            raise SourceStale(f"not the name of a topic or group: {name!r}; write {self._names.prefix}[GROUP/]TOPIC")
        group, topic, _, is_share = parsed
        if not self._settings.selects(group, topic):
            raise SourceStale(f"{name!r} is not among the topics and groups that this source is configured to watch")
        return None if is_share else group, topic

    # Reports.

    async def _report_on(self) -> None:
        while True:
            state, reason, stale, lag_ms = report(self._names, self._topics, self._groups, self._logs, self._begun_at)
            if shares := self._shares.stale_marks():
                stale, reason = [*stale, *shares], reason or shares[0].reason
                state = SourceState.STALE if state is SourceState.LIVE else state
            if self._topics.stale_since is None and self._topics.has_looked.is_set():
                self._clue = ""
            if self._clue and stale:
                reason, state = f"{self._clue}; {reason}", SourceState.REFUSED
            self._publisher.report(state, reason[:1000], stale, lag_ms)
            await asyncio.sleep(REPORT_S)

    async def _reconcile_on(self) -> None:
        """Remove marks that daemons have but the cluster does not, and check marks above the committed offset."""
        pause_s = RECONCILE_S
        while True:
            await asyncio.sleep(pause_s)
            if self._topics.has_looked.is_set() and self._groups.is_loaded and self._topics.stale_since is None:
                found = [self._is_wrong(*one) for one in self._publisher.published(self._names.prefix).items()]
                # Each pass visits all marks, so the interval grows while nothing is found.
                pause_s = RECONCILE_S if any(found) else min(pause_s * 2, RECONCILE_MAX_S)

    def _is_wrong(self, name: MarkName, mark: PublishedMark) -> bool:
        """Whether a daemon's mark is gone, which is published, or uncertain, which is settled later."""
        parsed = self._names.parse(name[0])
        if parsed is None or not self._settings.selects(parsed.group, parsed.topic):
            return False  # a mark of another source
        group, topic, is_stable, is_share = parsed
        if topic in self._view.refused or is_share:
            return False
        is_gone = False
        if group is None:
            is_gone = self._topics.topics.get(topic, 0) <= name[1]
            if is_stable and not is_gone:
                self._topics.keep_stable((topic, name[1]))
        elif not self._groups.is_reading:
            self._groups.published.add(group)
        elif self._groups.knows(group):
            found = self._groups.marks.get((group, topic, name[1]))
            is_gone = found is None
            if found is not None and mark.offset > found[1]:
                doubts = self._groups.marks.question((group, topic, name[1]), mark.offset)
                self._idle.doubt(doubts)
                return bool(doubts)
        if is_gone:
            self._publisher.observe([Observation(*name, None)])
        return is_gone
