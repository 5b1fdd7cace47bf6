"""The PostgreSQL source: polls the servers and passes the resulting marks to the publisher."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.postgres.observations import ServerObservation
from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.server_group import ServerGroup
from purgatory_connectors.postgres.server_reader import ServerReader
from purgatory_connectors.postgres.timelines import newest_identity
from purgatory_connectors.publisher.mark_rules import DERIVED, StaleMark
from purgatory_connectors.publisher.observation import End, Observation
from purgatory_connectors.publisher.polled_source import PolledSource, Unreadable


class PostgresSource(PolledSource[ServerObservation]):
    """Marks of a primary and its replicas, under "pg/NAME/": SERVER, slot:SLOT, any, all and quorum.

    Its targets are the listed servers, by name. Raises SourceUriInvalid.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__("pg", settings.uri, settings.group.listed, poll_ms=20)
        self.name = f"postgres://{','.join(settings.uri.hosts)}"[:249]
        self.settings: Final = settings
        self._readers: Final = {one.name: ServerReader(one, self._timeout_s) for one in settings.servers}
        self._group = ServerGroup(settings.group, {}, "", 0.0)

    async def asked(self, target: str) -> ServerObservation:
        """See `PolledSource`. The reader itself keeps the time: it cuts off a connection that does not answer."""
        return await self.read(target)

    async def read(self, target: str) -> ServerObservation:
        return await self._readers[target].read()

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()

    def begin(self, published: Mapping[str, int]) -> None:
        lineages = [self.publisher.replicator.lineage((self.prefix + mark, 0)) for mark in published]
        identity = newest_identity(one.identity for one in lineages if one is not None)
        self._group = ServerGroup(self.settings.group, published, identity, time.monotonic())

    def apply(self, target: str, reading: ServerObservation | Unreadable, now: float) -> list[Observation]:
        if isinstance(reading, Unreadable):
            self._group.mark_stale(target, str(reading), now)
        else:
            self._group.observe(target, reading, now)
        return [
            one._replace(topic=self.prefix + one.topic, identity=self._identity(one.topic, one.identity))
            for one in self._group.drain_changes()
        ]

    def stale(self) -> Sequence[StaleMark]:
        return self._group.stale_marks()

    def needs(self, mark: str) -> Iterable[str]:
        if mark in self._readers:
            return {mark}
        # Other marks are read from the primary, which any listed server may be until it is known.
        return self._readers if mark in DERIVED or self._group.primary is None else {self._group.primary}

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The end of the primary's log, read after the call began. Raises SourceStale."""
        primary = self._group.primary
        if primary is None:
            raise SourceStale(f"{self.prefix}: no primary is available")
        position = await self._readers[primary].end()
        # A promotion during the query may have lost this end.
        if self._group.primary != primary:
            raise SourceStale(f"{self.prefix}: {primary} is no longer the primary")
        self._group.note_end(position)
        return [End(name, 0, position) for name in names]

    def _identity(self, mark: str, identity: str) -> str:
        """Identities are never reused: a slot that is recreated, or a replica that was forgotten, gets a new one."""
        lineage = self.publisher.replicator.lineage((self.prefix + mark, 0))
        if lineage is None or identity not in lineage.retired:
            return identity
        return next(one for count in itertools.count(1) if (one := f"{identity}#{count}") not in lineage.retired)
