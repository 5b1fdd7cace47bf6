"""The log in PostgreSQL: one table for the entries of all shards, and one for snapshots.

libpq is used directly, for two reasons: psycopg waits for an answer for as long as the server is silent, and the rows
of a group are written locally while its INSERT is on its way.
"""

import contextlib
import logging
import os
import select
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import pq

from purgatory.replicated_log.entry import Entry
from purgatory.replicated_log.errors import LogLost, LogRefused, LogTrimmed, LogUnavailable
from purgatory.replicated_log.replicated_log import Place, ReplicatedLog, Snapshot, checked_chunk

ANSWER_S: Final = 2.0
"""How long a statement may take, and a connection attempt to each host."""

MAINTENANCE_S: Final = 30.0
"""How long a statement on snapshots may take, or a step of trimming."""

POLL_S: Final = 0.05
"""A reader polls. NOTIFY would take a lock that all commits of the database share."""

READ_ENTRIES_MAX: Final = 100
TRIM_ENTRIES: Final = 1_000
"""Rows per DELETE while trimming, so that vacuum keeps up and no transaction is long."""

LOG: Final = "purgatory_log"
SNAPSHOTS: Final = "purgatory_snapshots"
CREATE: Final = {
    LOG: b"""
CREATE TABLE IF NOT EXISTS purgatory_log (
    shard int, position bigint, at timestamptz NOT NULL DEFAULT clock_timestamp(), content bytea NOT NULL,
    PRIMARY KEY (shard, position)
) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0.01)
""",
    SNAPSHOTS: b"""
CREATE TABLE IF NOT EXISTS purgatory_snapshots (
    shard int, snapshot bytea, chunk int, chunks bigint NOT NULL, position bigint NOT NULL, crc32 bigint NOT NULL,
    content bytea NOT NULL, PRIMARY KEY (shard, snapshot, chunk)
)
""",
}
# In one statement, so that no shard lacks its origin. Afterwards the highest shard tells how many there are.
BEGIN: Final = b"""
INSERT INTO purgatory_log (shard, position, content) SELECT shard, 0, $2 FROM generate_series(0, $1 - 1) AS shard
WHERE NOT EXISTS (SELECT FROM purgatory_log)
"""
SHARDS: Final = b"SELECT coalesce(max(shard) + 1, 0)::bigint FROM purgatory_log"
# A commit after all earlier ones: once the replicas have it, they have those too.
COMMIT: Final = b"SELECT pg_logical_emit_message(true, 'purgatory', '')"
# The entry before must be there: after a failover to a server that lacks entries, an append would leave a gap.
INSERT: Final = b"""
INSERT INTO purgatory_log (shard, position, content) SELECT $1, $2, $3 WHERE EXISTS (
    SELECT FROM purgatory_log WHERE shard = $1 AND position = $2 - 1
) OR ($2 = 0 AND NOT EXISTS (SELECT FROM purgatory_log WHERE shard = $1 AND position > 0))
RETURNING (extract(epoch FROM at) * 1000)::bigint
"""
READ: Final = b"""
SELECT position, (extract(epoch FROM at) * 1000)::bigint, content FROM purgatory_log
WHERE shard = $1 AND position >= $2 ORDER BY position LIMIT $3
"""
TRIM: Final = b"""
DELETE FROM purgatory_log WHERE shard = $1 AND position IN (
    SELECT position FROM purgatory_log WHERE shard = $1 AND position < $2
    AND position < (SELECT max(position) FROM purgatory_log WHERE shard = $1) ORDER BY position LIMIT $3
) RETURNING position
"""
TRIM_SNAPSHOTS: Final = b"DELETE FROM purgatory_snapshots WHERE shard = $1 AND position < $2"
NEWEST: Final = b"""
SELECT snapshot, position, chunks FROM purgatory_snapshots WHERE shard = $1 AND position < $2
GROUP BY snapshot, position, chunks HAVING count(*) = chunks ORDER BY position DESC LIMIT 1
"""

UNIQUE_VIOLATION: Final = b"23505"
NOT_PERMITTED: Final = b"42501"
REFUSED: Final = (b"42", b"3F")
"""Classes of SQLSTATE that no retry can fix: a missing table, schema or right."""

TO_READ: Final = ("SELECT",)
TO_LEAD: Final = ("SELECT", "INSERT", "DELETE")
"""Rights on both tables. A standby needs those of a leader, and would otherwise miss them when it takes over."""

NEEDS: Final = "SELECT, INSERT and DELETE on both tables of the log"

HIGHEST: Final = 2**63 - 1
INT8: Final = 20
BYTEA: Final = 17

log = logging.getLogger(__name__)


class _Failed(Exception):
    """A statement failed; the first argument is its SQLSTATE."""


class PostgresLog(ReplicatedLog):
    def __init__(self, url: str, shard: int = 0) -> None:
        """Connections are made when needed. `url`: "postgresql://host/database", or anything that libpq accepts."""
        self._url: Final = url
        self._shard: Final = shard
        self._connection: psycopg.Connection[Any] | None = None
        self._has_warned = False
        self._position = -1
        """Where the last entry was sent to."""

    def create(self, shards: int) -> None:
        for table, sql in CREATE.items():
            # Also if the table exists, PostgreSQL would want the right to create it.
            if self._query(f"SELECT WHERE to_regclass('{table}') IS NULL".encode()):
                self._query(sql, needs="CREATE on the schema of the log, or of another search_path")
        self._commit(BEGIN, shards, Entry.origin().to_bytes())

    def check(self, shards: int | None) -> None:
        for table in CREATE:
            self._check_rights(table, TO_READ if shards is None else TO_LEAD)
        ((count,),) = self._query(SHARDS)
        if not count:
            raise LogRefused(f"table {LOG}: is empty. `purgatory fleet init` begins a log")
        if shards is not None and count != shards:
            raise LogRefused(f"table {LOG}: shards={count}, must be {shards}, the number of shards")
        if self._shard >= count:
            raise LogRefused(f"table {LOG}: shards={count}, so there is no shard {self._shard}")
        ((commit, names),) = self._query(
            b"SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"
        )
        if commit.decode() in {"off", "local"} or not names:
            log.warning(
                "PostgreSQL has synchronous_commit=%s and synchronous_standby_names='%s': the loss of its primary "
                "can lose acknowledged operations. Set the first to on, and name a replica in the second",
                commit.decode(),
                names.decode(),
            )

    def _check_rights(self, table: str, needed: Sequence[str]) -> None:
        """Raises LogRefused, which names the rights on a table that the role lacks."""
        names = ",".join(needed)
        rows = self._query(
            f"SELECT name, current_user::text FROM unnest(string_to_array('{names}', ',')) AS name "  # noqa: S608 - ours
            f"WHERE NOT has_table_privilege('{table}', name)".encode()
        )
        if rows:
            missing, role = ", ".join(row[0].decode() for row in rows), rows[0][1].decode()
            raise LogRefused(f'table {table}: role {role} lacks rights on it: GRANT {missing} ON {table} TO "{role}"')

    def end(self) -> int:
        ((end,),) = self._query(
            b"SELECT coalesce(max(position), -1) + 1 FROM purgatory_log WHERE shard = $1", self._shard
        )
        return int(end)

    def read(self, start: int, wait_s: float) -> list[Entry]:
        until = time.monotonic() + wait_s
        while not (rows := self._query(READ, self._shard, start, READ_ENTRIES_MAX)):
            if time.monotonic() >= until:
                if start > (end := self.end()):
                    raise LogLost(f"the log has gone back: it ends at position {end}, before position {start}")
                return []
            time.sleep(POLL_S)
        if rows[0][0] > start:
            raise LogTrimmed(f"the log begins at position {rows[0][0]}, after position {start}")
        if rows[-1][0] != start + len(rows) - 1:
            raise LogLost(f"the log has lost entries between positions {start} and {rows[-1][0]}")
        return [Entry.from_bytes(content, position, logged_ms) for position, logged_ms, content in rows]

    def begin(self, entry: Entry, position: int) -> None:
        self._has_warned = False
        self._position = position
        try:
            self._send(INSERT, self._shard, position, entry.to_bytes())
        except _Failed as error:
            raise _typed(error) from None
        except BaseException:
            self.close()
            raise

    def finish(self, timeout_s: float) -> Place | None:
        position = self._position
        try:
            rows = self._receive(timeout_s)
        except _Failed as error:
            if error.args[0] != UNIQUE_VIOLATION:
                raise _typed(error) from None
            rows = []
        except BaseException:
            self.close()  # the answer of this statement must not be taken for that of the next one
            raise
        self._check_replicated()
        if rows:
            return Place(position, rows[0][0])
        if position > self.end():
            raise LogLost(f"the log has gone back: position {position - 1} is not in it")
        # There may be our own entry, whose connection broke or whose wait for the replica was cancelled: visible, but
        # not yet replicated. A later commit waits for it too.
        self._commit(COMMIT)
        return None

    def put_snapshot(self, position: int, chunks: Sequence[bytes]) -> None:
        snapshot = os.urandom(16)
        for number, content in enumerate(chunks):
            self._commit(
                b"INSERT INTO purgatory_snapshots VALUES ($1, $2, $3, $4, $5, $6, $7)",
                self._shard, snapshot, number, len(chunks), position, zlib.crc32(content), content,
                timeout_s=MAINTENANCE_S,
            )  # fmt: skip

    def last_snapshot(self, below: int | None = None) -> Snapshot | None:
        rows = self._query(NEWEST, self._shard, HIGHEST if below is None else below)
        return Snapshot(rows[0][1], lambda: self._chunks(rows[0][0], rows[0][2])) if rows else None

    def _chunks(self, snapshot: bytes, chunks: int) -> Iterator[bytes]:
        for number in range(chunks):
            rows = self._query(
                b"SELECT content, crc32 FROM purgatory_snapshots WHERE shard = $1 AND snapshot = $2 AND chunk = $3",
                self._shard, snapshot, number,
            )  # fmt: skip
            yield checked_chunk(number, *(rows[0] if rows else (None, 0)))

    def trim(self, below: int) -> None:
        deleted = TRIM_ENTRIES
        while deleted == TRIM_ENTRIES:
            deleted = len(self._query(TRIM, self._shard, below, TRIM_ENTRIES, timeout_s=MAINTENANCE_S))
        self._query(TRIM_SNAPSHOTS, self._shard, below, timeout_s=MAINTENANCE_S)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> pq.abc.PGconn:
        if self._connection is None:
            try:
                # The primary, if the address names several servers.
                connection = psycopg.connect(
                    self._url, autocommit=True, connect_timeout=round(ANSWER_S), target_session_attrs="read-write",
                    application_name="purgatory-fleet",
                )  # fmt: skip
            except psycopg.Error as error:
                raise LogUnavailable(f"cannot connect to PostgreSQL: {_why(error)}") from None
            # No statement_timeout: it would end the wait for a replica, and the INSERT would succeed with a warning.
            connection.add_notice_handler(self._note)
            self._connection = connection
            self._query(b"SET client_min_messages = warning")  # a role's own setting could hide the warning
        return self._connection.pgconn

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        self._has_warned |= notice.severity_nonlocalized == "WARNING"

    def _commit(self, sql: bytes, *values: int | bytes, timeout_s: float = ANSWER_S) -> None:
        """Execute a statement on whose commit something rests: the replicas have it when this returns."""
        self._has_warned = False
        self._query(sql, *values, timeout_s=timeout_s)
        self._check_replicated()

    def _check_replicated(self) -> None:
        """Raises LogUnavailable if the last statement was committed on the primary alone: a person or a program has
        cancelled its wait for the replicas, which only a warning tells.
        """
        if self._has_warned:
            raise LogUnavailable("PostgreSQL committed without waiting for its replicas")

    def _query(
        self, sql: bytes, *values: int | bytes, timeout_s: float = ANSWER_S, needs: str = NEEDS
    ) -> list[tuple[Any, ...]]:
        try:
            self._send(sql, *values)
            return self._receive(timeout_s)
        except _Failed as error:
            raise _typed(error, needs) from None
        except BaseException:
            self.close()
            raise

    def _send(self, sql: bytes, *values: int | bytes) -> None:
        server = self._connected()
        # Numbers as text, bytes and results as binary.
        parameters = [str(value).encode() if isinstance(value, int) else value for value in values]
        types = [INT8 if isinstance(value, int) else BYTEA for value in values]
        formats = [int(kind == BYTEA) for kind in types]
        try:
            server.send_query_params(sql, parameters, types, formats, pq.Format.BINARY)
            server.flush()
        except psycopg.Error as error:
            raise LogUnavailable(f"PostgreSQL: {error}") from None

    def _receive(self, timeout_s: float) -> list[tuple[Any, ...]]:
        """The rows of the statement that was sent last. Raises _Failed, LogUnavailable."""
        assert self._connection is not None
        server = self._connection.pgconn
        until = time.monotonic() + timeout_s
        poller = select.poll()
        last: pq.abc.PGresult | None = None
        try:
            while True:
                poller.register(server.socket, select.POLLIN | (select.POLLOUT if server.flush() else 0))
                # Before the deadline is checked: after a pause of this process the answer may have arrived.
                server.consume_input()
                while not server.is_busy():
                    result = server.get_result()
                    if result is None:
                        return _rows(last)
                    last = result
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise LogUnavailable(f"PostgreSQL has not answered for {timeout_s:.1f} s")
                poller.poll(left_s * 1_000)
        except psycopg.Error as error:
            raise LogUnavailable(f"PostgreSQL: {error}") from None


def _rows(result: pq.abc.PGresult | None) -> list[tuple[Any, ...]]:
    assert result is not None
    if result.status not in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
        raise _Failed(result.error_field(pq.DiagnosticField.SQLSTATE) or b"", result.get_error_message())
    columns = range(result.nfields)
    are_numbers = [result.ftype(column) == INT8 for column in columns]
    return [
        tuple(
            int.from_bytes(value, "big", signed=True) if is_number else value
            for is_number, value in zip(are_numbers, (result.get_value(row, at) or b"" for at in columns), strict=True)
        )
        for row in range(result.ntuples)
    ]


def _why(error: psycopg.Error) -> str:
    """Why no server could be used, in one line: of several servers, what is wrong with each."""
    lines = str(error).splitlines()
    return "; ".join(line.rpartition("connection failed: ")[2] for line in lines if line[:2] == "- ") or lines[0]


def _typed(failed: _Failed, needs: str = NEEDS) -> LogRefused | LogUnavailable:
    state, message = failed.args
    text = " ".join(message.split())
    if state[:2] in REFUSED:
        remedy = "`purgatory fleet init` creates the tables of a log, and a role needs USAGE on their schema"
        if state == NOT_PERMITTED:
            remedy = f"The role needs {needs}"
        return LogRefused(f"PostgreSQL refuses: {text}. {remedy}")
    return LogUnavailable(f"PostgreSQL: {text}")
