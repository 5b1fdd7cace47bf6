"""Async mode: answers do not wait for the disk, so groups need not follow each other at once."""

import asyncio
from pathlib import Path

from purgatory.service.listeners.durable_journal import ASYNC_PAUSE_S, DurableJournal
from purgatory.service.recovery import OpenJournal
from purgatory.testing import ManualClock
from tests.journal.kit import PATIENCE_S, clocks_of, high_watermark, keep, new_host
from tests.service.serving import apply_events

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
        await apply_events(host, high_watermark(offset))
        await asyncio.sleep(ROUNDING_S)
    groups, taken_s = journal.statistics().groups, loop.time() - began_s
    assert 1 <= groups <= 1 + taken_s / (ASYNC_PAUSE_S - ROUNDING_S)
    assert await opened.close(PATIENCE_S)
    after = new_host(clock)
    opened = await keep(after, tmp_path, clock)
    saved = [host.engine.snapshots.save_partition(("t", 0)) for host in (host, after)]
    assert saved[0] == saved[1] != b""
    assert await opened.close(PATIENCE_S)
