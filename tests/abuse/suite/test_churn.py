"""A few seconds of the churn."""

import asyncio
from pathlib import Path

import pytest

from tests.abuse.churn import ChurnRun


@pytest.mark.slow  # callers live for seconds, and abandoned sessions for eight more
def test_callers_that_come_and_go_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """All waits end as expected, and then no session or result of the callers is left."""
    run = ChurnRun(tmp_path, seed=7)
    asyncio.run(run.run(6.0, 1.0))
    ways = ("satisfied", "expired", "cancelled", "cancelled by the caller", "connections cut", "callers")
    assert not [way for way in ways if not run.tally[way]]
    assert run.samples
