"""Streams that are killed, once each; `make stream-kills` does it for longer.

After the kill they continue in the suite's own session.
"""

from pathlib import Path

import pytest
from purgatory_client import Client
from purgatory_pipeline.cli import main
from pyspark.sql import SparkSession

from tests.histories.worlds.spark import ResultsWorld, StreamWorld, start_query
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import wait_until

pytestmark = pytest.mark.slow
PER_KILL = 150


@pytest.mark.usefixtures("spark")
def test_a_stream_that_is_killed_answers_each_operation_once(tmp_path: Path) -> None:
    """Driver, executors and Java at once, at a moment that is drawn; every outcome is the engine's."""
    world = StreamWorld(tmp_path, 1, 3, ["--master", "local[2]"])
    world.kill_driver(1)
    assert world.finish(main) == []
    assert len(world.history.outcomes) > 200


def test_a_query_that_is_killed_writes_each_result_once(
    spark: SparkSession, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """A kill between read and commit: the query reads the same results again."""
    with Client(start_daemon().address) as client:
        world = ResultsWorld(tmp_path, client, seed=4, per_kill=PER_KILL)
        world.kill(1)
        world.add()
        query = start_query(spark, client.address, tmp_path)

        def is_read() -> bool:
            assert query.exception() is None
            return world.is_read()

        wait_until(is_read, "all results are acknowledged")
        query.stop()
    assert world.wrong() == []
    assert world.added == 2 * PER_KILL
