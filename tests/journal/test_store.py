"""The write-ahead log is overwritten in place under load, and truncated when idle."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory.journal import store as stores
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.group import Group, Moment
from purgatory.journal.statements import StatementBuilder
from purgatory.journal.store import PAGE_BYTES, Store

PAGES_MAX = 20


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty journal with a small log."""
    monkeypatch.setattr(stores, "WAL_PAGES_MAX", PAGES_MAX)
    monkeypatch.setattr(stores, "WAL_PAGES_KEPT", 2 * PAGES_MAX)
    directory = Directory(tmp_path)
    opened = Store(directory, CrashPoints())
    yield opened
    opened.close()
    directory.release()


def commit(store: Store, number: int) -> None:
    """Commit a group without changes."""
    store.commit(StatementBuilder().statements(Group(number, Moment(number, number, number, "boot"))))


def fill_log(store: Store, wal: Path) -> int:
    """Commit until the log is full. Return its size."""
    number = 0
    while not store._is_wal_full():
        number += 1
        commit(store, number)
    return wal.stat().st_size


def test_the_log_is_restarted_in_place(tmp_path: Path, store: Store) -> None:
    """A full log is checkpointed between groups, and the next groups overwrite it: the file keeps its size."""
    wal = tmp_path / "journal.db-wal"
    store.maintain(idle=True)
    size = fill_log(store, wal)
    assert size == 32 + PAGES_MAX * (24 + PAGE_BYTES)
    store.maintain(idle=False)
    commit(store, 1_000)
    assert not store._is_wal_full()
    store.maintain(idle=False)
    assert fill_log(store, wal) == size, "as many pages again, and none more"
    commit(store, 1_000)
    found = store.moment()
    assert found is not None
    assert found[1] == 1_000


def test_a_log_that_has_become_too_long_is_cut(tmp_path: Path, store: Store) -> None:
    """A log that has grown too long is truncated when it is restarted."""
    wal = tmp_path / "journal.db-wal"
    for number in range(1, 10 * PAGES_MAX):
        commit(store, number)
    store.maintain(idle=False)
    commit(store, 1_000)
    assert wal.stat().st_size <= 2 * PAGES_MAX * PAGE_BYTES


def test_at_rest_the_log_is_emptied(tmp_path: Path, store: Store) -> None:
    """Without new groups, the log is checkpointed and truncated."""
    wal = tmp_path / "journal.db-wal"
    fill_log(store, wal)
    store.maintain(idle=True)
    assert wal.stat().st_size == 0
    assert store.size_bytes() == (tmp_path / "journal.db").stat().st_size
