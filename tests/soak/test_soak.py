"""A small share of `make soak`, and that it can fail."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from purgatory_client import OperationKind
from purgatory_client.views import KindStatus, Status

from tests.crash.wire_caller import Broken
from tests.soak.soak_run import Sample, SoakRun, left_behind

SECONDS = 6.0
SIGNALS = KindStatus(
    OperationKind.SIGNAL, registered=3, pending=0, watched=0, satisfied=1, failed=0, expired=1, cancelled=1,
    shutting_down=0,
)  # fmt: skip
EMPTY = Status(
    version="", compiled=False, started_time=datetime.now(UTC), draining=False, kinds=[SIGNALS], partitions=0,
    signal_keys=0, sessions=1, sessions_connected=1, unacknowledged_results=0, remaining_time=None,
)  # fmt: skip


@pytest.mark.slow  # callers live for seconds, and the sessions of those who never come back for eight
def test_callers_that_come_and_go_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """All waits end as they must, and then neither sessions nor results of the callers are left."""
    soak = SoakRun(tmp_path, seed=7)
    asyncio.run(soak.run(SECONDS, 1.0, lambda sample: None))
    ways = ("satisfied", "expired", "cancelled", "cancelled by the caller", "connections cut", "callers")
    assert not [way for way in ways if not soak.tally[way]]
    assert soak.samples


def test_what_is_left_behind_is_named() -> None:
    """Only the asking client's own session may be there."""
    assert left_behind(EMPTY) == {}
    assert left_behind(replace(EMPTY, sessions=3, unacknowledged_results=2)) == {
        "sessions": 2, "unacknowledged results": 2,
    }  # fmt: skip


def test_an_operation_that_ended_twice_is_seen() -> None:
    """More outcomes than registrations break the rule."""
    with pytest.raises(Broken, match="3 registered, 4 ended"):
        left_behind(replace(EMPTY, kinds=[replace(SIGNALS, satisfied=2)]))


def test_memory_that_grows_after_ten_minutes_is_seen(tmp_path: Path) -> None:
    """What comes before is warming up."""
    soak = SoakRun(tmp_path, seed=7)
    soak.samples.extend(Sample(at_s, 40_000 + 10_000 * (at_s >= 600), 9) for at_s in range(0, 700, 10))
    soak.samples.extend(Sample(at_s, 50_000 + 5 * at_s, 9) for at_s in range(700, 1_400, 10))
    assert soak.is_long_enough
    assert soak.memory_growth == pytest.approx(56_825 / 50_000, rel=0.01)
    assert soak.files_growth == 1.0


def test_a_run_that_ends_while_it_warms_up_says_nothing_about_growth(tmp_path: Path) -> None:
    """The minute that is compared and the last one must lie apart."""
    soak = SoakRun(tmp_path, seed=7)
    soak.samples.extend(Sample(at_s, 50_000, 9) for at_s in range(0, 700, 10))
    assert not soak.is_long_enough
