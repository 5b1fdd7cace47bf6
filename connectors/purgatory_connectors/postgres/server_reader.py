"""Polls one server for its position: frequently while a wait needs it, otherwise every second."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.postgres.observations import FoundReplica, LogPages, ServerObservation, Unseen
from purgatory_connectors.postgres.postgres_settings import PostgresSettings, ServerSettings
from purgatory_connectors.postgres.timelines import forks_of

log: Final = logging.getLogger(__name__)

_Connection = psycopg.AsyncConnection[TupleRow]

_BACK_OFF_S: Final = (0.2, 5.0)
_BACK_OFF_WANTED_S: Final = 0.5
"""Maximum pause while a wait needs this server."""

# Constant for the lifetime of a connection. The control file's timelines are the fallback for a replica that restores
# from an archive or receives nothing at the moment; they may be outdated, but never ahead.
_IDENTITY: Final = b"""
SELECT (SELECT system_identifier FROM pg_control_system()),
       current_setting('wal_block_size')::bigint,
       pg_size_bytes(current_setting('wal_segment_size')),
       current_setting('cluster_name'),
       (SELECT conninfo FROM pg_stat_wal_receiver),
       greatest((SELECT timeline_id FROM pg_control_checkpoint()),
                (SELECT min_recovery_end_timeline FROM pg_control_recovery()))
"""

# A server may leave recovery between two calls, but it cannot enter recovery during a connection. Each CASE therefore
# uses the recovery state read at the start. OFFSET 0 prevents the planner from duplicating that call.
_POSITION: Final = """
SELECT r.recovers,
       (CASE WHEN r.recovers THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0')::bigint,
       CASE WHEN r.recovers THEN (SELECT received_tli FROM pg_stat_wal_receiver)
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       {others}
FROM (SELECT pg_is_in_recovery() AS recovers OFFSET 0) r
"""
_ALONE: Final = _POSITION.format(others="NULL, NULL").encode()
# Logical senders and programs that only receive the log are not replicas; the latter report no replay_lsn. Slot
# invalidation is reported in columns that were added in different releases (wal_status 13, conflicting 16,
# invalidation_reason 17). Read as JSON, a missing column is null.
_WITH_OTHERS: Final = _POSITION.format(
    others="""
       CASE WHEN r.recovers THEN NULL ELSE (
         SELECT coalesce(json_agg(json_build_array(s.application_name, (s.replay_lsn - '0/0')::bigint)), '[]')
         FROM pg_stat_replication s LEFT JOIN pg_replication_slots l ON l.active_pid = s.pid
         WHERE s.state IN ('streaming', 'catchup') AND s.replay_lsn IS NOT NULL
               AND l.slot_type IS DISTINCT FROM 'logical'
       ) END,
       CASE WHEN r.recovers THEN NULL ELSE (
         SELECT coalesce(json_object_agg(slot_name, json_build_array((confirmed_flush_lsn - '0/0')::bigint,
           CASE WHEN slot->>'invalidation_reason' IS NOT NULL THEN slot->>'invalidation_reason'
                WHEN slot->>'wal_status' = 'lost' THEN 'wal_removed'
                WHEN slot->>'conflicting' = 'true' THEN 'conflict with recovery' END)), '{}')
         FROM (SELECT l.*, to_jsonb(l) AS slot FROM pg_replication_slots l) slots
         WHERE slot_type = 'logical'
       ) END"""
).encode()

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


class ServerReader:
    """Connection to one server. `on_reading` receives the server's name and each reading."""

    def __init__(
        self,
        server: ServerSettings,
        settings: PostgresSettings,
        on_reading: Callable[[str, ServerObservation | Unseen], None],
    ) -> None:
        self.name: Final = server.name
        self._server: Final = server
        self._settings: Final = settings
        self._on_reading: Final = on_reading
        self._is_wanted = False
        self._wanted: Final = asyncio.Event()
        self._connection: _Connection | None = None
        self._failures = 0
        self.is_refused = False
        """The server rejects the login or the query."""

    def want(self, *, is_wanted: bool) -> None:
        """Set whether a wait needs this server now. If so, poll at once."""
        self._is_wanted = is_wanted
        if is_wanted:
            self._wanted.set()

    async def run(self) -> None:
        """Connect and poll until cancelled."""
        while True:
            try:
                async with self._connected() as connection:
                    await self._ask(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                self.is_refused = _is_refusal(error)
                self._on_reading(self.name, Unseen(_reason(error)))
                self._failures += 1
            back_off_s = min(_BACK_OFF_S[0] * 2 ** min(self._failures - 1, 8), _BACK_OFF_S[1])
            await self._pause(back_off_s, _BACK_OFF_WANTED_S)

    async def end(self) -> int:
        """The end of this primary's log, read after the call began. Raises SourceStale."""
        connection = self._connection
        if connection is None:
            raise SourceStale(f"{self.name} is not available")
        try:
            position, is_unflushed = await self._row(connection, _END)
            if is_unflushed:
                await self._row(connection, _FLUSH_SOON)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise SourceStale(f"{self.name}: {_reason(error)}") from error
        return int(position)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connection]:
        parameters: dict[str, Any] = {"application_name": "purgatory-source", **self._server.parameters}
        # Our commits do not wait for replicas. The server itself cancels a query that exceeds the timeout.
        milliseconds = round(self._settings.timeout_s * 1000)
        options = f"-c synchronous_commit=off -c statement_timeout={milliseconds} -c default_transaction_read_only=off"
        parameters["options"] = f"{parameters.get('options', '')} {options}".strip()
        async with asyncio.timeout(self._settings.timeout_s * 2):
            connection = await psycopg.AsyncConnection.connect(autocommit=True, **parameters)
        try:
            yield connection
        finally:
            self._connection = None
            await connection.close()

    async def _ask(self, connection: _Connection) -> None:
        """Poll until a query fails."""
        identity = await self._row(connection, _IDENTITY)
        system_id, page_bytes, segment_bytes, cluster_name, conninfo, control_timeline = identity
        pages = LogPages(page_bytes, segment_bytes)
        aliases = frozenset(filter(None, (cluster_name, _application_name(conninfo))))
        timeline, forks, with_others_at = control_timeline, None, 0.0
        history_of = 0
        while True:
            began = time.monotonic()
            is_wanted = self._is_wanted
            with_others = is_wanted or began >= with_others_at
            row = await self._row(connection, _WITH_OTHERS if with_others else _ALONE)
            recovers, position, now_on, found, slots = row
            timeline = timeline if now_on is None else now_on
            if timeline != history_of:
                forks, history_of = await self._history(connection, timeline), timeline
            if with_others:
                with_others_at = began + self._settings.idle_poll_s / 2
            if position is None:
                self._on_reading(self.name, Unseen("it has not replayed anything yet"))
            else:
                self.is_refused, self._failures = False, 0
                self._connection = connection
                observation = ServerObservation(
                    system_id, timeline, not recovers, pages.past_header(position), forks, aliases
                )
                if found is not None:
                    observation.found = tuple(FoundReplica(name, pages.past_header(its)) for name, its in found)
                    observation.slots = {
                        slot: -1 if at is None else pages.past_header(at) for slot, (at, _) in slots.items()
                    }
                    observation.invalidated_slots = {slot: why for slot, (_, why) in slots.items() if why is not None}
                self._on_reading(self.name, observation)
            interval = self._settings.poll_s if is_wanted else self._settings.idle_poll_s
            await self._pause(began + interval - time.monotonic(), self._settings.poll_s)

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
            log.warning("%s: the history of timeline %d cannot be read: %s", self.name, timeline, _reason(error))
            return None

    async def _row(self, connection: _Connection, query: bytes, values: tuple[Any, ...] | None = None) -> TupleRow:
        timer = asyncio.get_running_loop().call_later(self._settings.timeout_s, _cut_off, connection)
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

    async def _pause(self, seconds: float, seconds_if_wanted: float) -> None:
        """Sleep for `seconds`, or for at most `seconds_if_wanted` if a wait needs the server."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._wanted.clear()
        if self._is_wanted:
            await asyncio.sleep(min(seconds, seconds_if_wanted))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.9, 1.0)):  # noqa: S311 so that servers are not asked in step
                await self._wanted.wait()


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
