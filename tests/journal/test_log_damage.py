"""The write-ahead log with a bit flipped, cut short or gone: what was acknowledged comes back, or the start is refused.
What a crash leaves is no damage: a commit in part, frames of an older log, a transaction that was rolled back.
"""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalDamaged
from purgatory.journal.group import Group, Moment, SessionChanges, SessionState
from purgatory.journal.log_damage import FRAME_BYTES, WAL_FRAME, WAL_HEADER
from purgatory.journal.maintenance import main
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.store import Store

GROUPS: Final = 4
STALE: Final = 2
"""Frames of an older log that are damaged too."""
SECTOR_BYTES: Final = 512
TORN: Final = 15
PLACES: Final = {"page number": 3, "size": 7, "salt": 9, "checksum": 20, "page": WAL_FRAME.size + 2_000}
"""A byte of each part of a frame."""
NOT_FOLDED: Final = pytest.mark.parametrize("killed", ["grown", "restarted"], indirect=True)
"""A checkpoint syncs the note of the last group, so a power cut does not take it back."""


class KilledJournal(NamedTuple):
    """A journal as a kill left it."""

    folder: Path
    log_before: bytes
    """The log before the last commit."""
    contents: dict[int, Any]
    """What there is to read, by the number of the last group."""
    frames: int
    """In the log; those of an older one may follow."""
    last: int
    """The first frame of the last commit."""


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    directory = Directory(folder)
    try:
        with closing(Store(directory, CrashPoints())) as store:
            yield store
    finally:
        directory.release()


def commit(store: Store, number: int) -> None:
    """A group in which a session, a partition and a key change."""
    group = Group(number, Moment(number, number, number, "boot"))
    group.sessions.append(SessionChanges(SessionState(1, "a", number, 0, 0, 0), 1))
    group.partitions.append((("t", number), b"%d" % number))
    group.keys.append((f"key-{number}", number))
    store.commit(StatementBuilder().statements(group))


def read_all(store: Store) -> Any:  # noqa: ANN401 - only compared
    store.verify()
    return [list(store.rows(table)) for table in ("sessions", "partitions", "keys")], store.moment()


def start(folder: Path) -> Any:  # noqa: ANN401 - as above
    """What a daemon finds. Raises `JournalDamaged`."""
    with store_in(folder) as store:
        return read_all(store)


def refuse(folder: Path, why: str) -> None:
    """A start is refused for a reason, and names the command that says more."""
    with pytest.raises(JournalDamaged, match=f"{why} is missing or not as written.*purgatory journal check"):
        start(folder)


def copy(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*-shm"))


def log_of(folder: Path) -> Path:
    return folder / "journal.db-wal"


def place_of(frame: int) -> int:
    """Where a frame begins in the log; the first is 1."""
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


@pytest.fixture(params=["grown", "restarted", "folded"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> KilledJournal:
    """With a log that grew, with one that was restarted in place, or right after a checkpoint of all of it."""
    found = {}
    live = tmp_path / "live"
    with store_in(live) as store:
        store.maintain(idle=True)
        if request.param == "restarted":
            for number in range(-2 * GROUPS, 0):
                commit(store, -number)
            store._checkpoint("PASSIVE")
        for number in range(100, 100 + GROUPS):
            before = log_of(live).read_bytes()
            commit(store, number)
            found[number] = read_all(store)
        if request.param == "folded":
            store._checkpoint("PASSIVE")
        folder = copy(live, tmp_path / "killed")
    now = log_of(folder).read_bytes()
    frames = range(1, len(now) // FRAME_BYTES + 1)
    current = [frame for frame in frames if WAL_FRAME.unpack_from(now, place_of(frame))[1] == now[16:24]]
    assert (len(current) < len(frames)) == (request.param == "restarted")
    last = next(
        frame for frame in frames if now[place_of(frame) :][:FRAME_BYTES] != before[place_of(frame) :][:FRAME_BYTES]
    )
    return KilledJournal(folder, before, found, current[-1], last)


@pytest.mark.parametrize("part", PLACES)
def test_a_bit_flipped_in_any_frame_refuses_the_start(tmp_path: Path, killed: KilledJournal, part: str) -> None:
    """A kill leaves the note of the last group, so nothing goes unnoticed; a frame of an older log does not matter."""
    for frame in range(1, log_of(killed.folder).stat().st_size // FRAME_BYTES + 1)[: killed.frames + STALE]:
        folder = copy(killed.folder, tmp_path / "damaged")
        flip(log_of(folder), place_of(frame) + PLACES[part])
        if frame > killed.frames:
            assert start(folder) == killed.contents[99 + GROUPS]
        else:
            refuse(folder, f"frame {frame} of journal.db-wal")


@NOT_FOLDED
@pytest.mark.parametrize("part", PLACES)
def test_after_a_power_cut_all_but_the_last_commit_is_told(tmp_path: Path, killed: KilledJournal, part: str) -> None:
    """Without the note the last commit may as well be torn, and where the one before ends only an intact frame says."""
    seen = killed.last - (part not in {"salt", "checksum"})
    for frame in range(1, killed.frames + 1):
        folder = copy(killed.folder, tmp_path / "damaged")
        note(folder, 0)
        flip(log_of(folder), place_of(frame) + PLACES[part])
        if frame < seen:
            refuse(folder, f"frame {frame} of journal.db-wal")
        else:
            group = 98 + GROUPS - (frame < killed.last)
            assert start(folder) == killed.contents[group]


def test_a_bit_flipped_in_the_header_refuses_the_start(tmp_path: Path, killed: KilledJournal) -> None:
    """SQLite would read no frame at all."""
    for place in range(WAL_HEADER.size):
        folder = copy(killed.folder, tmp_path / "damaged")
        note(folder, 0)
        flip(log_of(folder), place)
        refuse(folder, "the header of journal.db-wal")


def test_a_log_that_is_cut_short_refuses_the_start(tmp_path: Path, killed: KilledJournal) -> None:
    """At the end of any frame or within one; of an older log's frames none is missed."""
    for frame in range(killed.frames + STALE):
        for more in (0, 10, WAL_FRAME.size, 1_000):
            folder = copy(killed.folder, tmp_path / "damaged")
            with log_of(folder).open("r+b") as log:
                log.truncate(place_of(frame + 1) + more)
            if frame < killed.frames:
                refuse_or_have_all(folder, killed)
            else:
                assert start(folder) == killed.contents[99 + GROUPS]


def refuse_or_have_all(folder: Path, killed: KilledJournal) -> None:
    """Once the whole log is in the file, nothing is lost with it."""
    try:
        found = start(folder)
    except JournalDamaged as refusal:
        found = str(refusal)
    assert found == killed.contents[99 + GROUPS] or "purgatory journal check" in found


def test_a_missing_file_refuses_the_start(tmp_path: Path, killed: KilledJournal) -> None:
    """The log, or the database, whose log SQLite would delete; also emptied ones."""
    for name in ("journal.db-wal", "journal.db"):
        for is_gone in (False, True):
            folder = copy(killed.folder, tmp_path / "damaged")
            (folder / name).unlink() if is_gone else (folder / name).write_bytes(b"")
            refuse_or_have_all(folder, killed)
            if name == "journal.db":
                note(folder, 0)
                refuse(folder, "journal.db")


@NOT_FOLDED
def test_a_commit_that_a_power_cut_tore_is_no_damage(tmp_path: Path, killed: KilledJournal) -> None:
    """Any of its sectors may be on disk. The next daemon writes over it, and is killed in turn."""
    chance = random.Random(1)
    log = log_of(killed.folder).read_bytes()
    old = killed.log_before.ljust(len(log), b"\0")
    for _ in range(TORN):
        folder = copy(killed.folder, tmp_path / "torn")
        note(folder, 98 + GROUPS)
        lost = [place for place in range(0, len(log), SECTOR_BYTES) if chance.random() < 0.1]
        torn = bytearray(log)
        for place in lost:
            torn[place : place + SECTOR_BYTES] = old[place : place + SECTOR_BYTES]
        log_of(folder).write_bytes(torn)
        with store_in(folder) as store:
            assert read_all(store) in list(killed.contents.values())[-2:]
            commit(store, 200)
            again = copy(folder, tmp_path / "again")
        assert start(again)[1] == (Moment(200, 200, 200, "boot"), 200, False)


def test_a_transaction_that_was_not_committed_is_no_damage(tmp_path: Path) -> None:
    """A kill amid a large one leaves frames that no commit ends; so does one that was rolled back before another."""
    with store_in(tmp_path / "live") as store:
        commit(store, 1)
        size = log_of(tmp_path / "live").stat().st_size
        store._database.execute("PRAGMA cache_size = 2")
        store._database.execute("BEGIN")
        rows = [(f"row-{number}", number, 0) for number in range(3_000)]
        store._database.executemany("INSERT INTO keys (key, count, crc32) VALUES (?, ?, ?)", rows)
        amid = copy(tmp_path / "live", tmp_path / "amid")
        assert log_of(amid).stat().st_size > size
        store._database.execute("ROLLBACK")
        whole = read_all(store)
        assert start(amid) == whole
        commit(store, 2)
        assert start(copy(tmp_path / "live", tmp_path / "after")) == read_all(store)


def test_a_change_of_the_journal_mode_that_was_cut_off_is_no_damage(tmp_path: Path) -> None:
    """A repaired, imported or rewritten file changes to a log when it is first opened, by way of a rollback journal."""
    with store_in(tmp_path / "live") as store:
        commit(store, 1)
        whole = read_all(store)
        store._database.execute("PRAGMA journal_mode = DELETE").fetchall()
        store._database.execute("PRAGMA cache_size = 2")
        store._database.execute("BEGIN")
        store._database.execute("UPDATE moment SET crc32 = 0")
        rows = [(f"row-{number}", number, 0) for number in range(3_000)]
        store._database.executemany("INSERT INTO keys (key, count, crc32) VALUES (?, ?, ?)", rows)
        amid = copy(tmp_path / "live", tmp_path / "amid")
        assert (amid / "journal.db-journal").stat().st_size
        assert main(["check", str(copy(amid, tmp_path / "checked"))]) == 0
        assert start(amid) == whole


@NOT_FOLDED
def test_check_names_the_frame_and_repair_keeps_what_came_before_it(
    tmp_path: Path, killed: KilledJournal, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any session may have been in the groups that are lost, so all are set aside; partitions and keys are kept."""
    folder = copy(killed.folder, tmp_path / "damaged")
    flip(log_of(folder), place_of(killed.last))
    refuse(folder, "journal.db-wal")
    lost = f"frame {killed.last} of journal.db-wal is missing or not as written, and group 102 of 103 is the last"
    for _ in range(2):
        assert main(["check", str(folder)]) == 1
        said = capsys.readouterr().out
        assert f"damaged: {lost}" in said
        assert "would be set aside: session 'a'" in said
    assert main(["repair", str(folder)]) == 0
    assert log_of(folder).with_name("damaged-1.db-wal").exists()
    assert main(["check", str(folder)]) == 0
    (_, partitions, keys), moment = killed.contents[102]
    assert start(folder) == ([[], partitions, keys], moment)


def test_a_missing_database_is_repaired_to_an_empty_journal(tmp_path: Path, killed: KilledJournal) -> None:
    """Nothing of it is left, which must be said once."""
    folder = copy(killed.folder, tmp_path / "damaged")
    (folder / "journal.db").unlink()
    assert main(["check", str(folder)]) == 1
    assert main(["repair", str(folder)]) == 0
    assert start(folder) == ([[], [], []], None)


def test_a_flipped_note_is_no_note(tmp_path: Path, killed: KilledJournal) -> None:
    """It says nothing about the journal, which is whole."""
    flip(killed.folder / "lock", 38)
    assert start(killed.folder) == killed.contents[99 + GROUPS]


def test_a_checkpoint_syncs_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the log is restarted, reading it in part would mix old pages with the file's new ones."""
    with store_in(tmp_path) as store:
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
        store._checkpoint("PASSIVE")
    assert (tmp_path / "lock").stat().st_ino in synced
