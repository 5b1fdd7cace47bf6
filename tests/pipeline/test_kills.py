"""Streams that are killed, once each; `make stream-kills` and `make result-kills` do it for longer."""

from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.pipeline.datasource import result_kills
from tests.pipeline.stream import stream_kills

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


def test_a_stream_that_is_killed_answers_each_operation_once(tmp_path: Path) -> None:
    """Driver, executors and Java at once, at a moment that is drawn; every outcome is the engine's."""
    operations, wrong = stream_kills.kill_driver(tmp_path, kills=1, seed=3, more=["--master", "local[2]"])
    assert not wrong
    assert operations > 200


def test_a_query_that_is_killed_writes_each_result_once(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Between read and commit: what the query has read comes again."""
    ids = result_kills.drive(tmp_path, start_daemon().address, kills=1, seed=4, per_kill=150)
    assert ids == list(range(1, 301))
