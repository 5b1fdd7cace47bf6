"""The poll source with a query of a real PostgreSQL server: progress of projections, a server that hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from purgatory_client import Client, Outcome
from purgatory_client.errors import NotFound

from examples.local_postgres import ROLE, LocalPostgres, LocalServer
from tests.kit.daemon import DaemonProcess, daemon_environment
from tests.kit.eventually import wait_until

QUERY = "SELECT name, position FROM progress"
END = "SELECT max(id) FROM events"


@pytest.fixture
def progress(postgres: LocalPostgres) -> Iterator[LocalServer]:
    """The primary with a log of events and the progress of two projections."""
    primary = postgres.servers["p"]
    primary.query("CREATE TABLE events (id bigint)")
    primary.query("CREATE TABLE progress (name text PRIMARY KEY, position numeric)")
    primary.query("INSERT INTO progress VALUES ('orders', 0), ('stock/eu', NULL)")
    primary.query(f"GRANT SELECT ON events, progress TO {ROLE}")
    yield primary
    primary.query("DROP TABLE events, progress")


@pytest.fixture
def client(shared_daemon: DaemonProcess, progress: LocalServer, tmp_path: Path) -> Iterator[Client]:
    """A client of a daemon to which a source publishes the progress."""
    command = [sys.executable, "-m", "purgatory_connectors", "poll", f"poll+sql://{progress.address}/postgres"]
    for option in (f"query={QUERY}", f"end={END}", f"user={ROLE}", "name=sql", "poll_ms=5", "idle_poll_ms=20"):
        command += ["--option", option]
    command += ["--option", "timeout_ms=500", "--to", shared_daemon.address]
    with (tmp_path / "source.log").open("wb") as log:
        environment = daemon_environment({"PYTHONPATH": os.pathsep.join(sys.path)})
        source = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    with Client(shared_daemon.address) as client:
        yield client
    source.kill()
    source.wait()


def mark(client: Client, name: str) -> int:
    try:
        return client.partition(f"poll/sql/{name}").high_watermark
    except NotFound:
        return -1


def stale(client: Client, name: str) -> str:
    return client.partition(f"poll/sql/{name}").stale_reason


def until_read(client: Client) -> None:
    """Wait until this test's source has read, not only that of the test before."""
    wait_until(lambda: mark(client, "orders") == 0 and not stale(client, "orders"), "the source reads")


def test_progress_of_projections(client: Client, progress: LocalServer) -> None:
    """Each row is a mark. The newest event is the end to wait for; a deleted row is gone."""
    wait_until(lambda: mark(client, "orders") == 0, "the first row is a mark")
    assert mark(client, "stock%2Feu") == -1
    progress.query("INSERT INTO events VALUES (1), (2)")
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(client.wait_for, client.ends(["poll/sql/orders"]), timeout=60)
        wait_until(lambda: client.partition("poll/sql/orders").watched == 1, "the wait is there")
        progress.query("UPDATE progress SET position = 1")
        wait_until(lambda: mark(client, "stock%2Feu") == 1, "the second row is a mark")
        assert not pending.done()
        progress.query("UPDATE progress SET position = 2")
        assert pending.result().outcome is Outcome.SATISFIED
    progress.query("DELETE FROM progress WHERE name = 'stock/eu'")
    wait_until(lambda: mark(client, "stock%2Feu") == -1, "the deleted row is gone")
    assert mark(client, "orders") == 2


def test_a_database_that_hangs(client: Client, progress: LocalServer) -> None:
    """While the server hangs, the marks are stale; then waits continue by themselves."""
    until_read(client)
    progress.signal_all(signal.SIGSTOP)
    try:
        wait_until(lambda: stale(client, "orders"), "the mark is stale")
        assert stale(client, "orders") == "it does not answer"
    finally:
        progress.signal_all(signal.SIGCONT)
    progress.query("UPDATE progress SET position = 7")
    result = client.produce({"poll/sql/orders": 7}, timeout=60)
    assert result.outcome is Outcome.SATISFIED


def test_a_slow_statement(client: Client, progress: LocalServer) -> None:
    """A statement that takes longer than `timeout_ms` makes the marks stale. It is cancelled before the next begins."""
    until_read(client)
    progress.query("ALTER TABLE progress RENAME TO other")
    progress.query("CREATE VIEW progress AS SELECT name, position FROM other, pg_sleep(3600)")
    progress.query(f"GRANT SELECT ON progress TO {ROLE}")
    asked = set()

    def is_asked_again() -> bool:
        running = progress.query(
            "SELECT query_start FROM pg_stat_activity "
            f"WHERE usename = '{ROLE}' AND state = 'active' AND query LIKE '%progress%'"
        )
        assert len(running) <= 1
        asked.update(running)
        return len(asked) > 2

    wait_until(is_asked_again, "three statements")
    assert stale(client, "orders") == "it does not answer"
    progress.query("DROP VIEW progress")
    progress.query("ALTER TABLE other RENAME TO progress")
    wait_until(lambda: not stale(client, "orders"), "the mark is fresh again")


def test_a_query_that_fails(client: Client, progress: LocalServer) -> None:
    """A missing table makes the marks stale with the database's words."""
    until_read(client)
    progress.query("ALTER TABLE progress RENAME TO other")
    wait_until(lambda: stale(client, "orders"), "the mark is stale")
    assert 'relation "progress" does not exist' in stale(client, "orders")
    progress.query("ALTER TABLE other RENAME TO progress")
    wait_until(lambda: not stale(client, "orders"), "the mark is fresh again")
