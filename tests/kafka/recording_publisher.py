"""A publisher that records observations and reports instead of sending them to daemons."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from purgatory_connectors.kafka.kafka_source import KafkaSource
from purgatory_connectors.publisher.observation import (
    MarkName,
    Observation,
    PublishedMark,
    SeenReplicas,
    SourceState,
    StaleMarks,
)
from purgatory_connectors.publisher.publisher import Publisher

from purgatory.source_uri import SourceUri
from tests.kit.eventually import eventually


class RecordingPublisher(Publisher):
    """`marks` contains the newest observation of each mark. `told`: the marks that daemons have."""

    def __init__(self, told: Mapping[MarkName, int] | None = None) -> None:
        self.marks: dict[MarkName, int] = {}
        self.observed: list[Observation] = []
        self.replicas: dict[MarkName, SeenReplicas] = {}
        self.reported: tuple[SourceState, str, Sequence[StaleMarks], int] = (SourceState.LOADING, "", (), 0)
        self.report_count = 0
        self._told = dict(told or {})
        self._demand: frozenset[MarkName] = frozenset()
        self._demand_changed = asyncio.Event()

    def want(self, *names: MarkName) -> None:
        """Set the demand."""
        self._demand = frozenset(names)
        self._demand_changed.set()
        self._demand_changed = asyncio.Event()

    def observe(self, observations: Iterable[Observation]) -> None:
        for seen in observations:
            name = seen.topic, seen.partition
            self.observed.append(seen)
            if seen.offset is None:
                self.marks.pop(name, None)
                continue
            if seen.offset >= self.marks.get(name, -1) or seen.is_set_back_to:
                self.marks[name] = seen.offset

    def observe_replicas(self, replicas: Mapping[MarkName, SeenReplicas]) -> None:
        self.replicas.update(replicas)

    def report(self, state: SourceState, reason: str = "", stale: Sequence[StaleMarks] = (), lag_ms: int = 0) -> None:
        self.report_count += 1
        self.reported = state, reason, stale, lag_ms

    def published(self, topic_prefix: str) -> Mapping[MarkName, PublishedMark]:
        marks = self._told | self.marks
        return {name: PublishedMark(0, offset) for name, offset in marks.items() if name[0].startswith(topic_prefix)}

    def seen_of(self, topic: str, partition: int) -> list[Observation]:
        return [seen for seen in self.observed if (seen.topic, seen.partition) == (topic, partition)]

    def identities_of(self, topic: str, partition: int) -> set[str]:
        return {seen.identity for seen in self.seen_of(topic, partition)} - {""}

    async def until(self, condition: Callable[[], object], what: str = "") -> float:
        """Wait until the condition holds. Returns the elapsed time."""
        begun = time.monotonic()
        await eventually(condition, lambda: f"{what or 'it'} did not come; marks: {self.marks}; {self.reported}")
        return time.monotonic() - begun

    def stale_reason(self, topic: str, partition: int = 0) -> str:
        """Why the mark is stale in the last report; empty: it is not."""
        for entry in self.reported[2]:
            fits = topic == entry.topic_prefix if entry.exact else topic.startswith(entry.topic_prefix)
            if fits and (not entry.partitions or partition in entry.partitions):
                return entry.reason or "for no reason"
        return ""

    async def until_polled(self) -> None:
        """Wait until the source has polled once more, from beginning to end."""
        count = self.report_count
        await self.until(lambda: self.report_count >= count + 2, "a poll")

    async def until_live(self) -> None:
        await self.until(lambda: self.reported[0] == SourceState.LIVE, "live")


@asynccontextmanager
async def running_source(
    bootstrap: str, options: str = "", told: Mapping[MarkName, int] | None = None, *, is_live: bool = True
) -> AsyncIterator[tuple[KafkaSource, RecordingPublisher]]:
    """A running source of this cluster with its publisher, by default once it is live."""
    source = KafkaSource(SourceUri.parse(f"kafka://{bootstrap}{'?' if options else ''}{options}"))
    publisher = RecordingPublisher(told)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(source.run(publisher))
        try:
            if is_live:
                await publisher.until_live()
            yield source, publisher
        finally:
            task.cancel()
