"""A disk that is full or fails, and faults of the journal itself: new work is refused, and nothing is lost."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from purgatory.engine import codes
from purgatory.journal.crash_points import BEFORE_COMMIT, CrashPoints
from purgatory.journal.errors import JournalError
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.errors import BatchRejected
from purgatory.service.host import Host
from purgatory.service.metrics.exposition import make_registry
from purgatory.service.metrics.metrics import Metrics
from tests.journal.kit import JournaledHost, register
from tests.journal.test_damage import read
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events


class FailingCommits(CrashPoints):
    """Makes commits fail with an SQLite error while `code` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.code = 0
        self.failed = 0

    def reached(self, point: str) -> None:
        """Called at each point of the journal's thread."""
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
    register(host, session, {1: 5})
    await host.journal.durable()
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


async def test_reopening_the_file_is_retried(tmp_path: Path) -> None:
    """After an I/O error the file is reopened, and reopening is retried until it succeeds."""
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
    register(host, session, {1: 5, 2: 9})
    await host.journal.durable()

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
    """All answers of a group are released together: those behind the one that raises, and the results."""
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
