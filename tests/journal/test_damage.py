"""Damage to a journal is reported and refuses the start; an intact journal can be exported and imported.

A write-ahead log that has a flipped bit, is cut short or deleted refuses the start too, or no committed data is
missing. A torn last commit, a rolled-back transaction and frames of an older log are not damage.
"""

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged
from purgatory.journal.group import Group, Moment, SessionChanges, SessionState
from purgatory.journal.sql_schema import migrate
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.store import PAGE_BYTES, WAL_FRAME, WAL_HEADER, Store
from purgatory.service.listeners.durable_journal import DurableJournal
from tests.journal.kit import JournaledHost, alter, register, store_in
from tests.kit.messages import mark_batch
from tests.kit.programs import journal_command
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
    alter(folder / "journal.db", sql)
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


# The write-ahead log.

GROUPS: Final = 4
LAST: Final = 99 + GROUPS
SECTOR_BYTES: Final = 512
FRAME_BYTES: Final = WAL_FRAME.size + PAGE_BYTES
PLACES: Final = (3, 7, 9, 20, WAL_FRAME.size + 2_000)
"""Offset of one byte in each part of a frame: page number, size, salt, checksum, page."""


class KilledJournal(NamedTuple):
    """A journal as a killed daemon leaves it."""

    folder: Path
    log_before: bytes
    """The write-ahead log before the last commit."""
    contents: dict[int, Any]
    """The journal's contents, by the number of the last group."""
    frames: int
    """The number of frames of the present log. Frames of an older log may follow."""


def commit(store: Store, number: int) -> None:
    """A group in which a session, a partition and a key change."""
    group = Group(number, Moment(number, number, number, "boot"))
    group.sessions.append(SessionChanges(SessionState(1, "a", number, 0, 0, 0), 1))
    group.partitions.append((("t", number), b"%d" % number))
    group.keys.append((f"key-{number}", number, b"", False, ""))
    store.commit(StatementBuilder().statements(group))


def read_all(store: Store) -> Any:  # noqa: ANN401 - only compared
    store.verify()
    return [list(store.rows(table)) for table in ("sessions", "partitions", "keys")], store.moment()


def start(folder: Path) -> Any:  # noqa: ANN401 - as above
    """Open the journal and read it. Raises `JournalDamaged`."""
    with store_in(folder) as store:
        return read_all(store)


def is_refused_or_complete(folder: Path, killed: KilledJournal) -> bool:
    """Start a daemon: it must refuse, or read everything. Return whether it refused."""
    try:
        found = start(folder)
    except JournalDamaged as refusal:
        found = str(refusal)
    is_refused = f"of {LAST}. Run `purgatory journal check" in found
    assert is_refused or found == killed.contents[LAST], found
    return is_refused


def copy(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*-shm"))


def log_of(folder: Path) -> Path:
    return folder / "journal.db-wal"


def place_of(frame: int) -> int:
    """Offset of a frame in the log. The first frame has number 1."""
    return WAL_HEADER.size + (frame - 1) * FRAME_BYTES


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (octet,) = file.read(1)
        file.seek(place)
        file.write(bytes([octet ^ 1]))


def note(folder: Path, number: int) -> None:
    directory = Directory(folder)
    directory.note_group(number)
    directory.release()


@pytest.fixture(params=["grown", "restarted", "checkpointed"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> KilledJournal:
    """A journal with a log that has grown, that was restarted in place, or that was just checkpointed completely."""
    found = {}
    live = tmp_path / "live"
    with store_in(live) as store:
        store.maintain(idle=True)
        if request.param == "restarted":
            for number in range(-2 * GROUPS, 0):
                commit(store, -number)
            store._checkpoint("PASSIVE")
        for number in range(LAST + 1 - GROUPS, LAST + 1):
            before = log_of(live).read_bytes()
            commit(store, number)
            found[number] = read_all(store)
        if request.param == "checkpointed":
            store._checkpoint("PASSIVE")
        folder = copy(live, tmp_path / "killed")
    now = log_of(folder).read_bytes()
    frames = range(1, len(now) // FRAME_BYTES + 1)
    current = [frame for frame in frames if WAL_FRAME.unpack_from(now, place_of(frame)) == (now[16:24],)]
    assert (len(current) < len(frames)) == (request.param == "restarted")
    return KilledJournal(folder, before, found, current[-1])


def test_flipped_bit_refuses_the_start_before_a_checkpoint(
    tmp_path: Path, killed: KilledJournal, request: pytest.FixtureRequest
) -> None:
    places = [*range(WAL_HEADER.size)]
    places += [place_of(frame) + place for frame in range(1, killed.frames + 1) for place in PLACES]
    refused = 0
    for place in places:
        folder = copy(killed.folder, tmp_path / "damaged")
        flip(log_of(folder), place)
        refused += is_refused_or_complete(folder, killed)
    if "checkpointed" not in request.node.name:
        assert refused == len(places)


def test_log_that_is_cut_short_anywhere_refuses_the_start(tmp_path: Path, killed: KilledJournal) -> None:
    for frame in range(killed.frames + 2):
        for more in (0, 10, 1_000):
            folder = copy(killed.folder, tmp_path / "damaged")
            with log_of(folder).open("r+b") as log:
                log.truncate(place_of(frame + 1) + more)
            is_refused = is_refused_or_complete(folder, killed)
            assert not is_refused or frame < killed.frames


@pytest.mark.parametrize("is_gone", [True, False], ids=["deleted", "emptied"])
@pytest.mark.parametrize("name", ["journal.db-wal", "journal.db"])
def test_a_missing_file_refuses_the_start(tmp_path: Path, killed: KilledJournal, name: str, is_gone: bool) -> None:
    """A missing log or database refuses the start: SQLite would delete the log of an empty database."""
    (killed.folder / name).unlink() if is_gone else (killed.folder / name).write_bytes(b"")
    log = log_of(killed.folder).read_bytes() if log_of(killed.folder).exists() else b""
    is_refused = is_refused_or_complete(killed.folder, killed)
    if name == "journal.db":
        assert is_refused
        assert log_of(killed.folder).read_bytes() == log, "a refused start must not destroy what is left"


def test_a_new_journal_that_has_lost_its_log_refuses_the_start(tmp_path: Path) -> None:
    with store_in(tmp_path / "live") as store:
        commit(store, 1)
        folder = copy(tmp_path / "live", tmp_path / "damaged")
    log_of(folder).unlink()
    with pytest.raises(JournalDamaged, match="ends with group 0 of 1"):
        start(folder)


def test_check_reports_a_lost_tail_and_changes_nothing(
    tmp_path: Path, killed: KilledJournal, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if "checkpointed" in request.node.name:
        return
    folder = killed.folder
    flip(log_of(folder), place_of(killed.frames))
    files = log_of(folder).read_bytes(), (folder / "journal.db").read_bytes()
    for _ in range(2):
        assert journal_command(["check", str(folder)]) == 1
        assert f"ends with group {LAST - 1} of {LAST}" in capsys.readouterr().out
    assert journal_command(["export", str(folder), str(tmp_path / "file")]) == 2
    assert files == (log_of(folder).read_bytes(), (folder / "journal.db").read_bytes())


def test_a_commit_torn_by_a_power_cut_is_not_damage(tmp_path: Path, killed: KilledJournal) -> None:
    """Any sectors of a torn commit may be on disk. The next daemon overwrites them, and is killed in turn."""
    chance = random.Random(1)
    log = log_of(killed.folder).read_bytes()
    old = killed.log_before.ljust(len(log), b"\0")
    for _ in range(5):
        folder = copy(killed.folder, tmp_path / "torn")
        note(folder, LAST - 1)
        torn = bytearray(log)
        for place in range(0, len(log), SECTOR_BYTES):
            if chance.random() < 0.1:
                torn[place : place + SECTOR_BYTES] = old[place : place + SECTOR_BYTES]
        log_of(folder).write_bytes(torn)
        with store_in(folder) as store:
            assert read_all(store) in list(killed.contents.values())[-2:]
            commit(store, 200)
            again = copy(folder, tmp_path / "again")
        assert start(again)[1] == (Moment(200, 200, 200, "boot"), 200, False)


def test_frames_of_a_killed_or_rolled_back_transaction_are_not_damage(tmp_path: Path) -> None:
    with store_in(tmp_path / "live") as store:
        commit(store, 1)
        size = log_of(tmp_path / "live").stat().st_size
        amid = spill(store, tmp_path, "INSERT INTO keys (key, count, crc32) VALUES ('row', 1, 0)")
        assert log_of(amid).stat().st_size > size
        store._database.execute("ROLLBACK")
        whole = read_all(store)
        assert start(amid) == whole
        commit(store, 2)
        assert start(copy(tmp_path / "live", tmp_path / "after")) == read_all(store)


def test_an_interrupted_change_of_the_journal_mode_is_not_damage(tmp_path: Path) -> None:
    """An imported or rewritten file changes to WAL mode when it is first opened, using a rollback journal."""
    with store_in(tmp_path / "live") as store:
        commit(store, 1)
        whole = read_all(store)
        store._database.execute("PRAGMA journal_mode = DELETE").fetchall()
        amid = spill(store, tmp_path, "UPDATE moment SET crc32 = 0")
        assert (amid / "journal.db-journal").stat().st_size
        assert journal_command(["check", str(copy(amid, tmp_path / "checked"))]) == 0
        assert start(amid) == whole


def spill(store: Store, tmp_path: Path, sql: str) -> Path:
    """Begin a transaction that is larger than the cache; return a copy of the files before its end."""
    store._database.execute("PRAGMA cache_size = 2")
    store._database.execute("BEGIN")
    store._database.execute(sql)
    rows = [(f"row-{number}", number, 0) for number in range(3_000)]
    store._database.executemany("INSERT INTO keys (key, count, crc32) VALUES (?, ?, ?)", rows)
    return copy(tmp_path / "live", tmp_path / "amid")


def test_a_damaged_note_is_ignored(killed: KilledJournal) -> None:
    flip(killed.folder / "lock", 38)
    assert start(killed.folder) == killed.contents[LAST]


@pytest.mark.parametrize("step", ["checkpoint", "maintenance"])
def test_the_note_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The note is synced before a checkpoint: until the log is restarted, a partly readable log would mix its pages
    with newer ones in the file. It is also synced at each maintenance, which limits what a power cut with damage can
    hide.
    """
    with store_in(tmp_path) as store:
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
        if step == "checkpoint":
            store._checkpoint("PASSIVE")
        else:
            store.maintain(idle=False)
    assert (tmp_path / "lock").stat().st_ino in synced
