"""The journal's folder, or a file in it, is removed or replaced under a running daemon."""

import asyncio
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from purgatory.engine import codes
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalLocked
from purgatory.service.errors import BatchRejected
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.journal.kit import JournaledHost, register
from tests.journal.test_disk import until_closed
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.messages import advance_request, high_watermark
from tests.service.test_daemon import fetch_page


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
async def test_lost_files_refuse_new_work(tmp_path: Path, loss: str, is_idle: bool) -> None:
    """No change counts as durable afterwards, and registrations are refused with the reason, also on an idle daemon."""
    daemon = await JournaledHost.start(tmp_path / "data")
    host, session = daemon.host, daemon.session
    register(host, session, {1: 5})
    await host.journal.durable()
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


def test_a_folder_without_its_lock_file_is_still_locked(tmp_path: Path) -> None:
    """A second daemon is refused even if the lock file was deleted."""
    directory = Directory(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(JournalLocked, match="in use by process"):
        Directory(tmp_path)
    directory.release()
    Directory(tmp_path).release()


@pytest.mark.slow
@pytest.mark.sockets
async def test_a_daemon_on_a_full_disk_is_not_ready(tmp_path: Path, start_daemon: StartDaemon) -> None:
    """/readyz answers 503 while the journal cannot be written, and 200 once it can again."""
    daemon = start_daemon("--data-dir", str(tmp_path / "data"))
    pid, (_, most) = daemon.process.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 16 * 4_096
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        events = [high_watermark(f"topic-{number}", 1) for number in range(1_000)]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, most))
        advancing = asyncio.ensure_future(stub.Advance(advance_request(*events)))
        await asyncio.to_thread(wait_until, lambda: fetch_page(daemon, "/readyz")[0] == 503, "the disk is full")
        assert not advancing.done()
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        await advancing
    assert fetch_page(daemon, "/readyz")[0] == 200
