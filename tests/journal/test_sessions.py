"""What the journal stores of a session: incarnation, refused ids and results, also those that a client has from a
daemon that crashed before it wrote them.
"""

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
from purgatory.journal.statements import SessionRows
from purgatory.service.rpc.session_requests import register_or_refuse
from purgatory.service.translate.result_slices import packed, slices_of
from tests.journal.kit import JournaledHost
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events
from tests.service.test_refused_ids import batch_of


def count(served: JournaledHost, table: str) -> int:
    with closing(sqlite3.connect(served.folder / "journal.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def answers(served: JournaledHost, ids: list[int], form: str) -> tuple[int, list[int]]:
    """Register a batch; return the number of ids that are already known, and those that are refused."""
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
    """If they were sent earlier, the next daemon could not distinguish them from those that the crash lost."""
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
