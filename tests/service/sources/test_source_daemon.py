"""Sources at a whole daemon: its journal, its pages, and the output of the command line."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest
from purgatory_client import batches
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import Unavailable
from purgatory_client.sources.source_link import SourceLink, SourceState, StaleMarks

from tests.client.cli.test_commands import purgatory
from tests.journal.kit import copy_files
from tests.kit.daemon import InProcessDaemon, RunDaemon
from tests.kit.eventually import PATIENCE_S, eventually


async def until_state(client: AsyncClient, state: str) -> None:
    """Return once the only source is in this state."""

    async def is_reached() -> bool:
        return [one.state for one in (await client.status()).sources] == [state]

    await eventually(is_reached, f"the source is {state}")


async def test_a_source_before_and_after_the_daemon_is_killed(tmp_path: Path, run_daemon: RunDaemon) -> None:
    """The restarted daemon sends the demand of waits from the journal."""
    daemon = await run_daemon("--data-dir", str(tmp_path / "data"))
    async with AsyncClient(daemon.address) as client, client.attach_source("thermometer", ["room/"]) as link:
        batch = batches.produce(["room/kitchen-0"], offsets=[21], indexes=[0], timeouts_ms=[600_000])
        await client.register("s", 1, batch)
        told = await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
        assert told == ([("room/kitchen", 0)], [])
        copy_files(tmp_path / "data", tmp_path / "copy")
        await daemon.stop()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
    daemon = await run_daemon("--data-dir", str(tmp_path / "copy"))
    async with AsyncClient(daemon.address) as client, client.attach_source("thermometer", ["room/"]) as link:
        told = await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
        assert told == ([("room/kitchen", 0)], [])
        await client.advance("room/kitchen-0", high_watermark=5)
        reporting = asyncio.create_task(_report_stale(link))
        await until_state(client, "stale")
        show = await asyncio.to_thread(purgatory, "show", "room/kitchen-0", address=daemon.address)
        status = await asyncio.to_thread(purgatory, "status", address=daemon.address)
        page = await asyncio.to_thread(_metrics, daemon)
        reporting.cancel()
    assert "stale for 1" in show.stdout
    assert "battery" in show.stdout
    assert "thermometer" in status.stdout
    assert "stale" in status.stdout
    assert 'purgatory_source_up{principal="",source="thermometer"} 0.0' in page
    assert "source 'thermometer' ('room/*') is" in daemon.log


async def _report_stale(link: SourceLink) -> None:
    """Report once a second, as every source does: nothing has been visible for a minute."""
    while True:
        await link.report(SourceState.STALE, "battery", [StaleMarks(stale_ms=60_000, reason="battery")])
        await asyncio.sleep(0.5)


def _metrics(daemon: InProcessDaemon) -> str:
    with urllib.request.urlopen(f"http://{daemon.http_address}/metrics") as answer:
        text: str = answer.read().decode()
        return text
