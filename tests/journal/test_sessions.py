"""What the journal stores of a session: incarnation, refused ids, pending rows, and results, also those that a client
has from a daemon that crashed before it wrote them.
"""

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
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events
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


async def test_sessions_of_one_id_are_restored_for_their_principals(tmp_path: Path) -> None:
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
def test_rows_hold_each_pending_operation_exactly_once(seed: int) -> None:
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


async def end_two(daemon: JournaledHost) -> None:
    """Satisfy the first two waits durably."""
    await apply_events(daemon.host, mark_batch(2, "t"))
    await daemon.host.journal.durable()


async def first_life(folder: Path, copy: Path) -> None:
    """Register waits durably. From the client's point of view, it then receives two results, and the daemon dies before
    writing them.
    """
    daemon = await JournaledHost.start(folder)
    register(daemon.host, daemon.session, {number: number for number in range(1, WAITS + 1)})
    await daemon.host.journal.durable()
    await daemon.die(folder, copy)


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_results_given_before_the_client_is_back_get_numbers_above_those_it_has(
    tmp_path: Path, in_good_order: bool
) -> None:
    await first_life(tmp_path / "1", tmp_path / "2")
    second = await JournaledHost.start(tmp_path / "2")
    await end_two(second)
    if in_good_order:
        await second.stop()
        copy_files(tmp_path / "2", tmp_path / "3")
    else:
        await second.die(tmp_path / "2", tmp_path / "3")
    third = await JournaledHost.start(tmp_path / "3")
    assert third.resume(2) == [3, 4]
    await third.stop()


async def test_a_client_that_was_back_when_the_daemon_died_again_loses_nothing(tmp_path: Path) -> None:
    """The client resumed after the last group, so the next daemon must not assume that it has the results of that
    group.
    """
    await first_life(tmp_path / "1", tmp_path / "2")
    second = await JournaledHost.start(tmp_path / "2")
    await end_two(second)
    copy_files(tmp_path / "2", tmp_path / "3")
    assert second.resume(2) == [3, 4]
    await second.stop()
    third = await JournaledHost.start(tmp_path / "3")
    assert third.resume(2) == [3, 4], "they were not yet received"
    await third.stop()


@pytest.mark.parametrize("back_in", [2, 3])
async def test_results_wait_until_it_is_durable_that_the_client_is_back(tmp_path: Path, back_in: int) -> None:
    """If they were sent earlier, the next daemon could not distinguish them from those that the crash lost."""
    await first_life(tmp_path / "1", tmp_path / "2")
    daemon = await JournaledHost.start(tmp_path / "2")
    await end_two(daemon)
    if back_in > 2:
        await daemon.die(tmp_path / "2", tmp_path / "3")
        daemon = await JournaledHost.start(tmp_path / "3")
    session = daemon.session
    session.resume(0)
    session.outbox.rewind()
    daemon.host.journal.changed(session)
    assert session.outbox.take(WAITS) == (1, [])
    await daemon.host.journal.durable()
    first, parts = session.outbox.take(WAITS)
    assert (first, sum(len(part) for part in parts)) == (1, 2)
    await daemon.die(tmp_path / str(back_in), tmp_path / "4")
    after = await JournaledHost.start(tmp_path / "4")
    assert after.resume(2) == []
    await after.stop()


async def test_once_the_client_was_back_nothing_is_delivered_twice(tmp_path: Path) -> None:
    await first_life(tmp_path / "1", tmp_path / "2")
    second = await JournaledHost.start(tmp_path / "2")
    await end_two(second)
    assert second.resume(2) == [3, 4]
    await second.host.journal.durable()
    await second.die(tmp_path / "2", tmp_path / "3")
    third = await JournaledHost.start(tmp_path / "3")
    assert third.resume(4) == []
    await third.stop()
    fourth = await JournaledHost.start(tmp_path / "3")
    assert fourth.resume(3) == []
    await fourth.stop()
