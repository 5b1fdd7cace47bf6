"""Fixtures for PostgreSQL tests: a primary with two replicas, started in one worker if PostgreSQL is installed."""

import uuid
from collections.abc import Iterator

import pytest

from examples.local_postgres import LocalPostgres, NoPostgres
from tests.kit.programs import fleet_command, skip_unless_required
from tests.postgres.watched_servers import WatchedServers


def not_started() -> LocalPostgres:
    """Servers that are not running yet. Without PostgreSQL the test is skipped, or fails if required."""
    try:
        return LocalPostgres()
    except NoPostgres as missing:
        skip_unless_required("POSTGRES", missing)


@pytest.fixture(scope="package")
def postgres() -> Iterator[LocalPostgres]:
    """A primary "p" with the replicas "r1" and "r2"."""
    with not_started() as servers:
        primary = servers.primary()
        primary.query("CREATE TABLE written (at int)")
        servers.replica("r1", primary)
        servers.replica("r2", primary)
        yield servers


@pytest.fixture(scope="package")
def log_servers() -> Iterator[LocalPostgres]:
    """A primary "p" for logs of fleets. A fleet writes much, and the tests with `postgres` expect short logs."""
    with not_started() as servers:
        servers.primary()
        yield servers


@pytest.fixture(scope="package")
def followed(postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServers]:
    """The three servers with a daemon and a source."""
    with WatchedServers(postgres, tmp_path_factory.mktemp("watched")) as watched:
        yield watched


@pytest.fixture
def watched(followed: WatchedServers) -> WatchedServers:
    """The same, once the source sees all three servers."""
    followed.until_seen()
    return followed


def new_log(log_servers: LocalPostgres) -> str:
    """The address of a fleet's log that does not exist yet."""
    server, name = log_servers.servers["p"], f"fleet_{uuid.uuid4().hex[:8]}"
    server.query(f"CREATE SCHEMA {name}")
    return f"postgresql://postgres@{server.address}/postgres?options=-csearch_path%3D{name}"


@pytest.fixture
def url(log_servers: LocalPostgres) -> str:
    """The address of a new log of a fleet."""
    url = new_log(log_servers)
    assert fleet_command(["init", url]) == 0
    return url
