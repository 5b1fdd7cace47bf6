"""When the leader stores a snapshot, how old the last one is, and what a standby does with one that cannot be used.
With a log in memory.
"""

import asyncio
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from purgatory.extensions.fleet import extension
from purgatory.extensions.fleet.settings import FleetSettings
from purgatory.journal.directory import DATABASE
from purgatory.replicated_log.replica import Replica
from purgatory.replicated_log.replicated_log import Snapshot
from purgatory.replicated_log.snapshots import (
    SQLITE_HEADER,
    SQLITE_MAGIC,
    LastSnapshot,
    find_last,
    load_snapshot,
    store_snapshot,
)
from tests.fleet.memory_log import MemoryLog
from tests.fleet.test_standby import group, log
from tests.journal.test_damaged_copy import LAST, a_log, follow
from tests.kit.eventually import wait_until

__all__ = ["log"]

HOUR_MS = 3_600_000
BOMB_BYTES = 300_000_000
HEADER = SQLITE_HEADER.pack(SQLITE_MAGIC, 4_096, 3)


def test_age_of_a_log_without_a_snapshot_is_that_of_its_first_entry(log: MemoryLog) -> None:
    """All entries would have to be read again, so the age counts from the first one, by the log's clock."""
    first_ms = log.entries[0].logged_ms
    log.now_s += 60
    log.put(group(1, 5_000))
    last = find_last(log)
    assert (last.position, last.age_s(log.entries[-1].logged_ms)) == (-1, 60)
    log.last_snapshot = lambda below=None: Snapshot(2, lambda: iter(()))  # type: ignore[method-assign]
    assert find_last(log).age_s(first_ms + 90_000) == 30


class Leader:
    """What the task reads of the leader."""

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
    """A new leader stores none while the last snapshot is recent and little was appended. It stores one when more than
    `fleet.snapshot_bytes` were appended, or when the last one is an hour old, however long it has led itself.
    """
    leader: Any = Leader(log.entries[0].logged_ms)
    stored: list[Path] = []

    def store(database: Path, _log: MemoryLog) -> LastSnapshot:
        stored.append(database)
        return find_last(log)

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
    assert store_snapshot(folder / DATABASE, log) == LAST
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
        assert load_snapshot(log, replica)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert replica.place.position == LAST
    assert not load_snapshot(log, replica), "the file has it already"
    replica.release()
    assert peak_bytes < 20_000_000
    assert f"the snapshot of position {LAST + 5} cannot be used" in caplog.text
    assert any(one in caplog.text for one in why.split("|"))
