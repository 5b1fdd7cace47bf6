"""Stored attributes of a session: its principal, its incarnation, and ids of batches refused as a whole."""

import sqlite3
from contextlib import closing
from pathlib import Path

from purgatory.service.rpc.session_requests import register_or_refuse
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
