"""What has passed between two daemons, however the clocks were set meanwhile."""

from __future__ import annotations

import pytest

from purgatory.journal.group import Moment
from purgatory.journal.timeline import Reading, time_now_ms

HOUR_MS = 3_600_000
LAST = Moment(engine_ms=5_000_000_000, wall_ms=9_000_000_000, boot_ms=70_000, boot_id="one")


@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0, HOUR_MS])
def test_on_the_same_boot_setting_the_wall_clock_changes_nothing(step_ms: int) -> None:
    """The boot clock says what has passed."""
    now = Reading(LAST.wall_ms + 2_000 + step_ms, LAST.boot_ms + 2_000, "one")
    assert time_now_ms(LAST, now) == LAST.engine_ms + 2_000


@pytest.mark.parametrize(("step_ms", "passed_ms"), [(-HOUR_MS, 0), (0, 2_000), (HOUR_MS, HOUR_MS + 2_000)])
def test_over_a_boot_the_wall_clock_is_believed_but_never_backwards(step_ms: int, passed_ms: int) -> None:
    """A wall clock that was set back makes waits longer, never shorter than nothing."""
    now = Reading(LAST.wall_ms + 2_000 + step_ms, 10, "two")
    assert time_now_ms(LAST, now) == LAST.engine_ms + passed_ms


def test_an_unknown_boot_is_another_one() -> None:
    """Where the machine does not say which boot it is, the wall clock is all there is."""
    last = LAST._replace(boot_id="")
    assert time_now_ms(last, Reading(last.wall_ms + 7, last.boot_ms + 9_000, "")) == last.engine_ms + 7


def test_a_new_journal_begins_at_the_wall_clock() -> None:
    """Nothing is known yet."""
    assert time_now_ms(None, Reading(42, 7, "one")) == 42
