"""The PostgreSQL source: reads the position of each server, and passes the resulting marks to the publisher.

Of a primary it also reads what that knows of its replicas and slots.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from purgatory.source_uri import SourceUri
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.postgres.observations import FoundReplica, LogPages, ServerObservation
from purgatory_connectors.postgres.postgres_settings import PostgresSettings, ServerSettings
from purgatory_connectors.postgres.server_group import ServerGroup
from purgatory_connectors.postgres.timelines import forks_of, newest_identity
from purgatory_connectors.publisher.mark_rules import DERIVED, StaleMark
from purgatory_connectors.publisher.observation import End, Observation
from purgatory_connectors.publisher.polled_source import PolledSource, Unreadable

log: Final = logging.getLogger(__name__)

_Connection = psycopg.AsyncConnection[TupleRow]

_IDENTITY, _POSITION = (files(__package__).joinpath(f"{name}.sql").read_bytes() for name in ("identity", "position"))
_MAY_READ_HISTORY: Final = b"""
SELECT to_regprocedure('purgatory_timeline_history(integer)') IS NOT NULL,
       has_function_privilege('pg_read_file(text)', 'EXECUTE')
"""
_OWN_HISTORY: Final = b"SELECT purgatory_timeline_history(%s)"
_READ_HISTORY: Final = b"SELECT pg_read_file('pg_wal/' || lpad(upper(to_hex(%s)), 8, '0') || '.history')"

# Replicas receive only flushed log, and without a commit a flush may take 15 seconds. Assigning a transaction id writes
# a commit record, which the WAL writer flushes within wal_writer_delay.
_END: Final = b"""
SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()
"""
_FLUSH_SOON: Final = b"SELECT pg_current_xact_id()"


@dataclass(slots=True)
class _Link:
    """A connection, and the facts about its server that hold as long as it lasts."""

    connection: _Connection
    system_id: int
    pages: LogPages
    aliases: frozenset[str]
    timeline: int
    history_of: int = 0
    """The timeline whose history `forks` is; 0: none has been read."""
    forks: Mapping[int, int] | None = None


class ServerReader:
    """Keeps a connection to one server. A connection that has not answered for `timeout_s` is cut off."""

    def __init__(self, server: ServerSettings, timeout_s: float) -> None:
        self._server: Final = server
        self._timeout_s: Final = timeout_s
        self._link: _Link | None = None

    async def read(self) -> ServerObservation:
        """Connect if necessary, and ask once. Raises Unreadable."""
        try:
            if self._link is None:
                self._link = await self._connect()
            return await self._ask(self._link)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self.close()
            raise Unreadable(_reason(error), is_refused=_is_refusal(error)) from error

    async def end(self) -> int:
        """The end of this primary's log, read after the call began. Raises SourceStale."""
        if self._link is None:
            raise SourceStale(f"{self._server.name} is not available")
        connection = self._link.connection
        try:
            position, is_unflushed = await self._row(connection, _END)
            if is_unflushed:
                await self._row(connection, _FLUSH_SOON)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise SourceStale(f"{self._server.name}: {_reason(error)}") from error
        return int(position)

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.connection.close()

    async def _connect(self) -> _Link:
        parameters: dict[str, Any] = {"application_name": "purgatory-source", **self._server.parameters}
        # Our commits do not wait for replicas. The server itself cancels a query that exceeds the timeout.
        milliseconds = round(self._timeout_s * 1000)
        options = f"-c synchronous_commit=off -c statement_timeout={milliseconds} -c default_transaction_read_only=off"
        parameters["options"] = f"{parameters.get('options', '')} {options}".strip()
        async with asyncio.timeout(self._timeout_s * 2):
            connection = await psycopg.AsyncConnection.connect(autocommit=True, **parameters)
        try:
            system_id, page_bytes, segment_bytes, cluster_name, conninfo, timeline = await self._row(
                connection, _IDENTITY
            )
        except BaseException:
            await connection.close()
            raise
        aliases = frozenset(filter(None, (cluster_name, _application_name(conninfo))))
        return _Link(connection, system_id, LogPages(page_bytes, segment_bytes), aliases, timeline)

    async def _ask(self, link: _Link) -> ServerObservation:
        recovers, position, timeline, found, slots = await self._row(link.connection, _POSITION)
        link.timeline = link.timeline if timeline is None else timeline
        if link.timeline != link.history_of:
            link.forks = await self._history(link.connection, link.timeline)
            link.history_of = link.timeline
        if position is None:
            raise Unreadable("it has not replayed anything yet")
        past_header = link.pages.past_header
        seen = ServerObservation(
            link.system_id, link.timeline, not recovers, past_header(position), link.forks, link.aliases
        )
        if found is not None:
            seen.found = tuple(FoundReplica(name, past_header(its)) for name, its in found)
            seen.slots = {slot: -1 if at is None else past_header(at) for slot, (at, _) in slots.items()}
            seen.invalidated_slots = {slot: why for slot, (_, why) in slots.items() if why is not None}
        return seen

    async def _history(self, connection: _Connection, timeline: int) -> Mapping[int, int] | None:
        """End of each earlier timeline; None if the login may not read the history."""
        if timeline <= 1:
            return {}
        has_own, may_read = await self._row(connection, _MAY_READ_HISTORY)
        if not (has_own or may_read):
            return None
        try:
            (text,) = await self._row(connection, _OWN_HISTORY if has_own else _READ_HISTORY, (timeline,))
            return forks_of(text or "")
        except (psycopg.Error, ValueError) as error:
            log.warning(
                "%s: the history of timeline %d cannot be read: %s", self._server.name, timeline, _reason(error)
            )
            return None

    async def _row(self, connection: _Connection, query: bytes, values: tuple[Any, ...] | None = None) -> TupleRow:
        timer = asyncio.get_running_loop().call_later(self._timeout_s, _cut_off, connection)
        try:
            cursor = await connection.execute(query, values)
            row = await cursor.fetchone()
        except psycopg.Error:
            if timer.when() <= asyncio.get_running_loop().time():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
        assert row is not None, query
        return row


def _cut_off(connection: _Connection) -> None:
    """Make a pending query fail. Cancelling the task would not: psycopg then asks the server, and waits for it."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def _application_name(conninfo: str | None) -> str:
    """The application_name with which a replica connects to its primary."""
    if not conninfo:
        return ""
    try:
        return str(conninfo_to_dict(conninfo).get("application_name") or "")
    except psycopg.Error:
        return ""


def _is_refusal(error: BaseException) -> bool:
    """Whether an administrator must fix it: a login, an entry in pg_hba.conf, a grant."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege | psycopg.errors.InvalidAuthorizationSpecification):
        return True
    # libpq reports no SQLSTATE for errors during connect.
    text = str(error)
    return isinstance(error, psycopg.OperationalError) and any(
        words in text
        for words in ("authentication failed", "no pg_hba.conf entry", "no password supplied", 'role "', "permission")
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    lines = str(error).strip().splitlines()
    return lines[0].removeprefix("connection failed: ")[:300] if lines else type(error).__name__


class PostgresSource(PolledSource[ServerObservation]):
    """Marks of a primary and its replicas, under "pg/NAME/": SERVER, slot:SLOT, any, all and quorum.

    Its targets are the listed servers, by name. Raises SourceUriInvalid.
    """

    def __init__(self, uri: SourceUri) -> None:
        settings = PostgresSettings.of_uri(uri)
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
