"""Publishes the observations of one source to any number of daemons."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from purgatory_client import AsyncClient
from purgatory_client.session.backoff import Backoff

from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.publisher.daemon_link import DaemonLink
from purgatory_connectors.publisher.lineage_store import LineageStore
from purgatory_connectors.publisher.mark_replicator import MarkReplicator
from purgatory_connectors.publisher.observation import MarkName, Observation, SeenReplicas
from purgatory_connectors.publisher.reports import End, PublishedMark, SourceState, StaleMarks

TICK_S: Final = 0.1
KEEP_OFFSETS_S: Final = 2.0
_LAST_REPORT_S: Final = 0.5

_logger = logging.getLogger("purgatory_connectors")


class PublishedSource(Protocol):
    """The part of `Source` that a publisher uses."""

    name: str
    topic_prefixes: tuple[str, ...]

    async def run(self, publisher: Publisher) -> None: ...
    async def ends(self, names: Sequence[str]) -> list[End]: ...


class Publisher:
    """Publishes the marks of one source to every daemon.

    Belongs to the event loop it is created on. Only the `_threadsafe` methods may be called from other threads.

    Args:
        source: The source to run.
        daemons: For each daemon's address, a function that opens a client of it.
        lineages: Storage for lineages; in memory by default.

    Raises:
        SourceRefused: The stored lineages cannot be used.
    """

    def __init__(
        self,
        source: PublishedSource,
        daemons: Mapping[str, Callable[[], AsyncClient]],
        lineages: LineageStore | None = None,
    ) -> None:
        self.name: Final = source.name
        self.topic_prefixes: Final = tuple(source.topic_prefixes)
        self._source: Final = source
        self._file: Final = LineageStore(None) if lineages is None else lineages
        self.replicator: Final = MarkReplicator(self._file.load(), time.monotonic())
        self._loop: Final = asyncio.get_running_loop()
        self._state = SourceState.LOADING
        self._reason = "it has just started"
        self._stale: Sequence[StaleMarks] = ()
        self._lag_ms = 0
        self._reported_at = time.monotonic()
        self._demand: frozenset[MarkName] = frozenset()
        self._demand_changed: Final = asyncio.Condition()
        self._demand_version = 0
        self._callbacks: Final[list[Callable[[frozenset[MarkName]], None]]] = []
        self._links: Final = [DaemonLink(address, open_client, self) for address, open_client in daemons.items()]

    # For the source.

    @property
    def demand(self) -> frozenset[MarkName]:
        """The partitions with pending waits at any of the daemons."""
        return self._demand

    async def demand_changed(self) -> None:
        """Return after the next change of `demand`."""
        version = self._demand_version
        async with self._demand_changed:
            await self._demand_changed.wait_for(lambda: self._demand_version != version)

    def on_demand(self, callback: Callable[[frozenset[MarkName]], None]) -> None:
        """Call `callback` on the event loop at each change of `demand`.

        Args:
            callback: Receives the new demand.
        """
        self._callbacks.append(callback)

    def observe(self, observations: Iterable[Observation]) -> None:
        """Publish what was observed. Returns at once; if several values of a mark are due, only the newest is sent.

        Args:
            observations: In the order in which they were read.
        """
        self.replicator.observe(observations)
        for link in self._links:
            link.wake()

    def observe_replicas(self, replicas: Mapping[MarkName, SeenReplicas]) -> None:
        """Publish the replicas of these partitions.

        Args:
            replicas: The current replicas by mark. They are sent once the mark itself has been observed.
        """
        self.replicator.observe_replicas(replicas)
        for link in self._links:
            link.wake()

    def observe_threadsafe(self, observations: Sequence[Observation]) -> None:
        """The same from any thread."""
        self._loop.call_soon_threadsafe(self.observe, observations)

    def report(self, state: SourceState, reason: str = "", stale: Sequence[StaleMarks] = (), lag_ms: int = 0) -> None:
        """Set the health of the source. It is repeated to the daemons every second.

        Args:
            state: The current health of the source.
            reason: Why, for people.
            stale: The marks it cannot see. Empty in a state other than LIVE or BEHIND: all marks.
            lag_ms: Milliseconds by which observations lag behind the system.
        """
        is_news = (state, reason, [one[:3] for one in stale]) != (
            self._state, self._reason, [one[:3] for one in self._stale],
        )  # fmt: skip
        if state != self._state:
            _logger.log(
                logging.WARNING if state in {SourceState.STALE, SourceState.REFUSED} else logging.INFO,
                "%s is %s%s", self.name, state.name.lower(), f": {reason}" if reason else "",
            )  # fmt: skip
        now = time.monotonic()
        self._state, self._reason, self._stale, self._lag_ms = state, reason, tuple(stale), lag_ms
        self._reported_at = now
        self.replicator.set_health(
            now, sees=state in {SourceState.LIVE, SourceState.BEHIND}, stale=stale, lag_s=lag_ms / 1_000
        )
        if is_news:
            for link in self._links:
                link.health_changed()

    def report_threadsafe(
        self, state: SourceState, reason: str = "", stale: Sequence[StaleMarks] = (), lag_ms: int = 0
    ) -> None:
        """The same from any thread."""
        self._loop.call_soon_threadsafe(self.report, state, reason, stale, lag_ms)

    def published(self, topic_prefix: str) -> Mapping[MarkName, PublishedMark]:
        """The marks under this prefix as the daemons have them: read when each connected, and updated since.

        If the source does not find one of them, it must observe it as gone (`offset` None).

        Args:
            topic_prefix: Start of the topic names.

        Returns:
            For each mark, the lowest epoch and offset at any daemon.
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
                tasks.create_task(self._run_source(), name=self.name)
        except* SourceRefused as group:
            refused = group.exceptions[0]
            while isinstance(refused, BaseExceptionGroup):
                refused = refused.exceptions[0]
            raise refused from None
        finally:
            self._keep_offsets()
            self._file.close()

    async def _run_source(self) -> None:
        backoff = Backoff(base=0.2, cap=5.0)
        while True:
            started = time.monotonic()
            try:
                await self._source.run(self)
                self.report(SourceState.STALE, "the source ended by itself")
            except SourceRefused as error:
                self.report(SourceState.REFUSED, str(error))
                await asyncio.sleep(_LAST_REPORT_S)
                raise
            except Exception as error:
                _logger.exception("%s failed; restarting it", self.name)
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
                self._keep_offsets()

    # For links.

    def keep_lineages(self) -> None:
        """Store new lineages. Call before any daemon receives their events."""
        if self.replicator.unsaved:
            self._keep(self.replicator.unsaved)

    def _keep_offsets(self) -> None:
        self.keep_lineages()
        if self.replicator.moved:
            self._keep(self.replicator.moved)

    def _keep(self, names: dict[MarkName, None]) -> None:
        kept = [(name, lineage) for name in names if (lineage := self.replicator.lineage(name)) is not None]
        self._file.keep(kept)
        names.clear()

    def health(self) -> tuple[SourceState, str, list[StaleMarks], int]:
        """State, reason, stale marks and lag (ms). The ages of stale marks are as of now, not of the last report."""
        more_ms = round((time.monotonic() - self._reported_at) * 1_000)
        stale = [one._replace(stale_ms=one.stale_ms + more_ms) for one in self._stale]
        return self._state, self._reason, stale, self._lag_ms

    def link_demand_changed(self) -> None:
        """The demand of a link has changed."""
        demand = frozenset().union(*(link.demand for link in self._links))
        if demand == self._demand:
            return
        self._demand = demand
        self._demand_version += 1
        for callback in self._callbacks:
            callback(demand)
        self._loop.create_task(self._notify_demand())

    async def _notify_demand(self) -> None:
        async with self._demand_changed:
            self._demand_changed.notify_all()

    async def ends(self, topics: list[str]) -> tuple[list[End], str]:
        """The ends of these topics with the epochs of their marks, or none and an error text."""
        try:
            found = await self._source.ends(topics)
        except (SourceStale, SourceRefused) as error:
            return [], str(error)
        except Exception as error:
            _logger.exception("%s could not determine the ends of %s", self.name, topics)
            return [], f"the source failed: {error!r}"[:900]
        return [self._with_epoch(end) for end in found], ""

    def _with_epoch(self, end: End) -> End:
        lineage = self.replicator.lineage((end.topic, end.partition))
        if end.leader_epoch is not None or lineage is None or not lineage.is_seen or lineage.is_foreign:
            return end
        return end._replace(leader_epoch=lineage.epoch)
