"""The state that a journal restores after a cut at any commit of a random history, and after a restart of a daemon;
and the time that passes between two daemons.

The stored state of a session: incarnation, refused ids and results, including those that a client received from a
daemon that crashed before it wrote them.
"""

import asyncio
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from purgatory import sizes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import Register
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.live_set import LiveSet
from purgatory.journal import statements
from purgatory.journal.continued_time import ClockReading, journal_now_ms
from purgatory.journal.group import Group, Moment
from purgatory.journal.row_codec import pack_results, unpack_results
from purgatory.journal.statements import SessionRows
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.service.rpc.session_requests import register_or_refuse
from purgatory.service.translate.result_slices import packed, slices_of
from purgatory.testing import ManualClock
from tests.histories.worlds.archive import Life
from tests.journal.kit import JournaledHost, PowerCut, clocks_of, keep, new_host, picture, register
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events
from tests.service.test_refused_ids import batch_of

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


# The time between two daemons, if clocks are changed in between.

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


async def test_pause_while_the_clocks_are_read_shortens_no_timeout(tmp_path: Path) -> None:
    clock = ManualClock()
    read, host = clocks_of(clock), new_host(clock)
    opened = OpenJournal(tmp_path, is_sync=True, clocks=lambda: (read(), clock.jump(50))[0])
    await opened.restore(host)
    assert await opened.close(PATIENCE_S)
    opened = await keep(new_host(clock), tmp_path, clock)
    assert opened.start_ms <= clock.now_ms(), "time that has not passed"
    assert await opened.close(PATIENCE_S)


def test_a_new_journal_begins_at_the_wall_clock() -> None:
    assert journal_now_ms(None, ClockReading(42, 7, "one")) == 42


def count(served: JournaledHost, table: str) -> int:
    with closing(sqlite3.connect(served.folder / "journal.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def answers(served: JournaledHost, ids: list[int], form: str) -> tuple[int, list[int]]:
    """Register a batch; return the number of ids that are already known, and the refused ids."""
    receipt = await register_or_refuse(served.host, served.session, batch_of(ids, form))
    await served.host.journal.durable()
    return receipt.already_known, [one.operation_id for one in receipt.refusals]


async def test_refused_ids_survive_a_crash(tmp_path: Path) -> None:
    """A batch is refused as a whole and a later one accepted. After a crash an id of the first one is refused with a
    result, and is not reported as known. The row is deleted then, or when the session ends.
    """
    served = await JournaledHost.start(tmp_path / "data")
    await answers(served, [1, 2], "short column")
    await served.register({3: 9})
    served = await served.crashed()
    assert count(served, "refused_ids") == 1
    assert await answers(served, [1, 3], "columns") == (1, [1])
    served = await served.crashed()
    assert await answers(served, [1, 2], "columns") == (1, [2])
    assert count(served, "refused_ids") == 0
    await answers(served, [4], "short column")
    await served.register({5: 9})
    assert count(served, "refused_ids") == 1
    served.host.close_session(served.session)
    await served.host.journal.durable()
    assert count(served, "refused_ids") == count(served, "sessions") == 0
    await served.stop()


async def test_session_keeps_its_incarnation_until_it_is_closed(tmp_path: Path) -> None:
    served = await JournaledHost.start(tmp_path / "data")
    await served.register({1: 9})
    incarnation = served.session.incarnation
    served = await (await served.crashed()).restarted()
    assert served.session.incarnation == incarnation
    served.host.close_session(served.session)
    await served.register({1: 9})
    created = served.session.incarnation
    assert created != incarnation
    assert count(served, "sessions") == 1
    served = await served.restarted()
    assert served.session.incarnation == created
    await served.stop()


def test_striking_operations_releases_their_ids() -> None:
    """A compiled function would keep a reference to an array of them that it gets from other code."""

    def work(times: int) -> int:
        for _ in range(times):
            rows_of_session = SessionRows()
            rows_of_session.add(1, LiveSet(vec[i64](range(1, 41)), b""))
            rows_of_session.strike(vec[i64](range(1, 31)))
        return sys.getallocatedblocks()

    before = work(100)
    assert work(2_000) - before < 1_000


STALE = {0: (5_000, "broker 2 is down"), 2: (7_000, "not authorised"), 3: (1, "broker 2 is down")}


def test_stale_marks_are_kept_with_stored_and_joined_results() -> None:
    engine = Engine(EngineLimits(), 0)
    names = [("orders", place) for place in range(4)]
    ids = [1, 2, 3, 4]
    batch = OperationBatch(ids, partitions=names, item_indexes=[0, 1, 2, 3], offsets=[5], timeouts_ms=[0])
    engine.perform(engine.add_owner(), Register(PRODUCE, batch), 0)
    [completions] = engine.take_completions()
    [without] = unpack_results(pack_results([completions])[0], 0)
    assert not isinstance(without, list)
    assert without.stale_marks == {}
    completions.stale_marks = STALE
    content, count = pack_results([completions])
    [again] = unpack_results(content, 0)
    assert count == 4
    assert not isinstance(again, list)
    assert again.stale_marks == STALE
    [whole] = slices_of(again)
    first, rest = whole.split(1)
    assert packed([rest, first]).stale_marks == {1: STALE[2], 2: STALE[3], 3: STALE[0]}
    assert whole.held_bytes() > slices_of(without)[0].held_bytes()


WAITS = 4


async def after_lost_results(folder: Path) -> JournaledHost:
    """A host in which two waits have ended. Its client has received two other results from the host before, which died
    before it wrote them.
    """
    first = await JournaledHost.start(folder)
    await first.register({number: number for number in range(1, WAITS + 1)})
    second = await first.crashed()
    await apply_events(second.host, mark_batch(2, "t"))
    await second.host.journal.durable()
    return second


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_results_given_before_the_client_is_back_get_numbers_above_those_it_has(
    tmp_path: Path, in_good_order: bool
) -> None:
    second = await after_lost_results(tmp_path / "data")
    third = await (second.restarted() if in_good_order else second.crashed())
    assert third.resume(2) == [3, 4]
    await third.stop()


async def test_client_that_was_back_when_the_daemon_died_again_loses_nothing(tmp_path: Path) -> None:
    """The client resumed after the last group, so the next daemon must not assume that it has the results of that
    group.
    """
    second = await after_lost_results(tmp_path / "data")
    assert second.resume(2) == [3, 4]
    third = await second.crashed()
    assert third.resume(2) == [3, 4], "they were not yet received"
    await third.stop()


@pytest.mark.parametrize("dies_first", [False, True])
async def test_results_wait_until_it_is_durable_that_the_client_is_back(tmp_path: Path, dies_first: bool) -> None:
    """If they were sent earlier, the next daemon could not distinguish them from the ones that the crash lost."""
    daemon = await after_lost_results(tmp_path / "data")
    if dies_first:
        daemon = await daemon.crashed()
    session = daemon.session
    session.resume(0)
    session.outbox.rewind()
    daemon.host.journal.changed(session)
    assert session.outbox.take(WAITS) == (1, [])
    await daemon.host.journal.durable()
    first, parts = session.outbox.take(WAITS)
    assert (first, sum(len(part) for part in parts)) == (1, 2)
    after = await daemon.crashed()
    assert after.resume(2) == []
    await after.stop()


async def test_once_the_client_was_back_nothing_is_delivered_twice(tmp_path: Path) -> None:
    second = await after_lost_results(tmp_path / "data")
    assert second.resume(2) == [3, 4]
    await second.host.journal.durable()
    third = await second.crashed()
    assert third.resume(4) == []
    fourth = await third.restarted()
    assert fourth.resume(3) == []
    await fourth.stop()
