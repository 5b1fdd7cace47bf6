"""A daemon's copy of the log, and snapshots: damaged, cut or too old ones are discarded or continued, never wrong."""

import asyncio
import os
import random
import shutil
import sqlite3
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from purgatory.extensions.fleet import extension
from purgatory.extensions.fleet.settings import FleetSettings
from purgatory.journal import sql_schema
from purgatory.journal.directory import DATABASE
from purgatory.journal.errors import JournalDamaged, JournalError, JournalTooNew
from purgatory.journal.group import Group, Moment, SessionChanges, SessionState
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.store import PAGE_BYTES
from purgatory.replicated_log import snapshots
from purgatory.replicated_log import standby as standby_module
from purgatory.replicated_log.entry import TABLES, Entry, Kind, pack_rows, unpacked
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replica import MARK, Replica
from purgatory.replicated_log.replicated_log import Snapshot
from tests.fleet.audit import audit, rows_of_file, rows_of_log
from tests.fleet.log_contract import MemoryLog
from tests.fleet.test_standby import CLAIM, ORIGIN, OTHER, group, log, standby_of
from tests.journal.kit import alter, statements_of, store_in
from tests.kit.eventually import wait_until
from tests.kit.recorded import cases_of

__all__ = ["log"]

pytestmark = pytest.mark.slow  # several hundred files are opened

HOUR_MS: Final = 3_600_000
BOMB_BYTES: Final = 300_000_000
HEADER: Final = snapshots.SQLITE_HEADER.pack(snapshots.SQLITE_MAGIC, 4_096, 3)
GROUPS: Final = 10
LAST: Final = GROUPS + 1
"""Position of the last one."""
SECTOR_BYTES: Final = 512
FILES: Final = ("journal.db", "journal.db-wal", "lock", MARK)


def a_log() -> list[Entry]:
    """A claim and groups that write, change and delete rows, some of them longer than a page."""
    builder, extremes = StatementBuilder(), ("é", 2**63 - 1, b"\0\xff", 1, "é")
    log = [ORIGIN.at(0, 1), CLAIM.at(1, 1)]
    for number in range(1, GROUPS + 1):
        group = Group(number, Moment(1_000 * number, 0, 0, "boot"))
        group.sessions.append(SessionChanges(SessionState(1, "a", number, 0, 0, 0), 1))
        group.partitions.extend(((f"topic-{number % 3}", place), b"%d" % number) for place in range(6))
        group.keys.extend(
            (f"key-{place}", (number + place) % 5, b"%d" % number, 0, f"user-{place}") for place in range(9)
        )
        group.keys.append(extremes)
        group.dead_letters.append((number, b"%d" % number * 3_000))
        group.dead_letters.append((number - 4, b""))
        content, _ = pack_rows(builder.statements(group))
        entry = Entry(Kind.GROUP, 1, OTHER, number, group.moment.engine_ms, content, log_id=ORIGIN.log_id)
        log.append(entry.at(number + 1, 1))
    return log


def follow(folder: Path, log: Sequence[Entry], *, checkpoint_at: int = -1) -> tuple[Replica, int]:
    """Follow the log to its end. Return the file, and the position at which it was opened."""
    replica = Replica(folder)
    reign = Reign(replica.place.state, unpacked)
    opened_at = reign.state.position
    for entry in log[opened_at + 1 :]:
        judged = reign.accept(entry)
        assert judged is not None
        replica.apply(judged, reign.resting)
        if entry.position == checkpoint_at:
            replica._checkpoint("PASSIVE")
    return replica, opened_at


def opened_at(folder: Path, log: Sequence[Entry]) -> int:
    """Start a standby on a file. It must end with exactly the rows of the log. Return where it began."""
    replica, position = follow(folder, log)
    replica.release()
    assert rows_of_file(folder) == (LAST, rows_of_log(audit(log), LAST))
    return position


def copy(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for name in FILES:
        if (folder / name).exists():
            shutil.copy(folder / name, to / name)
    return to


def test_damage_at_any_page_is_noticed_or_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    log, chance = a_log(), random.Random(1)
    replica, _ = follow(tmp_path / "whole", log)
    replica._checkpoint("TRUNCATE")
    free_pages = replica._free_pages()
    replica.release()
    whole = (tmp_path / "whole" / "journal.db").read_bytes()
    unharmed = 0
    for start in range(0, len(whole), PAGE_BYTES):
        positions = []
        for damage in range(4):
            page = bytearray(whole[start : start + PAGE_BYTES])
            if damage == 0:
                page = bytearray(PAGE_BYTES)
            elif damage == 1:
                page = bytearray(chance.randbytes(PAGE_BYTES))
            else:
                # The first bytes are the page's header, in page 1 the file's.
                at = chance.randrange(100) if damage == 2 else chance.randrange(PAGE_BYTES)
                page[at] ^= 1 << chance.randrange(8)
            folder = copy(tmp_path / "whole", tmp_path / "damaged")
            (folder / "journal.db").write_bytes(whole[:start] + page + whole[start + PAGE_BYTES :])
            positions.append(opened_at(folder, log))
        unharmed += positions[:2] != [-1, -1]
    assert unharmed <= free_pages


Damage = Callable[[Path], object]


def altered(sql: str) -> Damage:
    return lambda path: alter(path, sql)


def with_byte(offset: int) -> Damage:
    """A wrong header."""
    return lambda path: path.write_bytes(path.read_bytes()[:offset] + b"\7" + path.read_bytes()[offset + 1 :])


def with_other_index(path: Path) -> None:
    """With a wrong index the file would keep a row that the log changes or deletes. SQLite's quick check ignores it."""
    with closing(sqlite3.connect(path)) as database:
        index = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_keys_1'"
        start = (database.execute(index).fetchone()[0] - 1) * PAGE_BYTES
    whole = path.read_bytes()
    at = whole.rindex(b"key-3", start, start + PAGE_BYTES)
    path.write_bytes(whole[:at] + b"key-/" + whole[at + 5 :])
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA quick_check").fetchall() == [("ok",)]


DAMAGES: Final = Path(__file__).with_name("damages.txt")


@pytest.mark.parametrize("damage", [*cases_of(DAMAGES)])
def test_damaged_copy_of_the_log_is_fetched_again(tmp_path: Path, damage: str) -> None:
    log = a_log()
    follow(tmp_path, log)[0].release()
    eval(damage)(tmp_path / "journal.db")
    assert opened_at(tmp_path, log) == -1


def test_journal_that_is_not_in_the_log_is_refused(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        store.commit(statements_of(1))
    with pytest.raises(JournalError, match="contains a journal that is not in the log"):
        Replica(tmp_path)


@pytest.mark.parametrize("checkpoint_at", [-1, 6, LAST], ids=["grown", "restarted", "checkpointed"])
def test_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_at: int) -> None:
    """A file without the end of its write-ahead log, or with some sectors of it missing, is an earlier one: it is
    continued from there, or discarded if the lock file names a later group.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    log, chance = a_log(), random.Random(1)
    live, _ = follow(tmp_path / "live", log, checkpoint_at=checkpoint_at)
    copy(tmp_path / "live", tmp_path / "left")
    live.release()
    wal = (tmp_path / "left" / "journal.db-wal").read_bytes()
    remains: list[bytes] = [wal[:at] for at in range(0, len(wal), len(wal) // 40)]
    for _ in range(12):
        torn = bytearray(wal)
        for place in range(0, len(wal), SECTOR_BYTES):
            if chance.random() < 0.02:
                torn[place : place + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        remains.append(bytes(torn))
    positions: dict[bool, set[int]] = {True: set(), False: set()}
    for number, remaining in enumerate(remains):
        folder = copy(tmp_path / "left", tmp_path / "failed")
        (folder / "journal.db-wal").write_bytes(remaining)
        is_noted = number % 2 == 0
        if not is_noted:
            (folder / "lock").unlink()
        positions[is_noted].add(opened_at(folder, log))
    assert positions[True] <= {-1, LAST}
    if checkpoint_at < LAST:
        assert -1 in positions[True]
        assert len(positions[False]) > 3, "continued from where it was"


def test_a_copy_is_known_as_one_before_its_first_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of a copy is durable before anything is written: without it, the file of a standby would be refused as
    an unrelated journal after a power failure.
    """
    synced: list[bool] = []
    sync = os.fsync

    def note(file: int) -> None:
        if os.fstat(file).st_ino == tmp_path.stat().st_ino:
            synced.append((tmp_path / MARK).exists())
        sync(file)

    monkeypatch.setattr(os, "fsync", note)
    Replica(tmp_path).release()
    assert synced[-1]


def test_unfinished_snapshots_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / "snapshot-abc").mkdir()
    (tmp_path / "snapshot-abc" / "copy.db").touch()
    (tmp_path / "snapshot.part").touch()
    Replica(tmp_path).release()
    assert not list(tmp_path.glob("snapshot*"))


@pytest.mark.parametrize("is_torn", [False, True])
def test_snapshot_of_a_damaged_file_is_not_stored(tmp_path: Path, is_torn: bool) -> None:
    log, stored = MemoryLog(), list[int]()
    log.put_snapshot = lambda position, chunks: stored.append(position)  # type: ignore[method-assign]
    follow(tmp_path, a_log())[0].release()
    path = tmp_path / "journal.db"
    snapshots.store_snapshot(path, log)
    assert stored == [LAST]
    if is_torn:
        whole = path.read_bytes()
        path.write_bytes(whole[: 2 * PAGE_BYTES] + bytes(PAGE_BYTES) * 6 + whole[8 * PAGE_BYTES :])
    else:
        alter(path, "UPDATE dead_letters SET content = x'00'")
    with pytest.raises(JournalDamaged, match="damaged"):
        snapshots.store_snapshot(path, log)
    assert stored == [LAST]
    assert not list(tmp_path.glob("snapshot*"))


class Exited(Exception):
    """The process would have ended."""


def exited(reason: str) -> NoReturn:
    raise Exited(reason)


@pytest.mark.parametrize("has_claimed", [False, True])
def test_standby_that_cannot_write_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_claimed: bool
) -> None:
    """It does not claim, or resigns if it cannot note its claim."""
    monkeypatch.setattr(standby_module, "exit_to_be_restarted", exited)
    log = MemoryLog()
    log.put(ORIGIN)
    standby, begin = standby_of(log, tmp_path), log.begin

    def begin_and_fill(entry: Entry, position: int) -> None:
        standby._replica._database.execute("PRAGMA query_only = ON")
        begin(entry, position)

    if has_claimed:
        log.begin = begin_and_fill  # type: ignore[method-assign]
    else:
        standby._replica._database.execute("PRAGMA query_only = ON")
    with pytest.raises(Exited, match="cannot write the standby's file"):
        standby.lead()
    kinds = [Kind.CLAIM, Kind.RESIGNATION] if has_claimed else []
    assert [entry.kind for entry in log.entries] == [Kind.ORIGIN, *kinds]


# Snapshots.


def test_age_of_a_log_without_a_snapshot_is_that_of_its_first_entry(log: MemoryLog) -> None:
    first_ms = log.entries[0].logged_ms
    log.now_s += 60
    log.put(group(1, 5_000))
    last = snapshots.find_last(log)
    assert (last.position, last.age_s(log.entries[-1].logged_ms)) == (-1, 60)
    log.last_snapshot = lambda below=None: Snapshot(2, lambda: iter(()))  # type: ignore[method-assign]
    assert snapshots.find_last(log).age_s(first_ms + 90_000) == 30


class Leader:
    """The part of the leader that the task reads."""

    def __init__(self, logged_ms: int) -> None:
        self.logged_ms = logged_ms
        self.bytes = 0
        self.reads = 0

    @property
    def appended_bytes(self) -> int:
        self.reads += 1
        return self.bytes


@pytest.mark.parametrize("appended_bytes", [10, 1_000])
async def test_a_snapshot_is_stored_when_the_last_is_old_or_much_was_appended(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appended_bytes: int
) -> None:
    leader: Any = Leader(log.entries[0].logged_ms)
    stored: list[Path] = []

    def store(database: Path, _log: MemoryLog) -> snapshots.LastSnapshot:
        stored.append(database)
        return snapshots.find_last(log)

    monkeypatch.setattr(extension, "CHECK_S", 0.001)
    monkeypatch.setattr(extension, "open_log", lambda *_: log)
    monkeypatch.setattr(extension, "store_and_trim", store)
    task = extension.SnapshotTask(FleetSettings(snapshot_bytes=100))
    storing = asyncio.create_task(task.store(leader, tmp_path))
    await asyncio.to_thread(wait_until, lambda: leader.reads > 5, "it has checked several times")
    assert not stored
    leader.bytes = appended_bytes
    leader.logged_ms += 0 if appended_bytes > 100 else HOUR_MS
    await asyncio.to_thread(wait_until, lambda: bool(stored), "a snapshot is stored")
    storing.cancel()
    assert set(stored) == {tmp_path}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The chunks of a good snapshot."""
    folder, log = tmp_path_factory.mktemp("leader"), MemoryLog()
    follow(folder, a_log())[0].release()
    assert snapshots.store_snapshot(folder / DATABASE, log) == LAST
    return log.stored[0][1]


def bomb(beginning: bytes) -> list[bytes]:
    packing = zlib.compressobj(1)
    packed = packing.compress(beginning)
    for _ in range(BOMB_BYTES // 1_000_000):
        packed += packing.compress(bytes(1_000_000))
    return [packed + packing.flush()]


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (lambda _good: bomb(b""), "it is not a journal"),
        (lambda _good: bomb(HEADER), "it is longer than its header says"),
        (lambda _good: [b"garbage"], "incorrect header check"),
        (lambda _good: [], "it is not complete"),
        (lambda good: [good[0][:-100]], "it is not complete"),
        (
            lambda good: [zlib.compress(zlib.decompress(good[0]).replace(b"key-3", b"key-4"))],
            "checksum mismatch|damaged",
        ),
    ],
    ids=["bomb", "bomb with a header", "garbage", "empty", "cut", "changed row"],
)
def test_snapshot_that_cannot_be_decoded_is_skipped(
    stored: list[bytes],
    damaged: Callable[[list[bytes]], list[bytes]],
    why: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A standby takes the snapshot before it, and never holds more than a part of the content in memory."""
    log = MemoryLog()
    log.stored += [(LAST, stored), (LAST + 5, damaged(stored))]
    replica = Replica(tmp_path)
    tracemalloc.start()
    try:
        assert snapshots.load_snapshot(log, replica)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert replica.place.position == LAST
    assert not snapshots.load_snapshot(log, replica), "the file has it already"
    replica.release()
    assert peak_bytes < 20_000_000
    assert f"the snapshot of position {LAST + 5} cannot be used" in caplog.text
    assert any(one in caplog.text for one in why.split("|"))


@pytest.mark.parametrize("is_used", [False, True])
def test_snapshot_of_a_later_release_is_loaded_while_its_new_tables_have_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_used: bool
) -> None:
    """Otherwise it is refused, with both versions and the remedy."""
    log, file = MemoryLog(), tmp_path / "later" / DATABASE
    follow(file.parent, a_log())[0].release()
    alter(file, "CREATE TABLE later (number INTEGER PRIMARY KEY)")
    alter(file, f"PRAGMA user_version = {TABLES + 1}")
    if is_used:
        alter(file, "INSERT INTO later VALUES (1)")
    with monkeypatch.context() as later:
        later.setattr(snapshots, "MIGRATIONS", (*sql_schema.MIGRATIONS, "its script"))
        later.setitem(sql_schema.READABLE_FROM, "later", TABLES + 1)
        snapshots.store_snapshot(file, log)
    replica = Replica(tmp_path)
    if is_used:
        with pytest.raises(JournalTooNew, match=f"has version {TABLES + 1}.*versions up to {TABLES}.*or a newer one"):
            snapshots.load_snapshot(log, replica)
    else:
        assert snapshots.load_snapshot(log, replica)
    replica.release()
    if not is_used:
        assert rows_of_file(tmp_path) == (LAST, rows_of_log(audit(a_log()), LAST))


def test_snapshot_of_an_earlier_release_is_migrated(stored: list[bytes], tmp_path: Path) -> None:
    log, file = MemoryLog(), tmp_path / "earlier.db"
    file.write_bytes(zlib.decompress(b"".join(stored)))
    alter(file, "DROP TABLE key_principals")
    alter(file, "PRAGMA user_version = 2")
    log.stored.append((LAST, [zlib.compress(file.read_bytes())]))
    replica = Replica(tmp_path)
    assert snapshots.load_snapshot(log, replica)
    assert (replica.place.position, replica.count("key_principals")) == (LAST, 0)
    replica.release()
