"""Publishes the observations of one source to any number of daemons."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from purgatory_client import AsyncClient
from purgatory_client.session.backoff import Backoff
from purgatory_client.sources.source_link import EndsWanted

from purgatory_connectors.errors import NoTimeLookup, SourceRefused, SourceStale
from purgatory_connectors.publisher.daemon_link import DaemonLink, LinkedSource, first_error
from purgatory_connectors.publisher.mark_lineage import LineageStore
from purgatory_connectors.publisher.observation import (
    End,
    EndsFound,
    MarkName,
    Observation,
    PublishedMark,
    SeenReplicas,
    SourceState,
    StaleMarks,
)

TICK_S: Final = 0.1
KEEP_OFFSETS_S: Final = 2.0
_LAST_REPORT_S: Final = 0.5

_logger = logging.getLogger("purgatory_connectors")


class Source(ABC):
    """Watches one system and passes observations to a publisher.

    Attributes:
        name: Name in status output and metrics, without secrets: "kafka://broker:9092".
        topic_prefixes: Prefixes of the topics whose partitions it publishes: ("kafka/",).
    """

    name: str
    topic_prefixes: tuple[str, ...]

    @abstractmethod
    async def run(self, publisher: "Publisher") -> None:
        """Watch until cancelled. Raises SourceRefused for errors that no retry can fix; the program exits with it."""

    @abstractmethod
    async def ends(self, names: Sequence[str]) -> list[End]:
        """The ends of the partitions of these topics, read after the call began. Raises SourceStale if they cannot be
        read.

        Args:
            names: Topics without partition numbers: "kafka/billing/orders", "pg/main/all".
        """

    async def ends_at(self, names: Sequence[str], as_of_ms: int) -> list[End]:
        """The ends of these partitions at a time, milliseconds since the epoch. Raises SourceStale if they cannot be
        read, NoTimeLookup if this kind of source does not know them.
        """
        raise NoTimeLookup(
            f"{self.name} cannot look up where {', '.join(names)} ended at {as_of_ms}: ask for the present ends"
        )


class Publisher(LinkedSource):
    """Publishes the marks of one source to every daemon. It belongs to the event loop on which it is created.

    Args:
        source: The source to run.
        daemons: For each daemon's address, a function that opens a client of it.
        lineages: Storage for lineages; in memory by default.

    Raises:
        SourceRefused: The stored lineages cannot be used.
    """

    def __init__(
        self, source: Source, daemons: Mapping[str, Callable[[], AsyncClient]], lineages: LineageStore | None = None
    ) -> None:
        super().__init__(source.name, source.topic_prefixes, LineageStore(None) if lineages is None else lineages)
        self._source: Final = source
        self._demand: frozenset[MarkName] = frozenset()
        self._demand_changed = asyncio.Event()
        self._links: Final = [
            DaemonLink(address, open_client, self, len(daemons)) for address, open_client in daemons.items()
        ]

    # For the source.

    @property
    def demand(self) -> frozenset[MarkName]:
        """The partitions with pending waits at any of the daemons."""
        return self._demand

    async def demand_changed(self) -> None:
        """Return after the next change of `demand`."""
        await self._demand_changed.wait()

    def observe(self, observations: Iterable[Observation]) -> None:
        """Publish what was observed, in the order in which it was read. Returns at once; if several values of a mark
        are due, only the newest is sent.
        """
        self.replicator.observe(observations)
        for link in self._links:
            link.wake()

    def observe_replicas(self, replicas: Mapping[MarkName, SeenReplicas]) -> None:
        """Publish the replicas of these partitions. They are sent once the mark itself has been observed."""
        self.replicator.observe_replicas(replicas)
        for link in self._links:
            link.wake()

    def report(self, state: SourceState, reason: str = "", stale: Sequence[StaleMarks] = (), lag_ms: int = 0) -> None:
        """Set the health of the source. It is repeated to the daemons every second.

        Args:
            state: The current health of the source.
            reason: Why, for people.
            stale: The marks it cannot see. Empty in a state other than LIVE or BEHIND: all marks.
            lag_ms: Milliseconds by which observations lag behind the system.
        """
        if self.set_health(state, reason, stale, lag_ms):
            for link in self._links:
                link.health_changed.set()

    def published(self, topic_prefix: str) -> Mapping[MarkName, PublishedMark]:
        """The marks under this prefix as the daemons have them, with the lowest epoch and offset at any daemon. They
        were read when each connected, and have been updated since.

        If the source does not find one of them, it must observe it as gone (`offset` None).
        """
        return self.replicator.published(topic_prefix)

    @property
    def daemons_connected(self) -> int:
        """Number of daemons that are connected and whose marks have been read."""
        return sum(link.is_connected for link in self._links)

    # For the program.

    async def run(self) -> None:
        """Run the source and publish to the daemons until cancelled. A source that fails is restarted.

        Raises:
            SourceRefused: A fault that no retry can fix. It has been reported to the daemons that are connected.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for link in self._links:
                    tasks.create_task(link.run(), name=f"link {link.address}")
                tasks.create_task(self._keep_time(), name="time of marks")
                tasks.create_task(self._run_source(), name=self._source.name)
        except* SourceRefused as group:
            raise first_error(group) from None
        finally:
            self.store_all()
            self.store.close()

    async def _run_source(self) -> None:
        backoff = Backoff(base=0.2, cap=5.0)
        while True:
            started = time.monotonic()
            try:
                await self._source.run(self)
                self.report(SourceState.STALE, "the source ended unexpectedly")
            except SourceRefused as error:
                self.report(SourceState.REFUSED, str(error))
                await asyncio.sleep(_LAST_REPORT_S)
                raise
            except Exception as error:
                _logger.exception("%s failed; restarting it", self._source.name)
                self.report(SourceState.STALE, f"the source failed: {error!r}"[:900])
            if time.monotonic() - started > 60:
                backoff.reset()
            await asyncio.sleep(0.1 + backoff.next_delay())

    async def _keep_time(self) -> None:
        kept_at = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if self.replicator.is_waiting_for_time:
                self.replicator.tick(now)
                for link in self._links:
                    link.wake()
            if now - kept_at > KEEP_OFFSETS_S:
                kept_at = now
                self.store_all()

    # For links.

    def link_demand_changed(self) -> None:
        demand = frozenset().union(*(link.demand for link in self._links))
        if demand != self._demand:
            self._demand = demand
            self._demand_changed.set()
            self._demand_changed = asyncio.Event()

    async def find_ends(self, wanted: EndsWanted) -> EndsFound:
        """The ends of these topics with the epochs of their marks, or none and an error text."""
        topics, as_of_ms = wanted.topics, wanted.as_of_ms
        try:
            if as_of_ms is None:
                found = await self._source.ends(topics)
            else:
                found = await self._source.ends_at(topics, as_of_ms)
        except NoTimeLookup as error:
            return EndsFound([], str(error))
        except (SourceStale, SourceRefused) as error:
            return EndsFound([], str(error), as_of_ms)
        except Exception as error:
            _logger.exception("%s could not determine the ends of %s", self._source.name, topics)
            return EndsFound([], f"the source failed: {error!r}"[:900], as_of_ms)
        return EndsFound([self._with_epoch(end) for end in found], "", as_of_ms)

    def _with_epoch(self, end: End) -> End:
        lineage = self.replicator.lineage((end.topic, end.partition))
        if end.leader_epoch is not None or lineage is None or not lineage.is_seen or lineage.is_foreign:
            return end
        return end._replace(leader_epoch=lineage.epoch)
