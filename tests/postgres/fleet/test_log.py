"""The fleet's log in a real PostgreSQL: entries, positions, snapshots, trimming, outages."""

import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from examples.local_postgres import LocalPostgres
from purgatory.replicated_log.entry import Entry, Kind
from purgatory.replicated_log.errors import CutOff, LogLost, LogRefused, LogTrimmed
from purgatory.replicated_log.log_writer import LogWriter
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.postgres_log import PostgresLog
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replicated_log import Place
from tests.fleet.log_contract import PATIENT_S, LogContract, OpenShard, catch_up
from tests.postgres.conftest import new_log


def ignore(entry: Entry) -> None: ...


def append(log: PostgresLog, entry: Entry, position: int) -> Place | None:
    log.begin(entry, position)
    return log.finish(10)


def group(number: int, content: bytes = b"") -> Entry:
    return Entry(Kind.GROUP, 1, b"w" * 16, number, 1_000, content)


@pytest.fixture
def url(log_servers: LocalPostgres) -> str:
    """The address of a log that does not exist yet."""
    return new_log(log_servers)


@pytest.fixture
def log(url: str) -> Iterator[PostgresLog]:
    log = PostgresLog(url)
    log.create(1)
    yield log
    log.close()


@pytest.fixture
def open_shard(url: str) -> OpenShard:
    with closing(PostgresLog(url)) as log:
        log.create(2)
    return lambda shard: PostgresLog(url, shard)


class TestPostgresLog(LogContract): ...


def test_each_shard_begins_with_one_origin(log: PostgresLog, url: str) -> None:
    """`create` begins each shard with the same random id, and leaves a log that exists as it is."""
    (origin,) = log.read(0, 0)
    log.create(3)
    assert log._query(b"SELECT count(*) FROM purgatory_log") == [(1,)]
    assert (origin.kind, len(origin.log_id), origin.writer) == (Kind.ORIGIN, 16, origin.log_id)
    log._query(b"DELETE FROM purgatory_log")
    with pytest.raises(LogRefused, match=r"table purgatory_log: is empty\. `purgatory fleet init`"):
        log.check(1)
    log.create(2)
    origins = []
    for shard in range(2):
        with closing(PostgresLog(url, shard)) as one:
            one.check(2)
            origins += one.read(0, 0)
    assert origins[0].log_id == origins[1].log_id != origin.log_id


def test_number_of_shards_is_that_of_the_log(log: PostgresLog, url: str) -> None:
    log._query(b"DELETE FROM purgatory_log")
    log.create(2)
    log.check(2)
    for shards in (1, 3):
        with pytest.raises(LogRefused, match=f"purgatory_log: shards=2, must be {shards}, the number of shards"):
            log.check(shards)
    with closing(PostgresLog(url, 2)) as third, pytest.raises(LogRefused, match="so there is no shard 2"):
        third.check(None)


def test_a_position_is_taken_once(log: PostgresLog) -> None:
    """The second entry at a position is not appended; one after a gap shows that the log has gone back."""
    assert append(log, group(1), 1) is not None
    assert append(log, group(2), 1) is None
    assert log.end() == 2
    with pytest.raises(LogLost, match="position 4 is not in it"):
        append(log, group(2), 5)
    with pytest.raises(LogLost, match="it ends at position 2, before position 7"):
        log.read(7, 0)


def test_missing_table_is_refused_with_the_command_that_creates_it(url: str) -> None:
    log = open_log(url)
    with pytest.raises(LogRefused, match="purgatory fleet init"):
        log.check(1)
    log.close()


def test_a_daemon_needs_the_documented_permissions_only(log_servers: LocalPostgres, log: PostgresLog, url: str) -> None:
    server, name = log_servers.servers["p"], f"daemon_{uuid.uuid4().hex[:8]}"
    schema = url.rpartition("%3D")[2]
    server.query(f"CREATE ROLE {name} LOGIN")
    server.query(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
    server.query(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
    daemon = PostgresLog(url.replace("postgres@", f"{name}@"))
    daemon.check(1)
    for at in range(1, 3):
        assert append(daemon, group(at), at) is not None
    for position in (0, 1):
        daemon.put_snapshot(position, [b"content"])
    snapshot = daemon.last_snapshot()
    assert snapshot is not None
    assert (snapshot.position, b"".join(snapshot.read())) == (1, b"content")
    daemon.trim(2)
    assert [entry.number for entry in daemon.read(2, 0)] == [2]
    with pytest.raises(LogTrimmed):
        daemon.read(0, 0)
    daemon.close()
    server.query(f"DROP OWNED BY {name}")


def test_each_missing_right_is_named(log_servers: LocalPostgres, log: PostgresLog, url: str) -> None:
    """A daemon whose role lacks a right on either table is refused with the GRANT that it needs; `verify` needs SELECT.
    `init` needs the right to create tables only where they do not exist.
    """
    server, name = log_servers.servers["p"], f"daemon_{uuid.uuid4().hex[:8]}"
    schema, other = url.rpartition("%3D")[2], f"other_{uuid.uuid4().hex[:8]}"
    server.query(f"CREATE ROLE {name} LOGIN; CREATE SCHEMA {other}; GRANT USAGE ON SCHEMA {schema}, {other} TO {name}")
    server.query(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
    with closing(PostgresLog(url.replace("postgres@", f"{name}@"))) as daemon:
        for table in ("purgatory_log", "purgatory_snapshots"):
            for right in ("SELECT", "INSERT", "DELETE"):
                server.query(f"REVOKE {right} ON {schema}.{table} FROM {name}")
                grant = f'table {table}: role {name} lacks rights on it: GRANT {right} ON {table} TO "{name}"'
                with pytest.raises(LogRefused, match=grant):
                    daemon.check(1)
                if right != "SELECT":
                    daemon.check(None)
                server.query(f"GRANT {right} ON {schema}.{table} TO {name}")
        daemon.create(1)
        daemon.check(1)
    elsewhere = PostgresLog(url.replace("postgres@", f"{name}@").replace(schema, other))
    with closing(elsewhere), pytest.raises(LogRefused, match=f"schema {other}.* The role needs CREATE on the schema"):
        elsewhere.create(1)
    server.query(f"DROP OWNED BY {name}; DROP SCHEMA {other}")


def test_a_database_without_synchronous_replicas_is_reported(
    log: PostgresLog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "purgatory.replicated_log"):
        log.check(1)
    assert "synchronous_commit=on and synchronous_standby_names=''" in caplog.text


def test_unfinished_and_damaged_snapshots(log: PostgresLog) -> None:
    """A snapshot that is not complete is not found, a damaged one is refused, and trimming keeps the last entry."""
    for at in range(1, 5):
        append(log, group(at), at)
    log.put_snapshot(3, [b"content"])
    log._query(b"INSERT INTO purgatory_snapshots SELECT 0, 'unfinished', 0, 2, 4, 0, 'x'")
    newest = log.last_snapshot()
    assert newest is not None
    assert newest.position == 3
    log._query(b"UPDATE purgatory_snapshots SET content = 'y' WHERE position = 3")
    with pytest.raises(LogRefused, match="chunk 0 of the snapshot is damaged"):
        list(newest.read())
    log.trim(99)
    assert [entry.position for entry in log.read(4, 0)] == [4]
    assert log.last_snapshot() is None


def test_many_entries_are_trimmed_in_steps(log: PostgresLog) -> None:
    log._query(b"INSERT INTO purgatory_log SELECT 0, n, now(), '' FROM generate_series(1, 2500) AS n")
    log.trim(2_400)
    assert log._query(b"SELECT count(*), min(position) FROM purgatory_log") == [(101, 2_400)]


def test_an_unanswered_append_is_cut_off_and_may_count(log: PostgresLog, log_servers: LocalPostgres) -> None:
    """While the server hangs, an append ends after its deadline; the writer is then closed."""
    writer = LogWriter(log, Reign(), ignore, cut_off_s=5)
    catch_up(writer, log)
    writer.claim(0)
    server = log_servers.servers["p"]
    server.signal_all(signal.SIGSTOP)
    try:
        pending = writer.begin(Kind.GROUP, 0, b"late")
        with pytest.raises(CutOff, match="no answer for 5 s"):
            pending.finish()
    finally:
        server.signal_all(signal.SIGCONT)
    with pytest.raises(CutOff, match="restart this daemon"):
        writer.append(Kind.GROUP, 0, b"another")
    reader = Reign()
    next_one = LogWriter(log, reader, ignore, PATIENT_S)
    catch_up(next_one, log)
    assert reader.state.number in {0, 1}
    next_one.claim(0)
    assert next_one.append(Kind.GROUP, 0, b"next").epoch == 2


def test_a_lost_answer_is_found_by_reading(log: PostgresLog) -> None:
    writer, other = LogWriter(log, Reign(), ignore, PATIENT_S), PostgresLog(log._url)
    catch_up(writer, log)
    writer.claim(0)
    pending = writer.begin(Kind.GROUP, 0, b"once")
    while other.end() < 3:
        time.sleep(0.01)
    with socket.socket(fileno=os.dup(log._connected().socket)) as connection:
        connection.recv(65_536)  # the answer
        connection.shutdown(socket.SHUT_RDWR)
    entry = pending.finish()
    other.close()
    assert entry.position == 2
    assert [one.content for one in log.read(1, 0)] == [b"", b"once"]
