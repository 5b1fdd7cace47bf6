"""A second of the churn."""

import asyncio
from pathlib import Path

import pytest

from tests.abuse.churn import ChurnRun


@pytest.mark.slow  # abandoned sessions live for three seconds
def test_callers_that_come_and_go_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """All waits end as expected, and then no session or result of the callers is left."""
    run = ChurnRun(tmp_path, seed=1, places=1, pace=0.35)
    asyncio.run(run.run(1.0, 0.5))
    ways = ("satisfied", "expired", "cancelled", "cancelled by the caller", "connections cut", "waits abandoned")
    assert not [way for way in ways if not run.tally[way]]
    assert run.samples
