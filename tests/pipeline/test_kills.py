"""Streams that are killed, once each; `make stream-kills` and `make result-kills` do it for longer.

After the kill they go on in the suite's own session.
"""

import time
from pathlib import Path

import pytest
from purgatory_client import Client
from purgatory_pipeline.cli import main
from pyspark.sql import SparkSession

from tests.kit.daemon import StartDaemon
from tests.pipeline.datasource import result_kills
from tests.pipeline.stream import stream_kills

pytestmark = pytest.mark.slow
PER_KILL = 150


@pytest.mark.usefixtures("spark")
def test_a_stream_that_is_killed_answers_each_operation_once(tmp_path: Path) -> None:
    """Driver, executors and Java at once, at a moment that is drawn; every outcome is the engine's."""
    operations, wrong = stream_kills.kill_driver(tmp_path, kills=1, seed=3, more=["--master", "local[2]"], main=main)
    assert not wrong
    assert operations > 200


def test_a_query_that_is_killed_writes_each_result_once(
    spark: SparkSession, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Between read and commit: what the query has read comes again."""
    with Client(start_daemon().address) as client:
        result_kills.kill_repeatedly(tmp_path, client, kills=1, seed=4, per_kill=PER_KILL)
        result_kills.add_results(client, 1, PER_KILL)
        query = result_kills.start_query(spark, client.address, tmp_path)
        deadline = time.monotonic() + result_kills.END_S
        while client.status().unacknowledged_results:
            assert query.exception() is None
            assert time.monotonic() < deadline, "some results were never acknowledged"
            time.sleep(0.02)
        query.stop()
    assert result_kills.written_ids(tmp_path) == list(range(1, 2 * PER_KILL + 1))
