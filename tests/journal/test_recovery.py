"""Random histories of a host with a journal: after a cut at any commit, its state is restored and continues
unchanged.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from purgatory import sizes
from purgatory.journal.group import Group
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.testing import ManualClock
from tests.histories.worlds.archive import Life
from tests.journal.kit import ITEM_COLUMNS, PowerCut, copy_files, keep, picture
from tests.kit.eventually import PATIENCE_S

SEEDS = (0, 1, 4)
STEPS = 60
GROUP_MAX = 20
PRINCIPALS = ("", "ann", "bob")
"""Their signals: a key is restored with its account."""


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


async def revive(life: Life, folder: Path) -> tuple[Host, OpenJournal, ManualClock]:
    """Restore the journal in a folder, at a time when nothing is due."""
    clock = ManualClock(0)
    host = Host(life.new_engine(0), clock, life.host.settings)
    return host, await keep(host, folder, clock), clock


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
    _, revived, _ = host_of = await revive(life, cut.copy)
    assert revived._last is not None
    assert picture(host_of[0]) == pictures[revived._last[1]]
    assert await revived.close(PATIENCE_S)
    assert await opened.close(PATIENCE_S)
    await life.end()


@pytest.mark.slow  # as above
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_revived_host_goes_on_as_the_first_would_have(tmp_path: Path, seed: int) -> None:
    """A restored host that gets the same calls ends every operation at the same time and in the same way."""
    life = Life(tmp_path / "archive", seed, roomy=True, principals=PRINCIPALS)
    opened = await keep(life.host, tmp_path / "data", life.clock)
    await live(life)
    copy_files(tmp_path / "data", tmp_path / "copy")
    host, revived, clock = await revive(life, tmp_path / "copy")
    clock.jump(life.clock.now_ms())
    twin = life.twin(host, clock)
    for step in range(STEPS):
        await life.live(1)
        await twin.live(1)
        assert in_order(picture(host)) == in_order(picture(life.host)), f"step {step}"
    assert await revived.close(PATIENCE_S)
    assert await opened.close(PATIENCE_S)
    await life.end()


def without_log_starts(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Remove the log starts of failed items from a result: they are not stored for items that were resolved before
    their partition was removed.
    """
    *said, items, reads, why = result
    if items:
        place = ITEM_COLUMNS.index("log_start_offsets")
        error_codes = items[ITEM_COLUMNS.index("error_codes")]
        pairs = zip(items[place], error_codes, strict=True)
        items = [*items[:place], [None if code not in (0, 7) else start for start, code in pairs], *items[place + 1 :]]
    return (*said, items, reads, why)


def in_order(seen: dict[str, Any]) -> dict[str, Any]:
    """Sort results by operation: the order of operations that end at the same moment is not stored."""
    sessions = {
        name: (*said[:3], sorted(map(without_log_starts, said[3])), said[4]) for name, said in seen["sessions"].items()
    }
    return {**seen, "sessions": sessions}
