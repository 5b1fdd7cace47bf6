"""The time that passes between two daemons, if clocks are changed in between."""

from pathlib import Path

import pytest

from purgatory.journal.continued_time import ClockReading, journal_now_ms
from purgatory.journal.group import Moment
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.testing import ManualClock
from tests.journal.kit import new_host, register
from tests.kit.eventually import PATIENCE_S

HOUR_MS = 3_600_000
DOWN_MS = 2_000
TIMEOUT_MS = 600_000
LAST = Moment(engine_ms=5_000_000_000, wall_ms=9_000_000_000, boot_ms=70_000, boot_id="one")


@pytest.mark.parametrize(
    ("boot_id", "step_ms", "left_ms"),
    [
        ("one", -HOUR_MS, TIMEOUT_MS - DOWN_MS),
        ("one", 0, TIMEOUT_MS - DOWN_MS),
        ("one", HOUR_MS, TIMEOUT_MS - DOWN_MS),
        ("two", -HOUR_MS, TIMEOUT_MS),
        ("two", 0, TIMEOUT_MS - DOWN_MS),
        ("two", HOUR_MS, None),
    ],
)
async def test_a_wait_over_a_restart_has_the_time_that_is_left(
    tmp_path: Path, boot_id: str, step_ms: int, left_ms: int | None
) -> None:
    """Within one boot the boot clock counts, no matter how the wall clock is changed. Across boots the wall clock
    counts, but never backwards: if it was set back, waits become longer. None: the wait was due while no daemon ran.
    """

    async def open_at(now: ClockReading) -> tuple[Host, OpenJournal]:
        opened = OpenJournal(tmp_path, is_sync=True, clocks=lambda: now)
        host = new_host(ManualClock(opened.start_ms))
        await opened.restore(host)
        return host, opened

    host, opened = await open_at(ClockReading(LAST.wall_ms, LAST.boot_ms, "one"))
    session, _ = host.sessions.open("a", host.time.now_ms())
    register(host, session, {1: 5}, TIMEOUT_MS)
    (due_ms,) = host.engine.snapshots.save_above(session.owner, 0).deadlines_ms
    assert await opened.close(PATIENCE_S)
    later = ClockReading(LAST.wall_ms + DOWN_MS + step_ms, LAST.boot_ms + DOWN_MS, boot_id)
    host, opened = await open_at(later)
    host.reaper.turn()
    restored = list(host.engine.snapshots.save_above(host.sessions.get("a").owner, 0).deadlines_ms)
    assert restored == ([] if left_ms is None else [due_ms])
    assert host.sessions.unacknowledged_results == (left_ms is None)
    assert left_ms is None or due_ms - opened.start_ms == left_ms
    assert await opened.close(PATIENCE_S)


def test_an_unknown_boot_is_another_one() -> None:
    last = LAST._replace(boot_id="")
    assert journal_now_ms(last, ClockReading(last.wall_ms + 7, last.boot_ms + 9_000, "")) == last.engine_ms + 7


def test_a_new_journal_begins_at_the_wall_clock() -> None:
    assert journal_now_ms(None, ClockReading(42, 7, "one")) == 42
