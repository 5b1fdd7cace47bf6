"""One stop of a daemon."""

import asyncio
from pathlib import Path

import pytest

from tests.abuse.stops import StopsRun


@pytest.mark.slow  # a stop is longer than the timeout of the waits, which is 2 s
def test_stopped_daemon_calls_only_those_silent_who_are(tmp_path: Path) -> None:
    """Waits whose worker or source has gone on reporting stay; those of one that has not, fail."""
    run = StopsRun(tmp_path, seed=1)
    asyncio.run(run.run(1, (2.5, 2.5)))
    assert run.faults == []
    assert len(run.late_s) == 1
