"""What a journal restores after a cut at any commit of a random history, and after a restart of a daemon; and the time
that passes between two daemons.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from purgatory_client import AsyncClient, batches
from purgatory_client.results import Outcome

from purgatory import sizes
from purgatory.journal import statements
from purgatory.journal.continued_time import ClockReading, journal_now_ms
from purgatory.journal.group import Group, Moment
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.testing import ManualClock
from tests.histories.worlds.archive import Life
from tests.journal.kit import PowerCut, copy_files, keep, new_host, picture, register
from tests.kit.daemon import RunDaemon
from tests.kit.eventually import PATIENCE_S, until_pending

SEEDS = (0, 1, 4)
STEPS = 60
GROUP_MAX = 20
PRINCIPALS = ("", "ann", "bob")
"""Their signals: a key is restored with its account."""
LONG_MS = 3_600_000
"""So that nothing expires on a busy machine."""


def watch_seals(life: Life, opened: OpenJournal) -> dict[int, Any]:
    """The state at each sealing of a group, by group number."""
    journal = opened._journal
    assert journal is not None
    pictures: dict[int, Any] = {}
    seal = journal._seal

    def sealed() -> Group:
        group = seal()
        pictures[group.number] = picture(life.host)
        return group

    journal._seal = sealed  # type: ignore[method-assign]
    return pictures


async def live(life: Life) -> None:
    """Take random steps; after some of them all changes become durable."""
    pace = random.Random(life.clock.now_ms())
    for _ in range(STEPS):
        await life.live(1)
        if pace.random() < 0.5:
            await life.host.journal.durable()
    await life.host.journal.durable()


@pytest.mark.slow  # starts an archive, two journals, and commits some dozens of times
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_cut_after_any_commit_loses_nothing(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files after some commit restore exactly the state at the sealing of its group."""
    monkeypatch.setattr(sizes, "JOURNAL_FEW_PARTITIONS", seed % 3)
    monkeypatch.setattr(sizes, "JOURNAL_CHANGE_ROWS_MAX", 3)
    monkeypatch.setattr(statements, "EMPTY_ROWS_MIN", 0)
    life = Life(tmp_path / "archive", seed, principals=PRINCIPALS)
    opened = await keep(life.host, tmp_path / "data", life.clock)
    cut = PowerCut(tmp_path / "data", tmp_path / "cut", random.Random(seed).randint(2, GROUP_MAX))
    opened._store._crash = cut  # type: ignore[misc]
    pictures = watch_seals(life, opened)
    async with asyncio.timeout(PATIENCE_S):
        await live(life)
    assert cut.copy.exists(), f"there were only {len(pictures)} groups"
    clock = ManualClock(0)  # nothing is due
    host = Host(life.new_engine(0), clock, life.host.settings)
    revived = await keep(host, cut.copy, clock)
    assert revived._last is not None
    assert picture(host) == pictures[revived._last[1]]
    assert await revived.close(PATIENCE_S)
    assert await opened.close(PATIENCE_S)
    await life.end()


@pytest.mark.sockets
async def test_deadlines_and_heartbeats_survive_a_crash_and_a_restart(tmp_path: Path, run_daemon: RunDaemon) -> None:
    """An extended wait has its new deadline, and a wait that requires a heartbeat fails without one."""
    first = await run_daemon("--data-dir", str(tmp_path / "data"))
    async with AsyncClient(first.address) as client:
        batch = batches.signal(["slow", "silent"], timeouts_ms=[LONG_MS], heartbeat_timeouts_ms=[-1, LONG_MS - 1])
        await client.register("night", 1, batch)
        assert await client.extend([1, 3], 7_200, session_id="night") == [3]
        await client.register("night", 3, batches.signal(["soon"], timeouts_ms=[LONG_MS], heartbeat_timeouts_ms=[300]))
        copy_files(tmp_path / "data", tmp_path / "copy")
        await first.stop()
        flags = ("--data-dir", str(tmp_path / "copy"), "--grpc-address", first.address)
        second = await run_daemon(*flags)
        await until_pending(client, 2)
        await second.stop()
        third = await run_daemon(*flags)
        await until_pending(client, 2)
        assert third.log.count("the last daemon shut down cleanly") == 1
        assert LONG_MS / 1_000 < (await client.operation("night", 1)).remaining <= 7_200
        assert (await client.operation("night", 2)).remaining <= LONG_MS / 1_000
        async for collected in client.results("night"):
            assert (list(collected.operation_ids), list(collected.results.outcomes)) == ([3], [Outcome.FAILED])
            break


# The time between two daemons, if clocks are changed meanwhile.

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
