"""A few seconds of the churn, and a check that it can fail."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from purgatory_client import OperationKind
from purgatory_client.views import KindStatus, Status

from tests.abuse.churn import ChurnRun, Sample, left_behind
from tests.crash.wire_caller import Broken

SIGNALS = KindStatus(
    OperationKind.SIGNAL, registered=3, pending=0, watched=0, satisfied=1, failed=0, expired=1, cancelled=1,
    shutting_down=0,
)  # fmt: skip
EMPTY = Status(
    version="", compiled=False, started_time=datetime.now(UTC), draining=False, kinds=[SIGNALS], partitions=0,
    signal_keys=0, sessions=1, sessions_connected=1, unacknowledged_results=0, remaining_time=None,
)  # fmt: skip


@pytest.mark.slow  # callers live for seconds, and abandoned sessions for eight more
def test_callers_that_come_and_go_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """All waits end as expected, and then no session or result of the callers is left."""
    run = ChurnRun(tmp_path, seed=7)
    asyncio.run(run.run(6.0, 1.0))
    ways = ("satisfied", "expired", "cancelled", "cancelled by the caller", "connections cut", "callers")
    assert not [way for way in ways if not run.tally[way]]
    assert run.samples


def test_faults_are_found(tmp_path: Path) -> None:
    """State left behind, an operation that ended twice, and growth of memory after the warm-up are reported."""
    assert left_behind(EMPTY) == {}
    left = left_behind(replace(EMPTY, sessions=3, unacknowledged_results=2))
    assert left == {"sessions": 2, "unacknowledged results": 2}
    with pytest.raises(Broken, match="3 registered, 4 ended"):
        left_behind(replace(EMPTY, kinds=[replace(SIGNALS, satisfied=2)]))
    run = ChurnRun(tmp_path, seed=7)
    run.samples.extend(Sample(at_s, 40 + 10 * (at_s >= 600), 9) for at_s in range(0, 700, 10))
    assert run.is_long_enough is False
    run.samples.extend(Sample(at_s, 50 + at_s / 200, 9) for at_s in range(700, 1_400, 10))
    assert bool(run.is_long_enough)
    assert run.memory_growth == pytest.approx(56.825 / 50, rel=0.01)
    assert run.files_growth == 1.0
