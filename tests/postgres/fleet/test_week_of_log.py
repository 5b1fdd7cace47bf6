"""A week of a fleet in seconds: groups, a snapshot and a trim every two hours, over a real PostgreSQL."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from examples.local_postgres import LocalPostgres
from purgatory.journal import store as stores
from purgatory.journal.group import Group, Moment, SessionChanges, SessionState
from purgatory.journal.statements import StatementBuilder
from purgatory.replicated_log.leadership import LeaderStore
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.replicated_log import ReplicatedLog
from purgatory.replicated_log.snapshots import store_and_trim
from purgatory.replicated_log.standby import Standby, Stopped
from tests.fleet.audit import rows_of_file
from tests.kit.commands import fleet_command
from tests.kit.eventually import wait_until
from tests.postgres.conftest import new_log
from tests.postgres.fleet.test_histories import leading

pytestmark = pytest.mark.slow

PERIODS: Final = 7 * 12
GROUPS_PER_PERIOD: Final = 8
LIVES: Final = 40
"""Groups after which a row is deleted."""
WAL_PAGES_MAX: Final = 40
SIZES: Final = """
SELECT (SELECT count(*) FROM purgatory_log), (SELECT count(*) FROM purgatory_snapshots),
pg_total_relation_size('purgatory_log'), pg_total_relation_size('purgatory_snapshots')
"""
GROWTH_MAX: Final = 1.5
"""How much larger anything may become than it was in the first tenth of the week."""


@contextlib.contextmanager
def following(folder: Path, url: str) -> Iterator[Standby]:
    """A standby on a thread, which never claims."""
    with contextlib.closing(open_log(url)) as log:
        standby = Standby(folder, log, 1e9, "", "")

        def follow() -> None:
            with contextlib.suppress(Stopped):
                standby.lead()

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield standby
        finally:
            standby.stop()
            thread.join()


def write_period(store: LeaderStore, builder: StatementBuilder, period: int) -> None:
    """Groups that write, change and delete rows, and the maintenance of the journal's thread."""
    for number in range(period * GROUPS_PER_PERIOD + 1, (period + 1) * GROUPS_PER_PERIOD + 1):
        group = Group(number, Moment(number, 0, 0, ""))
        group.sessions.append(SessionChanges(SessionState(1, "a", number, 0, 0, 0), 1))
        group.partitions.extend(((f"topic-{number % 7}", place), b"%d" % number) for place in range(6))
        group.keys.append((f"key-{number}", 1, b"value", 0, "ann"))
        group.keys.append((f"key-{number - LIVES}", 0, b"", 0, ""))
        group.dead_letters.append((number, b"%d" % number * 500))
        group.dead_letters.append((number - LIVES, b""))
        store.commit(builder.statements(group))
    store.maintain(idle=False)
    if period % 10 == 0:
        while store.maintain(idle=True):
            pass


def until_followed(standby: Standby, log: ReplicatedLog) -> None:
    """Wait until the standby's file has the last group."""
    last = log.end() - 1
    wait_until(lambda: standby._replica.place.position == last, "the standby follows")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_week_of_a_log(log_servers: LocalPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log, its snapshots and both daemons' files do not grow after the first tenth of a week. A standby that is new
    at its end, and starts from a snapshot, has exactly the leader's rows, and so has the one that followed all week.
    """
    monkeypatch.setattr(stores, "WAL_PAGES_MAX", WAL_PAGES_MAX)
    monkeypatch.setattr(stores, "WAL_PAGES_KEPT", 2 * WAL_PAGES_MAX)
    url = new_log(log_servers)
    assert fleet_command(["init", url]) == 0
    leader, old, new = (tmp_path / name for name in ("leader", "old", "new"))
    builder, sizes = StatementBuilder(), list[dict[str, int]]()
    with (
        leading(leader, url) as store,
        contextlib.closing(open_log(url)) as log,
        following(old, url) as standby,
        psycopg.connect(url, autocommit=True) as database,
    ):
        for period in range(PERIODS):
            write_period(store, builder, period)
            store_and_trim(leader / "journal.db", log)
            database.execute("VACUUM purgatory_log, purgatory_snapshots")  # as autovacuum does
            until_followed(standby, log)
            ((entries, chunks, log_bytes, snapshot_bytes),) = database.execute(SIZES)
            sizes.append(
                {
                    "entries": entries,
                    "chunks of snapshots": chunks,
                    "bytes of the log's table": log_bytes,
                    "bytes of the snapshots' table": snapshot_bytes,
                    "bytes of the leader's files": size(leader),
                    "bytes of the standby's files": size(old),
                }
            )
        with following(new, url) as fresh:
            until_followed(fresh, log)
    tenth = PERIODS // 10
    for name in sizes[0]:
        begun, ended = (max(each[name] for each in part) for part in (sizes[:tenth], sizes[tenth:]))
        print(f"{name}: {begun} in the first tenth, {ended} later")
        assert ended <= GROWTH_MAX * begun, f"{name}: {begun} in the first tenth, {ended} later"
    rows = rows_of_file(leader)
    assert len(rows[1]["dead_letters"]) == LIVES
    assert rows_of_file(old) == rows
    assert rows_of_file(new) == rows
