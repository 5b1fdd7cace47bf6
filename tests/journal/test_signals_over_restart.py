"""Values and failures of signals, heartbeats and extended deadlines over the crash of a daemon with a journal."""

import asyncio
from pathlib import Path

import pytest
from purgatory_client import batches
from purgatory_client.aio import AsyncClient
from purgatory_client.results import SIGNAL_FAILED, Outcome

from tests.client.until import until_pending
from tests.journal.kit import PATIENCE_S, copy_files
from tests.service.in_process import InProcessDaemon, RunDaemon

LONG_MS = 3_600_000
"""So that nothing expires on a busy machine."""

pytestmark = pytest.mark.sockets


async def crash(run_daemon: RunDaemon, daemon: InProcessDaemon, folder: Path) -> None:
    """Replace the daemon by another one at its address, which gets only the files as they are now."""
    copy_files(folder / "data", folder / "copy")
    await daemon.stop()
    await run_daemon("--data-dir", str(folder / "copy"), "--grpc-address", daemon.address)


async def test_values_are_delivered_once_and_the_first_wins(tmp_path: Path, run_daemon: RunDaemon) -> None:
    """After a crash a key has its first value, in results that nobody had collected, in waits that went on, and in new
    ones; each result is delivered once. A failed key stays failed, with its reason.
    """
    daemon = await run_daemon("--data-dir", str(tmp_path / "data"))
    async with AsyncClient(daemon.address) as client:
        await client.register(
            "night",
            1,
            batches.signal(["a", "a", "late"], indexes=[0, 1, 2], item_counts=[1, 2], timeouts_ms=[LONG_MS]),
        )
        both = asyncio.create_task(client.signal(["a", "b"], timeout=LONG_MS / 1_000))
        await until_pending(client, 3)
        assert (await client.signal_key("a", value=b"first")).ended_total == 1
        await client.signal_key("a", value=b"second")
        await client.signal_key("broken", value=b"disk full", failed=True)
        await crash(run_daemon, daemon, tmp_path)
        await until_pending(client, 2)
        await client.signal_key("a", value=b"third")
        await client.signal_key("b", value=b"\x00\xff")
        values = [item.signal_value for item in (await asyncio.wait_for(both, PATIENCE_S)).partitions.values()]
        assert values == [b"first", b"\x00\xff"]
        assert (await client.signal(["a"], timeout=0)).partitions["a"].signal_value == b"first"
        broken = await client.signal(["broken"], timeout=60)
        item = broken.partitions["broken"]
        assert (broken.outcome, item.error_code, item.signal_value) == (Outcome.FAILED, SIGNAL_FAILED, b"disk full")
        await client.signal_key("late", value=b"then")
        collected = [one async for one in client.results("night")]
        ids = [number for part in collected for number in part.operation_ids]
        values = [value for part in collected for value in part.results.signal_values]
        assert (ids, values) == ([1, 2], [b"first", b"first", b"then"])
        assert [one async for one in client.results("night")] == []


async def test_deadlines_and_heartbeats_are_restored(tmp_path: Path, run_daemon: RunDaemon) -> None:
    """An extended wait has its new deadline after a crash, and a wait that requires a heartbeat fails without one."""
    daemon = await run_daemon("--data-dir", str(tmp_path / "data"))
    async with AsyncClient(daemon.address) as client:
        batch = batches.signal(["slow", "silent"], timeouts_ms=[LONG_MS], heartbeat_timeouts_ms=[-1, LONG_MS - 1])
        await client.register("night", 1, batch)
        assert await client.extend([1, 3], 7_200, session_id="night") == [3]
        await client.register("night", 3, batches.signal(["soon"], timeouts_ms=[LONG_MS], heartbeat_timeouts_ms=[300]))
        await crash(run_daemon, daemon, tmp_path)
        await until_pending(client, 2)
        assert LONG_MS / 1_000 < (await client.operation("night", 1)).remaining <= 7_200
        assert (await client.operation("night", 2)).remaining <= LONG_MS / 1_000
        async for collected in client.results("night"):
            assert (list(collected.operation_ids), list(collected.results.outcomes)) == ([3], [Outcome.FAILED])
            break
