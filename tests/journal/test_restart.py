"""A daemon with a journal is killed and restarted; its client continues to wait without noticing."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from purgatory_client import batches
from purgatory_client.aio import AsyncClient
from purgatory_client.results import Outcome
from purgatory_client.terms import at_least, mark, signal

from tests.journal.kit import copy_files
from tests.kit.daemon import DaemonProcess, InProcessDaemon, RunDaemon
from tests.kit.eventually import PATIENCE_S, eventually, until_pending

LONG_MS = 3_600_000
"""So that nothing expires on a busy machine."""

pytestmark = pytest.mark.sockets


def free_address() -> str:
    """An address with a free port, because the daemon must be restarted on the same one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(folder: Path, address: str) -> DaemonProcess:
    """Start a daemon with a journal at an address."""
    data = str(folder / "data")
    return DaemonProcess(folder, ["--data-dir", data, "--grpc-address", address, "--journal-mode", "sync"])


async def pending(client: AsyncClient) -> int:
    """The number of pending operations."""
    return sum(kind.pending for kind in (await client.status()).kinds)


@pytest.mark.slow  # starts the daemon three times
async def test_waits_and_results_survive_a_restart(tmp_path: Path) -> None:
    """After a kill -9 and after a SIGTERM, which with a journal does not end the waits of sessions either, each wait of
    every kind ends once with the right outcome, and marks are kept.
    """
    address = free_address()
    daemon = start(tmp_path, address)
    try:
        async with AsyncClient(address) as client:
            await client.advance("orders-0", high_watermark=5)
            await client.signal_key("go", 3)
            await client.advance("log-0", log_end_offset=10, byte_position=1_000)
            many = asyncio.create_task(client.produce_many(["orders-0"], offsets=range(6, 306), timeouts_ms=[60_000]))
            both = asyncio.create_task(client.produce({"orders-0": 50, "other-0": 7}, timeout=60))
            keys = asyncio.create_task(client.signal({"go": 2}, from_now=True, timeout=60))
            fetch = asyncio.create_task(client.fetch({"log-0": 10}, min_bytes=500, replica_id=2, timeout=60))
            two_of = at_least(2, mark("orders-0", 50), mark("other-0", 7), signal("never"))
            composite = asyncio.create_task(client.wait(two_of, unless=signal("go/failed"), timeout=60))
            failing = asyncio.create_task(client.wait(mark("orders-0", 1_000), unless=signal("go", 5), timeout=60))
            await until_pending(client, 305)
            short = asyncio.create_task(client.produce({"never-0": 1}, timeout=1.5))
            await client.advance("orders-0", high_watermark=105)
            await client.signal_key("go")
            # A hundred have ended; `both` and `composite` wait for one more mark. The short one may have expired.
            assert await pending(client) in {205, 206}

            async def as_before() -> bool:
                return await pending(client) in {205, 206}

            ends: list[Callable[[DaemonProcess], object]] = [DaemonProcess.kill, DaemonProcess.stop]
            for end in ends:
                await asyncio.to_thread(end, daemon)
                daemon = start(tmp_path, address)
                await eventually(as_before, "the waits are restored")
            assert (await client.partition("orders-0")).high_watermark == 105
            await client.advance("orders-0", high_watermark=400)
            await client.advance("other-0", high_watermark=8)
            await client.signal_key("go")
            await client.advance("log-0", log_end_offset=11, byte_position=1_600)
            ended = await asyncio.wait_for(many, PATIENCE_S)
            assert list(ended.outcomes) == [Outcome.SATISFIED] * 300
            for task in (both, keys, fetch, composite):
                assert (await asyncio.wait_for(task, PATIENCE_S)).outcome is Outcome.SATISFIED
            assert (await asyncio.wait_for(failing, PATIENCE_S)).outcome is Outcome.FAILED
            late = await asyncio.wait_for(short, PATIENCE_S)
            assert late.outcome is Outcome.EXPIRED
            assert late.waited >= 1.5
        assert daemon.stop() == 0
    finally:
        daemon.kill()
    assert daemon.log.count("the last daemon shut down cleanly") == 1


async def crash(run_daemon: RunDaemon, daemon: InProcessDaemon, folder: Path) -> None:
    """Replace the daemon by another one at its address, which gets only the files as they are now."""
    copy_files(folder / "data", folder / "copy")
    await daemon.stop()
    await run_daemon("--data-dir", str(folder / "copy"), "--grpc-address", daemon.address)


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
