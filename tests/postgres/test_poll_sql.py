"""The poll source with a query of a real PostgreSQL server: progress of projections, a server that hangs.

The commands of the documentation that need PostgreSQL, or a number to poll, with real servers.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from purgatory_client import AsyncClient
from purgatory_client.errors import NotFound

from examples.local_postgres import ROLE, LocalPostgres, LocalServer
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually
from tests.sources.publishing import Status, publishing, until_mark

OPTIONS = {
    "query": "SELECT name, position FROM progress",
    "end": "SELECT max(id) FROM events",
    "user": ROLE,
    "poll_ms": 5,
    "idle_poll_ms": 20,
    "timeout_ms": 500,
}
ORDERS, STOCK = "poll/main/orders", "poll/main/stock%2Feu"


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
async def client(daemon: DaemonProcess, progress: LocalServer) -> AsyncIterator[AsyncClient]:
    """A client of a daemon to which a source publishes the progress."""
    async with publishing(daemon, f"poll+sql://{progress.address}/postgres?{urlencode(OPTIONS)}") as client:
        await until_mark(client, ORDERS, lambda mark: mark.high_watermark == 0 and not mark.stale_reason)
        yield client


async def test_each_row_is_a_mark_until_it_is_deleted(client: AsyncClient, progress: LocalServer) -> None:
    """The newest event is the end to wait for."""
    with pytest.raises(NotFound):
        await client.partition(STOCK)
    progress.query("INSERT INTO events VALUES (1), (2)")
    pending = asyncio.create_task(client.wait_for(await client.ends([ORDERS]), timeout=60))
    await until_mark(client, ORDERS, lambda mark: mark.watched == 1)
    progress.query("UPDATE progress SET position = 1")
    await until_mark(client, STOCK, lambda mark: mark.high_watermark == 1)
    assert not pending.done()
    progress.query("UPDATE progress SET position = 2")
    assert (await pending).satisfied
    progress.query("DELETE FROM progress WHERE name = 'stock/eu'")

    async def marks() -> bool:
        return [one.topic async for one in client.partitions(prefix="poll/")] == [ORDERS]

    await eventually(marks)


async def test_failing_and_slow_queries_make_marks_stale(client: AsyncClient, progress: LocalServer) -> None:
    """The reason of a missing table is in the database's words. A statement that takes longer than `timeout_ms` is
    cancelled before the next begins.
    """

    async def change(statement: str) -> None:
        """In a thread, because the source, which this waits for, runs in the loop."""
        await asyncio.to_thread(progress.query, statement)

    await change("ALTER TABLE progress RENAME TO other")
    await until_mark(client, ORDERS, lambda mark: 'relation "progress" does not exist' in mark.stale_reason)
    await change("CREATE VIEW progress AS SELECT name, position FROM other, pg_sleep(3600)")
    await change(f"GRANT SELECT ON progress TO {ROLE}")
    asked = set()

    async def is_asked_again() -> bool:
        running = await asyncio.to_thread(
            progress.query,
            "SELECT query_start FROM pg_stat_activity "
            f"WHERE usename = '{ROLE}' AND state = 'active' AND query LIKE '%progress%'",
        )
        assert len(running) <= 1
        asked.update(running)
        return len(asked) > 2

    await eventually(is_asked_again, "three statements")
    assert (await client.partition(ORDERS)).stale_reason == "it does not answer"
    await change("DROP VIEW progress")
    await change("ALTER TABLE other RENAME TO progress")
    await until_mark(client, ORDERS, lambda mark: not mark.stale_reason)


@pytest.fixture
def own_postgres(postgres: LocalPostgres) -> Iterator[LocalPostgres]:
    """Servers of its own: other tests expect that the log of the shared ones is short."""
    with LocalPostgres() as servers:
        servers.replica("r1", servers.primary())
        yield servers


def test_commands_of_the_pages_succeed_with_their_sources(
    own_postgres: LocalPostgres, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    primary = own_postgres.servers["p"]
    primary.query("CREATE TABLE progress AS SELECT 'orders' AS name, 42 AS position")
    primary.query(f"GRANT SELECT ON progress TO {ROLE}")
    primary.query("SELECT pg_logical_emit_message(false, 'long', repeat('x', 24000000))")
    assert primary.position() > 0x16B3748, "the position that the pages wait for"
    polled = sources_about("poll+sql", primary.address)
    commands = commands_about(" pg/", " poll/")
    assert len(commands) > 3
    with Status() as application:
        application.say({"projection": {"position": 42}, "log": {"head": 42}})
        daemon = start_daemon(
            *("--source", own_postgres.source_uri()),
            *sources_about("poll+http", application.address),
            *(option.replace("/shop", "/postgres").replace("user=reader", f"user={ROLE}") for option in polled),
        )
        script = "\n".join(["set -e", *commands]).replace("--timeout 5s", "--timeout 5m")
        done = shell(script, tmp_path, {"PURGATORY_ADDRESS": daemon.address})
    assert done.returncode == 0, done.stdout + done.stderr
