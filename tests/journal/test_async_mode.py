"""Async mode: answers do not wait for the disk, so groups need not follow each other at once."""

import asyncio
from pathlib import Path

import pytest
from purgatory_client import AsyncClient

from purgatory.daemon import Daemon
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.flags import read_command_line
from purgatory.journal.group import Group
from purgatory.journal.thread import JournalThread
from purgatory.service.listeners.durable_journal import ASYNC_PAUSE_S, POLL_AT_END_S, DurableJournal
from purgatory.service.recovery import OpenJournal
from purgatory.testing import ManualClock
from tests.journal.kit import clocks_of, keep, new_host
from tests.kit.eventually import PATIENCE_S
from tests.kit.messages import mark_batch
from tests.kit.served_host import apply_events

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
