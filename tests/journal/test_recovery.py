"""What a journal restores: after a cut at any commit of a random history, and after a restart of a daemon."""

import random
from pathlib import Path
from typing import Any

import pytest
from purgatory_client import AsyncClient, batches
from purgatory_client.results import Outcome

from purgatory import sizes
from purgatory.journal.group import Group
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.testing import ManualClock
from tests.histories.worlds.archive import Life
from tests.journal.kit import PowerCut, copy_files, keep, picture
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
    life = Life(tmp_path / "archive", seed, principals=PRINCIPALS)
    opened = await keep(life.host, tmp_path / "data", life.clock)
    cut = PowerCut(tmp_path / "data", tmp_path / "cut", random.Random(seed).randint(2, GROUP_MAX))
    opened._store._crash = cut  # type: ignore[misc]
    pictures = watch_seals(life, opened)
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
