"""Disks that are full or fail, files that are removed, and faults of the journal itself: new work is refused."""

import asyncio
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from purgatory.engine import codes
from purgatory.journal.crash_points import BEFORE_COMMIT, CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.errors import BatchRejected
from purgatory.service.host import Host
from purgatory.service.metrics.exposition import make_registry
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.recovery import OpenJournal
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.journal.kit import JournaledHost, register
from tests.journal.test_damage import read
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import PATIENCE_S, eventually, wait_until
from tests.kit.messages import advance_request, high_watermark, mark_batch
from tests.kit.served_host import apply_events, refused
from tests.service.test_daemon import fetch_page


class FailingCommits(CrashPoints):
    """Makes commits fail with an SQLite error while `code` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.code = 0
        self.failed = 0

    def reached(self, point: str) -> None:
        if self.code and point == BEFORE_COMMIT:
            self.failed += 1
            error = sqlite3.OperationalError("as the test wants it")
            error.sqlite_errorcode = self.code
            raise error


async def until_closed(host: Host, closed: bool) -> None:
    """Wait until the journal refuses or accepts new work."""
    await eventually(lambda: (host.journal.why_closed() is not None) == closed)


@pytest.mark.parametrize(
    ("code", "refused_with"),
    [
        (sqlite3.SQLITE_FULL, codes.RESOURCE_EXHAUSTED),
        (sqlite3.SQLITE_READONLY, codes.UNAVAILABLE),
        (sqlite3.SQLITE_IOERR_WRITE, codes.UNAVAILABLE),
        (sqlite3.SQLITE_IOERR_FSYNC, codes.UNAVAILABLE),
    ],
)
async def test_pending_waits_continue_while_the_disk_fails(tmp_path: Path, code: int, refused_with: int) -> None:
    """Registrations and events are refused and waits still expire; afterwards everything accepted before is stored."""
    daemon = await JournaledHost.start(tmp_path / "data")
    host = daemon.host
    disk: Any = FailingCommits()
    daemon.opened._store._crash = disk  # type: ignore[misc]
    session = daemon.session
    await daemon.register({1: 5})
    disk.code = code
    register(host, session, {2: 5})
    answered: list[str] = []
    host.journal.when_durable(lambda: answered.append("registered"))
    await until_closed(host, True)
    with pytest.raises(BatchRejected) as refused:
        register(host, session, {3: 5})
    assert refused.value.refusal.code == refused_with
    assert "journal" in refused.value.refusal.message
    shown = generate_latest(make_registry(host, Metrics(), PauseWatch())).decode()
    assert "purgatory_journal_closed 1.0" in shown
    with pytest.raises(BatchRejected):
        await apply_events(host, mark_batch(5, "t"))
    daemon.clock.jump(60_000)
    host.reaper.turn()
    assert session.outbox.unacknowledged == 2
    assert session.outbox.take(10)[1] == [], "a result must not be sent before it is durable"
    assert not answered
    disk.code = 0
    await until_closed(host, False)
    await host.journal.durable()
    assert answered == ["registered"]
    assert sum(len(part) for part in session.outbox.take(10)[1]) == 2
    register(host, session, {4: 5})
    await daemon.stop()
    assert disk.failed
    assert await read(tmp_path / "data") == (1, ["a"], 2)


async def test_reopening_the_file_is_retried_until_it_succeeds(tmp_path: Path) -> None:
    daemon = await JournaledHost.start(tmp_path / "data")
    host = daemon.host
    store: Any = daemon.opened._store
    disk, reopen, failures = FailingCommits(), store.reopen, [1, 2]

    def failing() -> None:
        disk.code = 0
        if failures:
            failures.pop()
            store._database.close()
            raise JournalError("as the test wants it")
        reopen()

    store._crash, store.reopen = disk, failing
    session = daemon.session
    disk.code = sqlite3.SQLITE_IOERR_WRITE
    register(host, session, {1: 5})
    await until_closed(host, True)
    await until_closed(host, False)
    assert not failures
    await daemon.stop()
    assert await read(tmp_path / "data") == (1, ["a"], 0)


@pytest.mark.parametrize("step", ["_schedule_commit", "_changes_of", "_seal_session"])
async def test_journal_that_cannot_record_a_change_closes_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Events and their results are neither answered nor stored, new work is refused also after the fault, and the next
    daemon continues from the last group.
    """
    daemon = await JournaledHost.start(tmp_path / "data")
    host, session, answered = daemon.host, daemon.session, list[str]()
    await daemon.register({1: 5, 2: 9})

    def fault(*_: object) -> None:
        raise MemoryError("as the test wants it")

    with monkeypatch.context() as patched:
        patched.setattr(host.journal, step, fault)
        await apply_events(host, mark_batch(5, "t"))
        host.journal.when_durable(lambda: answered.append("applied"))
        await until_closed(host, True)
    with pytest.raises(BatchRejected) as refused:
        register(host, session, {3: 5})
    assert "restart the daemon" in refused.value.refusal.message
    daemon.clock.jump(60_000)
    host.reaper.turn()
    assert (session.outbox.unacknowledged, session.outbox.take(10)[1], answered) == (2, [], [])
    assert not await daemon.opened.close(PATIENCE_S)
    assert await read(tmp_path / "data") == (2, ["a"], 0)


async def test_answer_that_raises_does_not_hold_back_the_others(tmp_path: Path) -> None:
    daemon = await JournaledHost.start(tmp_path / "data")
    answered: list[str] = []
    register(daemon.host, daemon.session, {1: 5})
    await apply_events(daemon.host, mark_batch(5, "t"))
    daemon.host.journal.when_durable(lambda: answered.remove("not there"))
    daemon.host.journal.when_durable(lambda: answered.append("applied"))
    await daemon.host.journal.durable()
    assert answered == ["applied"]
    assert sum(len(part) for part in daemon.session.outbox.take(10)[1]) == 1
    await daemon.stop()


def replace(folder: Path) -> None:
    """Replace the folder by a copy, as when a backup is restored."""
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


LOSSES: dict[str, Callable[[Path], None]] = {
    "folder": shutil.rmtree,
    "replaced": replace,
    "journal.db": lambda folder: (folder / "journal.db").unlink(),
    "journal.db-wal": lambda folder: (folder / "journal.db-wal").unlink(),
    "lock": lambda folder: (folder / "lock").unlink(),
}


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "busy"])
@pytest.mark.parametrize("loss", LOSSES)
async def test_lost_files_refuse_new_work_also_on_an_idle_daemon(tmp_path: Path, loss: str, is_idle: bool) -> None:
    daemon = await JournaledHost.start(tmp_path / "data")
    host, session = daemon.host, daemon.session
    await daemon.register({1: 5})
    LOSSES[loss](tmp_path / "data")
    answered: list[str] = []
    if not is_idle:
        register(host, session, {2: 5})
        host.journal.when_durable(lambda: answered.append("registered"))
    await until_closed(host, True)
    with pytest.raises(BatchRejected, match="removed or replaced") as refused:
        register(host, session, {3: 5})
    assert refused.value.refusal.code == codes.UNAVAILABLE
    assert not answered
    await daemon.opened.close(PATIENCE_S)


@pytest.mark.parametrize("has_lock_file", [True, False])
def test_two_daemons_cannot_share_a_folder(tmp_path: Path, has_lock_file: bool) -> None:
    directory = Directory(tmp_path)
    if not has_lock_file:
        (tmp_path / "lock").unlink()
    with pytest.raises(JournalError, match=rf"in use by process {os.getpid() if has_lock_file else 'unknown'}"):
        OpenJournal(tmp_path, is_sync=True)
    directory.release()
    Directory(tmp_path).release()


@pytest.mark.slow
@pytest.mark.sockets
async def test_full_disk_ends_calls_at_once_until_it_has_room(tmp_path: Path, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--data-dir", str(tmp_path / "data"))
    pid, (_, most) = daemon.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 16 * 4_096
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        events = [high_watermark(f"topic-{number}", 1) for number in range(1_000)]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, most))
        # The first call, whose events the engine has, ends as soon as the disk is full; the next one changes nothing.
        for advice in (r"\); this call may have been processed", r"\)"):
            with refused(grpc.StatusCode.UNAVAILABLE, rf'details = "cannot write the journal \([^;]*{advice}"'):
                await stub.Advance(advance_request(*events), timeout=PATIENCE_S)
            assert fetch_page(daemon, "/readyz")[0] == 503
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        await asyncio.to_thread(wait_until, lambda: fetch_page(daemon, "/readyz")[0] == 200, "the disk has room")
        assert (await stub.Advance(advance_request(*events))).receipt.unchanged == len(events)
