"""Two daemons over one log in real Kafka."""

import asyncio
import uuid
from pathlib import Path

import pytest

from examples.kafka_cluster import KafkaCluster
from tests.histories.worlds.pair import ENDS, PairWorld
from tests.kit.commands import fleet_command

pytestmark = pytest.mark.slow


def test_no_fault_loses_repeats_or_hastens_anything(three_brokers: KafkaCluster, tmp_path: Path) -> None:
    """While either daemon is killed, stopped, handed over or killed at a point of its commit, each acknowledged wait
    ends once and not too early; afterwards each daemon's file has exactly the rows that the log says.
    """
    url = f"kafka://{three_brokers.bootstrap}/pair-{uuid.uuid4().hex[:8]}"
    assert fleet_command(["init", url]) == 0
    tally = asyncio.run(PairWorld(tmp_path, url, 1, ENDS).run(len(ENDS)))
    assert min(tally["operations"], tally["groups in the log"]) > len(ENDS)
    assert fleet_command(["verify", url]) == 0
