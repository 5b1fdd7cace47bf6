"""The links of a source to daemons. Each sends marks and health reports, receives demand, and reconnects."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from purgatory_client import AsyncClient
from purgatory_client.errors import NotFound, PurgatoryClientError
from purgatory_client.events import STALE_EPOCH
from purgatory_client.session.backoff import Backoff, set_within
from purgatory_client.sources.source_link import EndsWanted, SourceLink
from purgatory_client.unary import shards_of
from purgatory_client.views import Partition

from purgatory_connectors.publisher.mark_lineage import LineageStore
from purgatory_connectors.publisher.mark_replicator import DaemonMark, MarkReplicator
from purgatory_connectors.publisher.observation import EndsFound, MarkName, SourceState, StaleMarks

_logger = logging.getLogger("purgatory_connectors")


class LinkedSource(ABC):
    """A source as its links to daemons see it: its marks and their lineages, and its health."""

    def __init__(self, name: str, topic_prefixes: Sequence[str], store: LineageStore) -> None:
        self.name: Final = name
        self.topic_prefixes: Final = tuple(topic_prefixes)
        self.store: Final = store
        self.replicator: Final = MarkReplicator(store.load(), time.monotonic())
        self._state = SourceState.LOADING
        self._reason = "it has just started"
        self._stale: Sequence[StaleMarks] = ()
        self._lag_ms = 0
        self._reported_at = time.monotonic()

    @abstractmethod
    async def find_ends(self, wanted: EndsWanted) -> EndsFound:
        """Answer a daemon's question about ends."""

    @abstractmethod
    def link_demand_changed(self) -> None:
        """The demand of a link has changed."""

    def set_health(self, state: SourceState, reason: str, stale: Sequence[StaleMarks], lag_ms: int) -> bool:
        """Set the health, as in `Publisher.report`. Returns whether it has changed, apart from ages and lag."""
        marks = [one[:3] for one in stale]
        is_news = (state, reason, marks) != (self._state, self._reason, [one[:3] for one in self._stale])
        if state != self._state:
            level = logging.WARNING if state in {SourceState.STALE, SourceState.REFUSED} else logging.INFO
            _logger.log(level, "%s is %s%s", self.name, state.name.lower(), f": {reason}" if reason else "")
        self._state, self._reason, self._stale, self._lag_ms = state, reason, tuple(stale), lag_ms
        self._reported_at = time.monotonic()
        sees = state in {SourceState.LIVE, SourceState.BEHIND}
        self.replicator.set_health(self._reported_at, sees=sees, stale=stale, lag_s=lag_ms / 1_000)
        return is_news

    def health(self) -> tuple[SourceState, str, list[StaleMarks], int]:
        """State, reason, stale marks and lag (ms). The ages of stale marks are as of now, not of the last report."""
        more_ms = round((time.monotonic() - self._reported_at) * 1_000)
        stale = [one._replace(stale_ms=one.stale_ms + more_ms) for one in self._stale]
        return self._state, self._reason, stale, self._lag_ms

    def store_lineages(self) -> None:
        """Store new lineages. Call before any daemon receives their events."""
        self._store(self.replicator.unsaved)

    def store_all(self) -> None:
        self._store(self.replicator.unsaved)
        self._store(self.replicator.moved)

    def _store(self, names: dict[MarkName, None]) -> None:
        self.store.keep((name, one) for name in names if (one := self.replicator.lineage(name)) is not None)
        names.clear()


HEARTBEAT_S: Final = 1.0
_EVENTS_PER_BATCH_MAX: Final = 5_000
_LOOKS_MAX: Final = 50
"""Up to this many marks are read back one by one; more are read with a single listing."""
_DEMAND_KEPT_S: Final = 10.0
"""How long the demand of a broken link stays in force."""


class DaemonLink:
    """The connection to one daemon. `open_client` opens a client of it; `links`: how many daemons the source feeds."""

    def __init__(self, address: str, open_client: Callable[[], AsyncClient], source: LinkedSource, links: int) -> None:
        self.address: Final = address
        self.demand: set[MarkName] = set()
        self.is_connected = False
        self._open_client: Final = open_client
        self._source: Final = source
        self._links: Final = links
        self._marks: Final = source.replicator.daemon()
        self._due: Final = asyncio.Event()
        self.health_changed: Final = asyncio.Event()
        """Set it to send a report before the next heartbeat."""
        self._last_error = ""
        self._lost_at = 0.0

    def wake(self) -> None:
        """Signal that marks may be due."""
        self._due.set()

    async def run(self) -> None:
        """Keep the link up until cancelled. Errors that a retry cannot fix are raised."""
        backoff = Backoff(base=0.2, cap=5.0)
        while True:
            error: BaseException | None = None
            try:
                await self._connected(backoff)
            except* PurgatoryClientError as group:
                error = first_error(group)
            self._disconnected(str(error) or repr(error))
            # The minimum delay prevents an immediate retry: a daemon that has just stopped is not back within 50 ms.
            await asyncio.sleep(0.05 + backoff.next_delay())

    def _disconnected(self, reason: str) -> None:
        now = time.monotonic()
        if self.is_connected:
            self._lost_at = now
            self.is_connected = False
        if reason != self._last_error:
            self._last_error = reason
            _logger.warning("not connected to the daemon at %s: %s", self.address, reason)
        if self.demand and now - self._lost_at > _DEMAND_KEPT_S:
            self.demand = set()
            self._source.link_demand_changed()

    async def _connected(self, backoff: Backoff) -> None:
        async with (
            self._open_client() as client,
            client.attach_source(self._source.name, self._source.topic_prefixes) as link,
            asyncio.TaskGroup() as tasks,
        ):
            await self._report(link)
            tasks.create_task(self._heartbeat(link))
            tasks.create_task(self._listen(link, tasks))
            await self._check_shards(client)
            # Nothing may be published before the daemon's marks are known: another source may have published more.
            self._source.replicator.on_daemon_marks(self._marks, await self._listed(client), time.monotonic())
            self.is_connected = True
            backoff.reset()
            self._last_error = ""
            _logger.info("publishing to the daemon at %s", self.address)
            await self._publish(client)

    async def _check_shards(self, client: AsyncClient) -> None:
        """Warn if other shards are left out. A source that its daemon runs is that daemon's own; it has a socket."""
        if not self.address.startswith("unix:") and (shards := len(await shards_of(client))) > self._links:
            _logger.warning(
                "the daemon at %s is one of %d shards: waits at the others see no marks; add --to for each of them",
                self.address, shards,
            )  # fmt: skip

    # Marks.

    async def _publish(self, client: AsyncClient) -> None:
        marks, replicator = self._marks, self._source.replicator
        while True:
            if marks.to_look_at:
                await self._look(client)
            batch = replicator.next_batch(marks, time.monotonic(), _EVENTS_PER_BATCH_MAX)
            # Before sending: after a crash the stored lineages must not be behind those of a daemon.
            self._source.store_lineages()
            if batch:
                receipt = await client.advance_many([event for _, event in batch])
                for refusal in receipt.refusals:
                    is_stale = refusal.error_code == STALE_EPOCH
                    replicator.refused(marks, batch[refusal.index][0], time.monotonic(), is_stale=is_stale)
                if others := [refusal for refusal in receipt.refusals if refusal.error_code != STALE_EPOCH]:
                    _logger.warning(
                        "the daemon at %s refused %d of %d events, which will be resent; the first: %s",
                        self.address, len(others), len(batch), others[0].message,
                    )  # fmt: skip
            elif not marks.to_look_at:
                self._due.clear()
                await self._due.wait()

    async def _listed(self, client: AsyncClient) -> dict[MarkName, DaemonMark]:
        found = {}
        for prefix in self._source.topic_prefixes:
            async for partition in client.partitions(prefix=prefix, page_size=10_000):
                found[partition.topic, partition.partition] = _mark(partition)
        return found

    async def _look(self, client: AsyncClient) -> None:
        names = list(self._marks.to_look_at)
        found: dict[MarkName, DaemonMark | None] = {}
        if len(names) > _LOOKS_MAX:
            found.update(await self._listed(client))
        else:
            for name in names:
                try:
                    found[name] = _mark(await client.partition(name))
                except NotFound:
                    found[name] = None
        for name in names:
            self._source.replicator.on_daemon_mark(self._marks, name, found.get(name), time.monotonic())

    # Reports, demand and ends.

    async def _report(self, link: SourceLink) -> None:
        state, reason, stale, lag_ms = self._source.health()
        await link.report(state, reason, stale, lag_ms)

    async def _heartbeat(self, link: SourceLink) -> None:
        while True:
            await set_within(self.health_changed, HEARTBEAT_S)
            self.health_changed.clear()
            await self._report(link)

    async def _listen(self, link: SourceLink, tasks: asyncio.TaskGroup) -> None:
        self._apply_demand(link)
        async for event in link:
            if isinstance(event, EndsWanted):
                tasks.create_task(self._answer(link, event))
            else:
                self._apply_demand(link)

    def _apply_demand(self, link: SourceLink) -> None:
        if self.demand != link.demand:
            self.demand = set(link.demand)
            self._source.link_demand_changed()

    async def _answer(self, link: SourceLink, wanted: EndsWanted) -> None:
        found = await self._source.find_ends(wanted)
        await link.answer_ends(wanted.ask_id, found.ends, found.error, as_of_ms=found.as_of_ms)


def _mark(partition: Partition) -> DaemonMark:
    return DaemonMark(partition.leader_epoch, partition.high_watermark, partition.is_leader)


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
