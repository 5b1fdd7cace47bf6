"""Fixtures for PostgreSQL tests: a primary with two replicas, started in one worker if PostgreSQL is installed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.local_postgres import LocalPostgres, NoPostgres
from tests.postgres.watched_servers import WatchedServers

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests with servers in one worker, so that servers are started once."""
    for item in items:
        if HERE not in item.path.parents or "postgres" not in getattr(item, "fixturenames", ()):
            continue
        item.add_marker(pytest.mark.xdist_group("postgres"))
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """A primary "p" with the replicas "r1" and "r2". Without PostgreSQL the test is skipped, or fails if required."""
    try:
        servers = LocalPostgres()
    except NoPostgres as missing:
        if os.environ.get("PURGATORY_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"PURGATORY_REQUIRE_POSTGRES=1: {missing}")
        pytest.skip(str(missing))
    with servers:
        primary = servers.primary()
        primary.query("CREATE TABLE written (at int)")
        servers.replica("r1", primary)
        servers.replica("r2", primary)
        yield servers


@pytest.fixture(scope="session")
def followed(postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedServers]:
    """The three servers with a daemon and a source."""
    with WatchedServers(postgres, tmp_path_factory.mktemp("watched")) as watched:
        yield watched


@pytest.fixture
def watched(followed: WatchedServers) -> WatchedServers:
    """The same, once the source sees all three servers."""
    followed.until_seen()
    return followed
