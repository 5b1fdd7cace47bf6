"""Damage to a journal is reported and refuses the start; an intact journal can be exported and imported."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch
from purgatory.journal import sql_schema as schema
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged, JournalLocked, JournalTooNew
from purgatory.journal.sql_schema import migrate
from purgatory.service.listeners.durable_journal import DurableJournal
from purgatory.service.recovery import OpenJournal
from tests.journal.kit import JournaledHost, register
from tests.kit.commands import journal_command
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events

SESSIONS = ("a", "b")
WAITS = 10


async def write(folder: Path) -> None:
    """Write a journal of two sessions, each with waits and a result, and of a key."""
    daemon = await JournaledHost.start(folder)
    host = daemon.host
    for name in SESSIONS:
        session, _ = host.sessions.open(name, daemon.clock.now_ms())
        register(host, session, {number: number for number in range(1, WAITS + 1)})
    await host.journal.durable()
    await apply_events(host, mark_batch(1, "t"))
    await apply_events(host, EventBatch([codes.KEY_SIGNALLED], keys=["k"]))
    await daemon.stop()


async def read(folder: Path) -> tuple[int, list[str], int]:
    """Restore the journal in a new host. Return the number pending, the sessions, and the number of unacknowledged
    results.
    """
    daemon = await JournaledHost.start(folder)
    host = daemon.host
    found = (
        host.engine.pending,
        sorted(session_id for _, session_id in host.sessions._by_id),
        host.sessions.unacknowledged_results,
    )
    assert isinstance(host.journal, DurableJournal)
    assert host.journal.statistics().recovered == host.engine.pending
    await daemon.stop()
    return found


def alter(folder: Path, sql: str) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as database:
        database.execute(sql)
        database.commit()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE registrations SET content = zeroblob(length(content)) WHERE session = 1",
        "UPDATE gone SET bits = x'ff' WHERE registration = 2",
        "UPDATE results SET first_sequence = 2 WHERE session = 2",
        "UPDATE sessions SET highest_operation_id = 3 WHERE session = 1",
        "UPDATE partitions SET topic = 'u'",
        "UPDATE keys SET count = 2",
        "UPDATE moment SET group_number = 0",
    ],
)
async def test_a_changed_row_refuses_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: str) -> None:
    folder = tmp_path / "data"
    await write(folder)
    alter(folder, sql)
    with pytest.raises(JournalDamaged, match=r"purgatory journal check .* import"):
        await read(folder)
    assert journal_command(["check", str(folder)]) == 1
    assert "damaged: " in capsys.readouterr().out
    assert journal_command(["export", str(folder), str(tmp_path / "file")]) == 2


async def test_a_truncated_file_refuses_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    await write(folder)
    path = folder / "journal.db"
    path.write_bytes(path.read_bytes()[: 5 * 4_096])
    with pytest.raises(JournalDamaged):
        await read(folder)
    assert journal_command(["check", str(folder)]) == 1
    assert "damaged: journal.db" in capsys.readouterr().out
    assert journal_command(["import", str(tmp_path / "other"), str(path)]) == 2
    assert not (tmp_path / "other" / "journal.db").exists()


async def test_exported_journal_is_imported_into_an_empty_folder_only(tmp_path: Path) -> None:
    await write(tmp_path / "data")
    assert journal_command(["check", str(tmp_path / "data")]) == 0
    assert journal_command(["export", str(tmp_path / "data"), str(tmp_path / "file")]) == 0
    assert journal_command(["import", str(tmp_path / "other"), str(tmp_path / "file")]) == 0
    assert journal_command(["import", str(tmp_path / "data"), str(tmp_path / "file")]) == 2
    assert await read(tmp_path / "other") == (2 * (WAITS - 1), list(SESSIONS), 2)


def test_two_daemons_cannot_share_a_folder(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "data")
    with pytest.raises(JournalLocked, match=r"in use by process \d+"):
        OpenJournal(tmp_path / "data", is_sync=True)
    directory.release()


def test_an_older_journal_is_migrated_one_version_at_a_time(tmp_path: Path) -> None:
    """Each step of a migration is one transaction: a failed step leaves the journal at the previous version."""
    migrations = ("CREATE TABLE a (b)", "INSERT INTO a VALUES (1)", "UPDATE a SET b = b + 1; ALTER TABLE a ADD c")
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as database:
        migrate(database, "old", migrations[:1])
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            migrate(database, "old", (*migrations[:2], "UPDATE a SET b = 9; UPDATE missing SET b = 1"))
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        for _ in range(2):
            migrate(database, "old", migrations)
        assert database.execute("SELECT b, c FROM a").fetchall() == [(2, None)]


async def test_a_newer_journal_is_refused_with_both_versions(tmp_path: Path) -> None:
    await write(tmp_path / "data")
    newer = len(schema.MIGRATIONS) + 1
    alter(tmp_path / "data", f"PRAGMA user_version = {newer}")
    with pytest.raises(JournalTooNew, match=f"has version {newer}; this program supports versions up to {newer - 1}"):
        await read(tmp_path / "data")
