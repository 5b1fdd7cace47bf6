"""Keeps the marks of share groups up to date: their start offsets, or the ends of partitions without lag.

Share groups keep their state in a topic of its own with a format that may change, so it is not read. Their groups are
not discovered: one is polled once an operation waits on it, or a daemon has marks of it.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from purgatory_client.session.backoff import set_within

from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.kafka.cluster_view import ClusterView
from purgatory_connectors.kafka.group_poller import GroupPoller, ShareStart
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.mark_names import MarkNames
from purgatory_connectors.kafka.offset_records import CommitName, Partition
from purgatory_connectors.publisher.mark_rules import MarkMove, RisingMarks
from purgatory_connectors.publisher.observation import Observation, StaleMarks
from purgatory_connectors.publisher.publisher import Publisher

IDLE_POLL_S: Final = 1.0
"""Interval for groups without waits."""


class ShareGroups:
    """Polls share groups. Without a `poller`, there are no marks of them."""

    def __init__(
        self,
        view: ClusterView,
        names: MarkNames,
        settings: KafkaSettings,
        poller: GroupPoller | None,
        publisher: Publisher,
    ) -> None:
        self._view: Final = view
        self._names: Final = names
        self._settings: Final = settings
        self._poller: Final = poller
        self._publisher: Final = publisher
        self._wanted: frozenset[CommitName] = frozenset()
        self._groups: Final[dict[str, _Group]] = {}
        self._stale: Final[dict[str, tuple[float, str]]] = {}
        self._idle_at = 0.0
        self._wake: Final = asyncio.Event()

    def want(self, shares: Iterable[CommitName]) -> None:
        self._wanted = frozenset(name for name in shares if self._settings.selects(*name[:2]))
        if self._wanted:
            self._wake.set()

    async def run(self) -> None:
        while self._poller is not None:
            began, groups = time.monotonic(), {group for group, _, _ in self._wanted}
            self._wake.clear()
            if began >= self._idle_at:
                self._idle_at = began + IDLE_POLL_S
                groups |= self._published().keys()
                for group in (self._stale.keys() | self._groups.keys()) - groups:
                    self._stale.pop(group, None)
                    self._groups.pop(group, None)
            await asyncio.gather(*(self._poll(self._poller, group) for group in groups))
            if self._wanted:
                await asyncio.sleep(max(0.005, began + self._settings.poll_ms / 1000 - time.monotonic()))
                continue
            await set_within(self._wake, self._idle_at - time.monotonic())

    def stale_marks(self) -> list[StaleMarks]:
        now = time.monotonic()
        return [
            StaleMarks(self._names.share_prefix(group), stale_ms=int((now - since) * 1000), reason=reason)
            for group, (since, reason) in self._stale.items()
        ]

    def _published(self) -> dict[str, dict[Partition, int]]:
        """The marks that daemons have, by group."""
        found: dict[str, dict[Partition, int]] = {}
        for (name, number), mark in self._publisher.published(self._names.shares).items():
            parsed = self._names.parse(name)
            if parsed is not None and parsed.group is not None and self._settings.selects(*parsed[:2]):
                found.setdefault(parsed.group, {})[parsed.topic, number] = mark.offset
        return found

    async def _poll(self, poller: GroupPoller, group: str) -> None:
        began = time.monotonic()
        published = {} if group in self._groups else self._published().get(group, {})
        try:
            starts, ends = await self._read(poller, group, published)
        except (SourceStale, SourceRefused) as error:
            self._stale.setdefault(group, (began, str(error)))
            return
        self._stale.pop(group, None)
        state = self._groups.setdefault(group, _Group(published))
        self._publisher.observe(
            Observation(name, number, offset, "" if offset is None else starts[topic, number].topic_id, is_back)
            for (topic, number), offset, is_back in state.apply(starts, ends)
            if (name := self._names.of_share(group, topic)) is not None
        )

    async def _read(
        self, poller: GroupPoller, group: str, published: Iterable[Partition]
    ) -> tuple[dict[Partition, ShareStart], dict[Partition, int]]:
        """The starts of the watched topics, and the ends of partitions that operations wait on, or that daemons had
        marks of when the group was first polled: an earlier run may have raised these to an end. Raises SourceStale.
        """
        asked = {*published, *((topic, number) for of_group, topic, number in self._wanted if of_group == group)}
        # Before the question: without lag, all records below these ends are done.
        ends = await self._view.ends(asked) if asked else {}
        starts = await poller.share_starts(group)
        starts = {at: start for at, start in starts.items() if self._settings.selects(group, at[0])}
        for topic, number in starts.keys() & published:
            if (end := ends[topic, number]).offset < 0:
                raise SourceStale(f"the end of {topic}-{number} is unknown: {end.error}")
        return starts, {at: end.offset for at, end in ends.items()}


class _Group:
    """The state of a share group. `published`: the marks that daemons have."""

    def __init__(self, published: Mapping[Partition, int]) -> None:
        self._marks: Final = RisingMarks(published)
        self._starts: dict[Partition, ShareStart] = {}
        """The last answer."""
        self._drained: Final[dict[Partition, int]] = {}
        """Ends below which all records were done when the lag was 0."""

    def apply(self, starts: dict[Partition, ShareStart], ends: Mapping[Partition, int]) -> list[MarkMove[Partition]]:
        """Apply an answer. `ends`: ends of partitions, read before the question."""
        for at, start in starts.items():
            before = self._starts.get(at)
            if before is not None and (before.topic_id != start.topic_id or start.offset < before.offset):
                self._drained.pop(at, None)  # the topic was recreated, or the group was reset
            if start.lag == 0:
                self._drained[at] = max(ends.get(at, -1), self._drained.get(at, -1))
        self._starts = starts
        return self._marks.apply({at: max(start.offset, self._drained.get(at, -1)) for at, start in starts.items()})
