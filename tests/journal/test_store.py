"""The write-ahead log is overwritten in place and truncated when idle; which changes start a new group, and when.
With a disk that is full or fails, a file that is removed, or a fault of the journal itself, new work is refused.
"""

import asyncio
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest
from purgatory_client import AsyncClient

from purgatory.daemon import Daemon
from purgatory.engine import codes
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.flags import read_command_line
from purgatory.journal import store as stores
from purgatory.journal.crash_points import BEFORE_COMMIT, CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.group import Group
from purgatory.journal.store import PAGE_BYTES, Store
from purgatory.journal.thread import JournalThread
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.errors import BatchRejected
from purgatory.service.host import Host
from purgatory.service.listeners.durable_journal import ASYNC_PAUSE_S, POLL_AT_END_S, DurableJournal
from purgatory.service.listeners.journal_metrics import JournalStatistics
from purgatory.service.metrics.exposition import make_registry
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.recovery import OpenJournal
from purgatory.service.sessions.session import Session
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.journal.kit import JournaledHost, clocks_of, keep, new_host, register, statements_of, store_in
from tests.journal.test_damage import read
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import PATIENCE_S, eventually, wait_until
from tests.kit.messages import advance_request, high_watermark, mark_batch
from tests.kit.served_host import apply_events, refused
from tests.service.test_daemon import fetch_page

PAGES_MAX = 20


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty journal with a small log."""
    monkeypatch.setattr(stores, "WAL_PAGES_MAX", PAGES_MAX)
    monkeypatch.setattr(stores, "WAL_PAGES_KEPT", 2 * PAGES_MAX)
    with store_in(tmp_path) as opened:
        yield opened


def fill_log(store: Store, wal: Path) -> int:
    """Commit until the log is full. Return its size."""
    number = 0
    while not store._is_wal_full():
        number += 1
        store.commit(statements_of(number))
    return wal.stat().st_size


def test_the_log_is_restarted_in_place(tmp_path: Path, store: Store) -> None:
    wal = tmp_path / "journal.db-wal"
    store.maintain(idle=True)
    size = fill_log(store, wal)
    assert size == 32 + PAGES_MAX * (24 + PAGE_BYTES)
    store.maintain(idle=False)
    store.commit(statements_of(1_000))
    assert not store._is_wal_full()
    store.maintain(idle=False)
    assert fill_log(store, wal) == size, "as many pages again, and none more"
    store.commit(statements_of(1_000))
    found = store.moment()
    assert found is not None
    assert found[1] == 1_000


def test_a_log_that_has_become_too_long_is_cut(tmp_path: Path, store: Store) -> None:
    wal = tmp_path / "journal.db-wal"
    for number in range(1, 10 * PAGES_MAX):
        store.commit(statements_of(number))
    store.maintain(idle=False)
    store.commit(statements_of(1_000))
    assert wal.stat().st_size <= 2 * PAGES_MAX * PAGE_BYTES


def test_at_rest_the_log_is_emptied(tmp_path: Path, store: Store) -> None:
    wal = tmp_path / "journal.db-wal"
    fill_log(store, wal)
    store.maintain(idle=True)
    assert wal.stat().st_size == 0
    assert store.size_bytes() == (tmp_path / "journal.db").stat().st_size


def test_a_step_of_vacuum_frees_many_pages(store: Store) -> None:
    database = store._database
    database.execute("CREATE TABLE burst (row BLOB)")
    database.execute("INSERT INTO burst VALUES (zeroblob(?))", (2 * stores.VACUUM_PAGES * PAGE_BYTES,))
    database.execute("DROP TABLE burst")
    free = store._free_pages()
    assert free > 2 * stores.VACUUM_PAGES
    assert store.maintain(idle=True)
    assert store._free_pages() == free - stores.VACUUM_PAGES
    while store.maintain(idle=True):
        pass
    assert store._free_pages() <= stores.FREE_PAGES_KEPT


async def end_one(host: Host, session: Session) -> JournalStatistics:
    """Register a wait and end it durably. Return the journal's statistics."""
    register(host, session, {1: 5})
    await apply_events(host, mark_batch(5, "t"))
    await host.journal.durable()
    session.outbox.take(10)
    return statistics(host)


def statistics(host: Host) -> JournalStatistics:
    assert isinstance(host.journal, DurableJournal)
    return host.journal.statistics()


async def test_time_of_sealing_a_group_is_measured(tmp_path: Path) -> None:
    daemon = await JournaledHost.start(tmp_path / "data")
    watched = daemon.host.holds.of("journal")
    watched.longest_ns = 0
    await daemon.register(dict.fromkeys(range(1, 2_001), 5))
    assert watched.longest_ns > 0
    await daemon.stop()


async def test_nothing_follows_the_last_group(tmp_path: Path) -> None:
    daemon = await JournaledHost.start(tmp_path / "data")
    journal = daemon.host.journal
    assert isinstance(journal, DurableJournal)
    thread = journal._thread
    assert thread is not None
    ending = asyncio.create_task(daemon.opened.close(PATIENCE_S))
    assert await asyncio.to_thread(thread._closing.wait, PATIENCE_S)
    while not ending.done():
        journal.heartbeat()
        await asyncio.sleep(0)
    assert ending.result()


@pytest.mark.parametrize("by_tick", [True, False])
async def test_an_acknowledgement_goes_with_the_next_group(tmp_path: Path, by_tick: bool) -> None:
    """No answer waits for an acknowledgement, so it starts no group; the row of results is deleted with the next
    group or tick.
    """
    daemon = await JournaledHost.start(tmp_path / "data")
    host = daemon.host
    session = daemon.session
    before = await end_one(host, session)
    assert before.results == 1
    host.acknowledge(session, 1)
    answered: list[str] = []
    host.journal.when_durable(lambda: answered.append("at once"))
    assert answered == ["at once"]
    await asyncio.sleep(0)
    assert statistics(host) == before
    if by_tick:
        host.journal.tick()
    else:
        register(host, session, {2: 9})
    await host.journal.durable()
    after = statistics(host)
    assert (after.groups, after.results) == (before.groups + 1, 0)
    await daemon.stop()


def test_all_files_of_a_journal_are_those_of_its_user_alone(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        with store_in(tmp_path / "data") as store:
            for _ in range(2):
                store.commit(statements_of(1))
                modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "data").iterdir()}
                assert {"journal.db", "journal.db-wal", "lock"} <= modes.keys()
                assert set(modes.values()) == {"0o600"}, modes
                store.rewrite()
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)


# Async mode: answers do not wait for the disk, so groups need not follow each other at once.

CHANGES = 200
ROUNDING_S = 0.001
"""The loop's timers are rounded to milliseconds."""


async def test_changes_in_quick_succession_share_groups(tmp_path: Path) -> None:
    """At most one group begins in each pause, and all changes are on disk in the end."""
    clock = ManualClock(1_000)
    host = new_host(clock)
    opened = OpenJournal(tmp_path, is_sync=False, clocks=clocks_of(clock))
    await opened.restore(host)
    journal = host.journal
    assert isinstance(journal, DurableJournal)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for offset in range(1, CHANGES + 1):
        await apply_events(host, mark_batch(offset, "t"))
        await asyncio.sleep(ROUNDING_S)
    groups, taken_s = journal.statistics().groups, loop.time() - began_s
    assert 1 <= groups <= 1 + taken_s / (ASYNC_PAUSE_S - ROUNDING_S)
    assert await opened.close(PATIENCE_S)
    after = new_host(clock)
    opened = await keep(after, tmp_path, clock)
    saved = [host.engine.snapshots.save_partition(("t", 0)) for host in (host, after)]
    assert saved[0] == saved[1] != b""
    assert await opened.close(PATIENCE_S)


async def test_second_signal_ends_the_process_once_all_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[tuple[JournalThread, Group]] = []
    exits: list[int] = []
    submit = JournalThread.submit
    monkeypatch.setattr(JournalThread, "submit", lambda thread, group: held.append((thread, group)))
    monkeypatch.setattr("purgatory.daemon.os._exit", exits.append)
    flags = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--extensions", "none"]
    flags += ["--data-dir", str(tmp_path), "--journal-mode", "async"]
    daemon = Daemon(read_command_line(flags, "server.py", ALL_SETTINGS).settings, [])
    closing = asyncio.Event()
    close = OpenJournal.close

    async def announce_close(opened: OpenJournal, timeout_s: float) -> bool:
        closing.set()
        return await close(opened, timeout_s)

    monkeypatch.setattr(OpenJournal, "close", announce_close)
    await daemon.start()
    async with AsyncClient(daemon.grpc_address) as client:
        await client.advance("orders-3", high_watermark=42)
    stopping = asyncio.create_task(daemon.stop())
    await closing.wait()
    second = asyncio.create_task(daemon.exit_at_once(143))
    for _ in range(10):
        await asyncio.sleep(POLL_AT_END_S)
    assert (len(held), exits) == (1, []), "the advance is not on disk"
    monkeypatch.setattr(JournalThread, "submit", submit)
    submit(*held[0])
    await second
    assert exits == [143]
    await stopping


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
    assert daemon.log.count("; retrying") == 1, "the same failure is logged once"
