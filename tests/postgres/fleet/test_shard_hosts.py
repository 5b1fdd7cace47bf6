"""Shards over one log in a real PostgreSQL, on two hosts."""

import asyncio
from pathlib import Path

import pytest

from examples.local_postgres import LocalPostgres
from tests.fleet.host_run import HostRun
from tests.kit.commands import fleet_command
from tests.postgres.conftest import new_log

pytestmark = pytest.mark.slow

SHARDS = 2
"""Each is two processes. `make fleet-crash ARGS="--shards 4"` runs four."""


def test_shards_on_two_hosts(log_servers: LocalPostgres, tmp_path: Path) -> None:
    """Sessions are refused elsewhere with the right shard; marks that miss a shard name the others, and end all waits
    when they are sent again; each shard survives the loss of either host, and is handed over by itself.
    """
    url = new_log(log_servers)
    assert fleet_command(["init", url, "--shards", str(SHARDS)]) == 0
    assert asyncio.run(HostRun(tmp_path, url, SHARDS).run()) > SHARDS
