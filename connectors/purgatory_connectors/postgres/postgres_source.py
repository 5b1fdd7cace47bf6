"""The PostgreSQL source: polls the servers and passes the resulting marks to the publisher."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.postgres.observations import ServerObservation, Unseen
from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.server_group import ServerGroup
from purgatory_connectors.postgres.server_reader import ServerReader
from purgatory_connectors.postgres.timelines import newest_identity
from purgatory_connectors.publisher.mark_rules import DERIVED
from purgatory_connectors.publisher.observation import End, Observation, SourceState, StaleMarks
from purgatory_connectors.publisher.publisher import Publisher, Source

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
        self._session: PostgresSession | None = None

    async def run(self, publisher: Publisher) -> None:
        """Watch until cancelled."""
        publisher.report(SourceState.LOADING, "not connected to a daemon yet")
        # Only daemons know which replicas existed before this run and which derived marks were published.
        while not publisher.daemons_connected:  # noqa: ASYNC110 - the publisher has no event for it
            await asyncio.sleep(_CONNECTED_POLL_S)
        self._session = PostgresSession(self.settings, self.prefix, publisher)
        try:
            await self._session.run()
        finally:
            self._session = None

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The end of the primary's log. Raises SourceStale."""
        if self._session is None:
            raise SourceStale(f"pg/{self.settings.name}: the source is starting")
        position = await self._session.end()
        return [End(name, 0, position) for name in names]


class PostgresSession:
    """One run of the source: the readers of its servers, and the marks computed from their readings."""

    def __init__(self, settings: PostgresSettings, prefix: str, publisher: Publisher) -> None:
        self._settings: Final = settings
        self._prefix: Final = prefix
        self._publisher: Final = publisher
        self._readers: Final = {server.name: ServerReader(server, settings, self._apply) for server in settings.servers}
        marks = publisher.published(prefix)
        lineages = [lineage for name in marks if (lineage := publisher.replicator.lineage(name)) is not None]
        self._group: Final = ServerGroup(
            settings.group,
            {topic.removeprefix(prefix): mark.offset for (topic, _), mark in marks.items() if mark.offset >= 0},
            newest_identity(one.identity for one in lineages),
            time.monotonic(),
        )
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_demand())
            for reader in self._readers.values():
                tasks.create_task(reader.run())
            while True:
                self._report()
                await asyncio.sleep(_REPORT_S)

    async def end(self) -> int:
        """The end of the primary's log, read after the call began. Raises SourceStale."""
        primary = self._group.primary
        if primary is None:
            raise SourceStale(f"pg/{self._settings.name}: no primary is available")
        position = await self._readers[primary].end()
        # A promotion during the query may have lost this end.
        if self._group.primary != primary:
            raise SourceStale(f"pg/{self._settings.name}: {primary} is no longer the primary")
        self._group.note_end(position)
        return position

    def _apply(self, name: str, reading: ServerObservation | Unseen) -> None:
        now = time.monotonic()
        if isinstance(reading, Unseen):
            self._group.mark_stale(name, reading.reason, now)
        else:
            self._group.observe(name, reading, now)
        changes = [
            Observation(
                self._prefix + one.mark, 0, one.position, self._identity(one.mark, one.identity), one.is_set_back
            )
            for one in self._group.drain_changes()
        ]
        if changes:
            self._publisher.observe(changes)
        self._report(only_changes=True)

    def _identity(self, mark: str, identity: str) -> str:
        """Identities are never reused: a slot that is recreated, or a replica that was forgotten, gets a new one."""
        lineage = self._publisher.replicator.lineage((self._prefix + mark, 0))
        if lineage is None or identity not in lineage.retired:
            return identity
        return next(one for count in itertools.count(1) if (one := f"{identity}#{count}") not in lineage.retired)

    def _report(self, *, only_changes: bool = False) -> None:
        stale = self._group.stale_marks()
        reasons = {one.mark: one.reason for one in stale}
        if only_changes and reasons == self._reported:
            return
        self._log_changes(reasons)
        self._reported = reasons
        now = time.monotonic()
        self._publisher.report(
            self._state(is_stale=bool(stale)),
            "; ".join(f"{one.mark}: {one.reason}" for one in stale if one.mark not in DERIVED)[:1000],
            [
                StaleMarks(self._prefix + one.mark, not one.is_prefix, (), int((now - one.seen_at) * 1000), one.reason)
                for one in stale
            ],
        )

    def _log_changes(self, reasons: Mapping[str, str]) -> None:
        for mark, reason in reasons.items():
            if reason != self._reported.get(mark) and mark not in DERIVED and self._group.is_complete:
                log.warning("%s%s is stale: %s", self._prefix, mark, reason)
        for mark in self._reported.keys() - reasons.keys() - set(DERIVED):
            log.info("%s%s is current again", self._prefix, mark)

    def _state(self, *, is_stale: bool) -> SourceState:
        if not is_stale:
            return SourceState.LIVE
        if not self._group.is_complete:
            return SourceState.LOADING
        is_refused = all(reader.is_refused for reader in self._readers.values())
        return SourceState.REFUSED if is_refused else SourceState.STALE

    async def _follow_demand(self) -> None:
        listed = set(self._readers)
        while True:
            demand = self._publisher.demand
            marks = {topic.removeprefix(self._prefix) for topic, _ in demand if topic.startswith(self._prefix)}
            wanted = listed if marks & set(DERIVED) else marks & listed
            if any(self._group.is_found(mark) for mark in marks):
                # Any listed server may be the primary until the primary is known.
                wanted |= {self._group.primary} if self._group.primary is not None else listed
            for name, reader in self._readers.items():
                reader.want(is_wanted=name in wanted)
            await self._publisher.demand_changed()
