"""Two daemons over a log in a real PostgreSQL."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from purgatory_client.blocking import Client

from examples.local_postgres import LocalPostgres
from purgatory.extensions.fleet.open_log import open_log
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.daemon_process import run_to_end, wait_until
from tests.fleet.audit import audit
from tests.fleet.file_audit import rows_of_file, rows_of_log
from tests.fleet.pair_run import Member, PairRun
from tests.fleet.whole_log import read_whole

FAULTS = 5
WAITS = 200


@pytest.fixture
def log_uri(postgres: LocalPostgres, request: pytest.FixtureRequest) -> str:
    """A new log."""
    primary = postgres.primary_server
    name = f"fleet_{abs(hash(request.node.nodeid))}"
    primary.query(f"CREATE DATABASE {name}")
    uri = f"postgresql://postgres@{primary.address}/{name}"
    open_log(uri).create(1)
    return uri


@pytest.fixture
def pair(log_uri: str, tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A leader and its standby, which has caught up."""
    leader = Member("a", tmp_path, log_uri, ("--fleet-snapshot-bytes", "20000"))
    standby: Member | None = None
    try:
        wait_until(lambda: leader.answers("/leaderz"), "the first daemon leads")
        standby = Member("b", tmp_path, log_uri)
        wait_until(lambda: standby.answers("/readyz"), "the second daemon stands by")
        yield leader, standby
    finally:
        for member in (leader, standby):
            if member is not None:
                member.end()
