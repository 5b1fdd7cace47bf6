"""When the leader stores a snapshot, and how old the last one is. With a log in memory."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from purgatory.extensions.fleet import snapshot_task
from purgatory.extensions.fleet.settings import FleetSettings
from purgatory.fleet.replicated_log import Snapshot
from purgatory.fleet.snapshots import LastSnapshot, find_last
from tests.daemon_process import wait_until
from tests.fleet.test_standby import MemoryLog, group, log

__all__ = ["log"]

HOUR_MS = 3_600_000


def test_age_of_a_log_without_a_snapshot_is_that_of_its_first_entry(log: MemoryLog) -> None:
    """All entries would have to be read again, so the age counts from the first one, by the log's clock."""
    first_ms = log.entries[0].logged_ms
    log.now_s += 60
    log.put(group(1, 5_000))
    last = find_last(log)
    assert (last.position, last.age_s(log.entries[1].logged_ms)) == (-1, 60)
    log.last_snapshot = lambda: Snapshot(1, lambda: iter(()))  # type: ignore[method-assign]
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

    monkeypatch.setattr(snapshot_task, "CHECK_S", 0.001)
    monkeypatch.setattr(snapshot_task, "open_log", lambda *_: log)
    monkeypatch.setattr(snapshot_task, "store_and_trim", store)
    task = snapshot_task.SnapshotTask(FleetSettings(snapshot_bytes=100))
    storing = asyncio.create_task(task.store(leader, tmp_path))
    await asyncio.to_thread(wait_until, lambda: leader.reads > 5, "it has checked several times")
    assert not stored
    leader.bytes = appended_bytes
    leader.logged_ms += 0 if appended_bytes > 100 else HOUR_MS
    await asyncio.to_thread(wait_until, lambda: bool(stored), "a snapshot is stored")
    storing.cancel()
    assert set(stored) == {tmp_path}
