"""Two daemons over one log in real Kafka."""

import asyncio
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from examples.kafka_cluster import KafkaCluster
from purgatory.extensions.fleet.commands import main as fleet_command
from purgatory.replicated_log.open_log import open_log
from tests.fleet.file_audit import check_files
from tests.fleet.pair_run import PairRun

pytestmark = pytest.mark.slow

FAULTS = ("kill", "stop", "hand over", "crash point")
"""`make fleet-crash ARGS=--kafka` draws from all kinds."""


def test_no_fault_loses_repeats_or_hastens_anything(three_brokers: KafkaCluster, tmp_path: Path) -> None:
    """While either daemon is killed, stopped, handed over or killed at a point of its commit, each acknowledged wait
    ends once and not too early; afterwards each daemon's file has exactly the rows that the log says.
    """
    url = f"kafka://{three_brokers.bootstrap}/pair-{uuid.uuid4().hex[:8]}"
    assert fleet_command(["init", url]) == 0
    tally = asyncio.run(PairRun(tmp_path, url, 1, FAULTS).run_faults(len(FAULTS)))
    assert tally.operations > len(FAULTS)
    with closing(open_log(url)) as log:
        assert check_files(log, [tmp_path / "a", tmp_path / "b"]) > len(FAULTS)
    assert fleet_command(["verify", url]) == 0
