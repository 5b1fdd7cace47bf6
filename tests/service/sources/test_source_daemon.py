"""Sources at a real daemon: its journal, its pages, and the output of the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from purgatory_client import batches
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import Unavailable
from purgatory_client.sources.source_link import SourceLink, SourceState, StaleMarks

from tests.daemon_process import DaemonProcess, daemon_environment
from tests.service.serving import PATIENCE_S


def purgatory(*arguments: str, address: str) -> str:
    """Return the output of the command."""
    command = [sys.executable, "-m", "purgatory", *arguments, "--address", address]
    return subprocess.run(command, env=daemon_environment(), capture_output=True, text=True, check=True).stdout


async def until_state(client: AsyncClient, state: str) -> None:
    """Return once the only source is in this state."""
    async with asyncio.timeout(PATIENCE_S):
        while [one.state for one in (await client.status()).sources] != [state]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_source_before_and_after_the_daemon_is_killed(tmp_path: Path) -> None:
    """The stream breaks. The restarted daemon sends the source the demand of waits from the journal; status, show,
    metrics and log report the marks that it cannot see.
    """
    options = ["--data-dir", str(tmp_path / "data")]
    daemon = DaemonProcess(tmp_path / "first", options)
    try:
        async with AsyncClient(daemon.address, give_up_after=None) as waiter:
            await waiter.register(
                "s", 1, batches.produce(["room/kitchen-0"], offsets=[21], indexes=[0], timeouts_ms=[600_000])
            )
            async with AsyncClient(daemon.address) as client, client.attach_source("thermometer", ["room/"]) as link:
                told = await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
                assert told == ([("room/kitchen", 0)], [])
                daemon.kill()
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(anext(aiter(link)), PATIENCE_S)
        daemon = DaemonProcess(tmp_path / "second", options)
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
        assert "stale for 1" in show
        assert "battery" in show
        assert "thermometer" in status
        assert "stale" in status
        assert 'purgatory_source_up{principal="",source="thermometer"} 0.0' in page
        assert "source 'thermometer' ('room/*') is" in daemon.log
    finally:
        daemon.stop()


async def _report_stale(link: SourceLink) -> None:
    """Report once a second, as every source does: nothing has been visible for a minute."""
    while True:
        await link.report(SourceState.STALE, "battery", [StaleMarks(stale_ms=60_000, reason="battery")])
        await asyncio.sleep(0.5)


def _metrics(daemon: DaemonProcess) -> str:
    with urllib.request.urlopen(f"http://{daemon.http_address}/metrics") as answer:
        text: str = answer.read().decode()
        return text
