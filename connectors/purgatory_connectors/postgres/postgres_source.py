"""The PostgreSQL source: polls the servers and passes the resulting marks to the publisher."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.postgres.derived_marks import DERIVED
from purgatory_connectors.postgres.observations import ServerObservation
from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.server_group import ServerGroup
from purgatory_connectors.postgres.server_reader import ServerReader
from purgatory_connectors.postgres.timelines import newest_identity
from purgatory_connectors.publisher.observation import Observation
from purgatory_connectors.publisher.reports import End, SourceState, StaleMarks
from purgatory_connectors.publisher.source import Source

if TYPE_CHECKING:
    from purgatory_connectors.publisher.publisher import Publisher

log: Final = logging.getLogger(__name__)

_REPORT_S: Final = 1.0
_CONNECTED_POLL_S: Final = 0.05


class PostgresSource(Source):
    """Marks of a primary and its replicas, under "pg/NAME/": SERVER, slot:SLOT, any, all and quorum."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings: Final = settings
        self.prefix: Final = f"pg/{settings.name}/"
        self.name = f"postgres://{','.join(server.address for server in settings.servers)}"
        self.topic_prefixes = (self.prefix,)
        self.readers: Final = {
            server.name: ServerReader(server, settings, self, lambda name=server.name: name in self._wanted)  # type: ignore[misc]
            for server in settings.servers
        }
        self._wanted: set[str] = set()
        self._publisher: Publisher | None = None
        self._group = ServerGroup(settings.group, {}, "", time.monotonic())
        self._reported: dict[str, str] = {}

    async def run(self, publisher: Publisher) -> None:
        """Watch until cancelled."""
        self._publisher = publisher
        self._report()
        # Only daemons know which replicas existed before this run and which derived marks were published.
        while not publisher.daemons_connected:  # noqa: ASYNC110 - the publisher has no event for it
            await asyncio.sleep(_CONNECTED_POLL_S)
        told = publisher.published(self.prefix)
        lineages = [lineage for name in told if (lineage := publisher.replicator.lineage(name)) is not None]
        self._group = ServerGroup(
            self.settings.group,
            {topic.removeprefix(self.prefix): mark.offset for (topic, _), mark in told.items() if mark.offset >= 0},
            newest_identity(one.identity for one in lineages),
            time.monotonic(),
        )
        publisher.on_demand(self._demand_changed)
        self._demand_changed(publisher.demand)
        self._report()
        async with asyncio.TaskGroup() as tasks:
            for reader in self.readers.values():
                tasks.create_task(reader.run())
            while True:
                await asyncio.sleep(_REPORT_S)
                self._report()

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The end of the primary's log. Raises SourceStale."""
        primary = self._group.primary
        if primary is None:
            raise SourceStale(f"pg/{self.settings.name}: no primary can be seen")
        position = await self.readers[primary].end()
        # A promotion during the query may have lost this end.
        if self._group.primary != primary:
            raise SourceStale(f"pg/{self.settings.name}: there is another primary than {primary} now")
        self._group.gave_end(position)
        return [End(name, 0, position) for name in names]

    def saw(self, name: str, observation: ServerObservation, now: float) -> None:
        """A reader has received a reading."""
        self._group.saw(name, observation, now)
        self._publish()

    def lost(self, name: str, reason: str, now: float) -> None:
        """A reader could not reach its server."""
        self._group.lost(name, reason, now)
        self._publish()

    def _publish(self) -> None:
        publisher, group = self._publisher, self._group
        assert publisher is not None, self.name
        changes = group.take_changes()
        if changes:
            publisher.observe(
                Observation(
                    self.prefix + one.mark,
                    0,
                    one.position,
                    self._identity(publisher, one.mark, one.identity),
                    one.is_set_back,
                )
                for one in changes
            )
        self._report(only_changes=True)

    def _identity(self, publisher: Publisher, mark: str, identity: str) -> str:
        """Identities are never reused: a slot that is recreated, or a replica that was forgotten, gets a new one."""
        lineage = publisher.replicator.lineage((self.prefix + mark, 0))
        if lineage is None or identity not in lineage.retired:
            return identity
        return next(one for count in itertools.count(1) if (one := f"{identity}#{count}") not in lineage.retired)

    def _report(self, *, only_changes: bool = False) -> None:
        publisher, group = self._publisher, self._group
        assert publisher is not None, self.name
        stale = group.stale_marks()
        essence = {one.mark: one.reason for one in stale}
        if only_changes and essence == self._reported:
            return
        self._log_changes(essence)
        self._reported = essence
        now = time.monotonic()
        publisher.report(
            self._state(bool(stale)),
            "; ".join(f"{one.mark}: {one.reason}" for one in stale if one.mark not in DERIVED)[:1000],
            [
                StaleMarks(self.prefix + one.mark, not one.is_prefix, (), int((now - one.seen_at) * 1000), one.reason)
                for one in stale
            ],
        )

    def _log_changes(self, essence: Mapping[str, str]) -> None:
        for mark, reason in essence.items():
            if reason != self._reported.get(mark) and mark not in DERIVED and self._group.is_complete:
                log.warning("%s%s cannot be seen: %s", self.prefix, mark, reason)
        for mark in self._reported.keys() - essence.keys() - set(DERIVED):
            log.info("%s%s is seen", self.prefix, mark)

    def _state(self, is_stale: bool) -> SourceState:
        if not is_stale:
            return SourceState.LIVE
        if not self._group.is_complete:
            return SourceState.LOADING
        if all(reader.is_refused for reader in self.readers.values()):
            return SourceState.REFUSED
        return SourceState.STALE

    def _demand_changed(self, demand: frozenset[tuple[str, int]]) -> None:
        marks = {topic.removeprefix(self.prefix) for topic, _ in demand if topic.startswith(self.prefix)}
        listed = self.readers.keys()
        self._wanted = set(listed) if marks & set(DERIVED) else marks & listed
        if any(self._group.is_found(mark) for mark in marks):
            # Any listed server may be the primary until the primary is known.
            self._wanted |= {self._group.primary} if self._group.primary is not None else set(listed)
        for reader in self.readers.values():
            reader.nudge()
