"""A journal that is not as written is noticed, reported and mended; one that is whole travels as one file."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from purgatory.journal import sql_schema as schema
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged, JournalLocked, JournalTooNew
from purgatory.journal.maintenance import main
from purgatory.journal.sql_schema import migrate
from purgatory.service.listeners.durable_journal import DurableJournal
from purgatory.service.recovery import OpenJournal
from tests.journal.kit import JournaledHost, high_watermark, register
from tests.service.serving import apply_events

SESSIONS = ("a", "b")
WAITS = 10


async def write(folder: Path) -> None:
    """A journal of two sessions, each with waits and a result."""
    daemon = await JournaledHost.start(folder)
    host = daemon.host
    for name in SESSIONS:
        session, _ = host.sessions.open(name, daemon.clock.now_ms())
        register(host, session, {number: number for number in range(1, WAITS + 1)})
    await host.journal.durable()
    await apply_events(host, high_watermark(1))
    await daemon.stop()


async def read(folder: Path) -> tuple[int, list[str], int]:
    """What a new daemon finds: pending, sessions, unacknowledged results."""
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
    """Changes the file behind the journal's back."""
    with closing(sqlite3.connect(folder / "journal.db")) as database:
        database.execute(sql)
        database.commit()


async def test_a_whole_journal_brings_everything_back(tmp_path: Path) -> None:
    """Nothing is found wrong with it, and nothing is missing."""
    await write(tmp_path / "data")
    assert main(["check", str(tmp_path / "data")]) == 0
    assert await read(tmp_path / "data") == (2 * (WAITS - 1), list(SESSIONS), 2)


@pytest.mark.parametrize(
    ("sql", "sessions"),
    [
        ("UPDATE registrations SET content = zeroblob(length(content)) WHERE session = 1", ["b"]),
        ("UPDATE gone SET bits = x'ff' WHERE registration = 2", ["a"]),
        ("UPDATE results SET first_sequence = 2 WHERE session = 2", ["a"]),
        ("UPDATE sessions SET highest_operation_id = 3 WHERE session = 1", ["b"]),
        ("UPDATE registrations SET session = 7 WHERE session = 1", []),
        ("UPDATE partitions SET topic = 'u'", ["a", "b"]),
    ],
)
async def test_a_changed_row_is_noticed_and_its_session_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sql: str, sessions: list[str]
) -> None:
    """The daemon refuses to start and names the commands; after a repair all that is sound is there again."""
    folder = tmp_path / "data"
    await write(folder)
    alter(folder, sql)
    with pytest.raises(JournalDamaged, match=r"purgatory journal check .* repair"):
        await read(folder)
    assert main(["check", str(folder)]) == 1
    assert main(["repair", str(folder)]) == 0
    said = capsys.readouterr().out
    assert all(f"set aside: session {name!r}" in said for name in set(SESSIONS) - set(sessions))
    assert (await read(folder))[1] == sessions
    assert (folder / "damaged-1.db").exists()


async def test_a_torn_file_is_noticed(tmp_path: Path) -> None:
    """A file that was cut off is refused, and can be repaired into one that opens."""
    folder = tmp_path / "data"
    await write(folder)
    path = folder / "journal.db"
    path.write_bytes(path.read_bytes()[: 5 * 4_096])
    with pytest.raises(JournalDamaged):
        await read(folder)
    assert main(["check", str(folder)]) == 1
    assert main(["repair", str(folder)]) == 0
    await read(folder)


async def test_a_journal_travels_as_one_file(tmp_path: Path) -> None:
    """What was exported and imported is as it was; an import needs a folder of its own."""
    await write(tmp_path / "data")
    assert main(["export", str(tmp_path / "data"), str(tmp_path / "file")]) == 0
    assert main(["import", str(tmp_path / "other"), str(tmp_path / "file")]) == 0
    assert main(["import", str(tmp_path / "data"), str(tmp_path / "file")]) == 2
    assert await read(tmp_path / "other") == (2 * (WAITS - 1), list(SESSIONS), 2)


async def test_a_dump_says_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each row, with its table."""
    await write(tmp_path / "data")
    assert main(["dump", str(tmp_path / "data")]) == 0
    said = capsys.readouterr().out
    assert said.count('"table": "registrations"') == 2
    assert '"topic": "t"' in said


def test_two_daemons_cannot_share_a_folder(tmp_path: Path) -> None:
    """The second is refused, with the process that has it."""
    directory = Directory(tmp_path / "data")
    with pytest.raises(JournalLocked, match=r"in use by process \d+"):
        OpenJournal(tmp_path / "data", is_sync=True)
    directory.release()


def test_an_older_journal_is_brought_to_the_newest_version(tmp_path: Path) -> None:
    """A version at a time, each in one transaction: one that fails leaves the journal at the version before."""
    migrations = ("CREATE TABLE a (b)", "INSERT INTO a VALUES (1)", "UPDATE a SET b = b + 1; ALTER TABLE a ADD c")
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as database:
        assert migrate(database, "old", migrations[:1]) == 0
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            migrate(database, "old", (*migrations[:2], "UPDATE a SET b = 9; UPDATE missing SET b = 1"))
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert migrate(database, "old", migrations) == 2
        assert migrate(database, "old", migrations) == 3
        assert database.execute("SELECT b, c FROM a").fetchall() == [(2, None)]


async def test_an_older_journal_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon of a later version, with a table more, restores what one of today wrote; today's then refuses it."""
    folder = tmp_path / "data"
    await write(folder)
    with monkeypatch.context() as later:
        later.setattr(schema.migrate, "__defaults__", ((*schema.MIGRATIONS, "CREATE TABLE later (one)"),))
        assert await read(folder) == (2 * (WAITS - 1), list(SESSIONS), 2)
    with closing(sqlite3.connect(folder / "journal.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS) + 1,)
        assert database.execute("SELECT count(*) FROM later").fetchone() == (0,)
    with pytest.raises(JournalTooNew, match=f"version {len(schema.MIGRATIONS) + 1}"):
        await read(folder)


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
async def test_a_journal_of_an_earlier_version_is_sound_and_goes_on(tmp_path: Path, version: int) -> None:
    """Tables that came later are not missed in it; the daemon makes them when it starts."""
    folder = tmp_path / "data"
    await write(folder)
    later = [schema.name_on_disk(table) for table, added in schema.ADDED_IN.items() if added > version]
    with closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as database:
        dropped = "".join(f"DROP TABLE {table}; " for table in later)
        database.executescript(f"{dropped} PRAGMA user_version = {version}")
    assert main(["check", str(folder)]) == 0
    assert await read(folder) == (2 * (WAITS - 1), list(SESSIONS), 2)
    with closing(sqlite3.connect(folder / "journal.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
        counts = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone() for table in later}
    assert counts == dict.fromkeys(later, (0,))
