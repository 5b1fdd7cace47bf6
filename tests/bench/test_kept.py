"""The journal's benchmarks: the bare loop writes what it says, and what is said of files is right."""

import itertools
import os
from pathlib import Path

import pytest

from bench.drivers import kept
from bench.measure.lab import Lab
from bench.measure.processes import daemon
from bench.peers import fsync_loop
from bench.scale import QUICK
from bench.suites import journal_suite


def test_the_bare_loop_syncs_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced after each turn, when so many bytes more are in it, and nothing is left behind."""
    sizes: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda file: sizes.append(os.fstat(file).st_size))
    numbers = fsync_loop.append(str(tmp_path), turn_bytes=10, turns=3, rate=100_000)
    assert sizes == [10, 20, 30]
    assert numbers["operations"] == 3
    assert numbers["p50_us"] <= numbers["p99_us"]
    assert list(tmp_path.iterdir()) == []


def test_only_the_journal_is_weighed(tmp_path: Path) -> None:
    """The file and its write-ahead log count, the lock and the shared memory do not."""
    for name, size in (("journal.db", 5), ("journal.db-wal", 7), ("journal.db-shm", 100), ("lock", 100)):
        (tmp_path / name).write_bytes(bytes(size))
    assert journal_suite.size_bytes(tmp_path) == 12


def test_files_are_weighed_when_they_have_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they grow or shrink, the time starts again."""
    seconds = itertools.count()
    sizes = iter([9, 9, 12, 5, 5, 5, 5])
    monkeypatch.setattr(journal_suite, "SETTLED_S", 3)
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(journal_suite, "size_bytes", lambda _: next(sizes))
    assert journal_suite.settled_bytes(tmp_path) == 5


def test_a_session_is_filled_with_scattered_waits() -> None:
    """Ids follow each other; offsets and deadlines do not, so that no packing is flattered; and it can be repeated."""
    requests = list(kept.filling("name", kept.FILLING + 10, 7))
    columns = [request.batch.columns for request in requests]
    assert [number for one in columns for number in one.operation_id] == list(range(1, kept.FILLING + 11))
    assert {place for one in columns for place in one.item_index} == set(range(7))
    assert len(set(columns[0].offset)) > kept.FILLING * 0.99
    assert len(set(columns[0].timeout_ms)) > kept.FILLING * 0.99
    assert requests == list(kept.filling("name", kept.FILLING + 10, 7))


@pytest.mark.slow  # processes are started
def test_what_is_filled_survives_and_is_emptied() -> None:
    """A daemon is filled and killed; the next one answers each wait, or the driver would never end."""
    lab = Lab(QUICK, [])
    try:
        numbers = journal_suite.life(lab, 2_000)
    finally:
        lab.close()
    assert numbers["bytes_each"] > 0
    assert numbers["registering_s"] > 0
    assert numbers["recovering_s"] > 0


@pytest.mark.slow  # a daemon is started
def test_each_batch_has_its_receipt() -> None:
    """As many receipts are measured as batches were sent, and all operations end."""
    with daemon() as process:
        numbers = kept.receipts(process.address, batch=20, turns=10, rate=20_000)
    assert numbers["operations"] == 10
