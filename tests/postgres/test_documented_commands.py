"""The commands of the documentation that need PostgreSQL, or a number to poll, with real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_postgres import ROLE, LocalPostgres
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import StartDaemon
from tests.sources.publishing import Status


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
