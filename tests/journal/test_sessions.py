"""What the journal stores of a session: its principal, incarnation, refused ids, pending rows and results."""

import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import Register
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.live_set import LiveSet
from purgatory.journal.row_codec import pack_results, unpack_results
from purgatory.journal.statements import SessionRows, StatementBuilder
from purgatory.service.rpc.session_requests import register_or_refuse
from purgatory.service.translate.result_slices import packed, slices_of
from purgatory.testing import ManualClock
from tests.journal.kit import JournaledHost, copy_files, keep, new_host, register
from tests.service.test_refused_ids import batch_of


def count(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(folder / "journal.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def test_refused_ids_survive_a_crash(tmp_path: Path) -> None:
    """A batch is refused as a whole and a later one accepted. After a crash an id of the first one is refused with a
    result, and is not reported as known. The row is deleted then, or when the session ends.
    """
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    served = await JournaledHost.start(first)
    await register_or_refuse(served.host, served.session, batch_of([1, 2], "short column"))
    register(served.host, served.session, {3: 9})
    await served.host.journal.durable()
    await served.die(first, second)
    assert count(second, "refused_ids") == 1
    served = await JournaledHost.start(second)
    receipt = await register_or_refuse(served.host, served.session, batch_of([1, 3], "columns"))
    assert (receipt.already_known, [one.operation_id for one in receipt.refusals]) == (1, [1])
    await served.host.journal.durable()
    await served.die(second, third)
    served = await JournaledHost.start(third)
    receipt = await register_or_refuse(served.host, served.session, batch_of([1, 2], "columns"))
    assert (receipt.already_known, [one.operation_id for one in receipt.refusals]) == (1, [2])
    await served.host.journal.durable()
    assert count(third, "refused_ids") == 0
    await register_or_refuse(served.host, served.session, batch_of([4], "short column"))
    register(served.host, served.session, {5: 9})
    await served.host.journal.durable()
    assert count(third, "refused_ids") == 1
    served.host.close_session(served.session)
    await served.host.journal.durable()
    assert count(third, "refused_ids") == count(third, "sessions") == 0
    await served.stop()


async def test_sessions_keep_their_principals(tmp_path: Path) -> None:
    """Two principals with sessions of the same id each get their own session back."""
    clock = ManualClock(1_000)
    host = new_host(clock)
    opened = await keep(host, tmp_path / "data", clock)
    accounts = host.sessions.accounts
    for place, name in enumerate(("", "ann", "bob"), 1):
        session, _ = host.sessions.open("s", 0, accounts.of(name))
        register(host, session, {place: 9})
    await host.journal.durable()
    copy_files(tmp_path / "data", tmp_path / "copy")
    assert await opened.close(30.0)
    host = new_host(clock)
    opened = await keep(host, tmp_path / "copy", clock)
    accounts = host.sessions.accounts
    for place, name in enumerate(("", "ann", "bob"), 1):
        assert host.sessions.get("s", accounts.of(name)).owner.highest_operation_id == place
    host.close_session(host.sessions.get("s", accounts.of("ann")))
    await host.journal.durable()
    assert count(tmp_path / "copy", "sessions") == 2
    assert await opened.close(30.0)


async def test_a_session_keeps_its_incarnation(tmp_path: Path) -> None:
    """A session keeps its incarnation across restarts and crashes; if it is created again, it gets a new one."""
    first, second = tmp_path / "first", tmp_path / "second"
    served = await JournaledHost.start(first)
    register(served.host, served.session, {1: 9})
    await served.host.journal.durable()
    incarnation = served.session.incarnation
    await served.die(first, second)
    for _ in range(2):
        served = await JournaledHost.start(second)
        assert served.session.incarnation == incarnation
        await served.stop()
    served = await JournaledHost.start(second)
    served.host.close_session(served.session)
    register(served.host, served.session, {1: 9})
    await served.host.journal.durable()
    created = served.session.incarnation
    assert created != incarnation
    assert count(second, "sessions") == 1
    await served.stop()
    served = await JournaledHost.start(second)
    assert served.session.incarnation == created
    await served.stop()


Rows = dict[int, tuple[list[int], bytes]]
"""Ids and bits of ended operations, by row number."""

STEPS = 40


def load(rows: Rows) -> SessionRows:
    """Build the object from existing rows, as after a restart."""
    builder = StatementBuilder()
    for number in sorted(rows):
        builder.add_existing_registration(1, number, LiveSet(vec[i64](rows[number][0]), rows[number][1]))
    return builder._rows_of(1)


@pytest.mark.parametrize("seed", range(20))
def test_rows_hold_exactly_what_waits(seed: int) -> None:
    """After each step of a random history, including restarts, the rows contain every pending operation exactly
    once.
    """
    chance = random.Random(seed)
    rows: Rows = {}
    rows_of_session = SessionRows()
    waiting: set[int] = set()
    last_id = last_row = 0
    for step in range(STEPS):
        ended = chance.sample(sorted(waiting), min(len(waiting), chance.randint(0, 6)))
        waiting.difference_update(ended)
        moved = sorted(chance.sample(sorted(waiting), min(len(waiting), chance.choice((0, 0, 1, 3)))))
        for ids in (ended, moved):
            for kept in rows_of_session.strike(vec[i64](ids)):
                rows[kept.registration] = (rows[kept.registration][0], kept.live.gone())
        rows = {number: row for number, row in rows.items() if LiveSet(vec[i64](row[0]), row[1]).left}
        new = [last_id + place for place in range(1, chance.randint(1, 6))]
        last_id += len(new)
        waits = [number for number in new if chance.random() < 0.8]
        for ids, add in ((waits, rows_of_session.add), (moved, rows_of_session.add_moved)):
            if ids:
                last_row += 1
                rows[last_row] = (ids, b"")
                add(last_row, LiveSet(vec[i64](ids), b""))
        waiting.update(waits)
        held = [number for ids, gone in rows.values() for number in LiveSet(vec[i64](ids), gone).remaining()]
        assert sorted(held) == sorted(waiting), f"step {step}"
        if chance.random() < 0.2:
            rows_of_session = load(rows)


def test_rosters_and_strikes_leave_nothing_behind() -> None:
    """Ids are released: a compiled function would keep a reference to an array of them that it gets from other code."""

    def work(times: int) -> int:
        for _ in range(times):
            rows_of_session = SessionRows()
            rows_of_session.add(1, LiveSet(vec[i64](range(1, 41)), b""))
            rows_of_session.strike(vec[i64](range(1, 31)))
        return sys.getallocatedblocks()

    before = work(100)
    assert work(2_000) - before < 1_000


STALE = {0: (5_000, "broker 2 is down"), 2: (7_000, "not authorised"), 3: (1, "broker 2 is down")}


def test_stale_marks_are_kept_with_results() -> None:
    """Results keep their stale marks in a row of the journal, and when they are concatenated with others."""
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
