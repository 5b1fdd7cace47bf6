"""Ready gates over crash loops: of their callers, which use `purgatory ready`, and of the daemon."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from purgatory_client import AsyncClient, batches

from tests.kit.daemon import DaemonProcess, RunDaemon, daemon_environment
from tests.ready.gate_kit import TOPIC, ask, log_source, until

pytestmark = pytest.mark.slow
READY, EXPIRED, UNAVAILABLE, REFUSED, USAGE = 0, 11, 13, 15, 2


async def start_ready(*arguments: str, http: str) -> asyncio.subprocess.Process:
    """Start `purgatory ready`, as a container's entry point does."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "purgatory", "ready", *arguments, "--json",
        env=daemon_environment({"PURGATORY_HTTP_URL": f"http://{http}"}),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def run_ready(*arguments: str, http: str) -> tuple[int | None, Any]:
    """Run `purgatory ready` to its end: its exit code, and what it printed, as JSON or as an error message."""
    process = await start_ready(*arguments, http=http)
    printed, said = await process.communicate()
    return process.returncode, json.loads(printed) if printed else said.decode()


async def test_a_crash_loop_of_the_caller(run_daemon: RunDaemon) -> None:
    """A container that is killed and started again and again, while records keep coming, becomes ready at the target of
    its first start, and is ready at once at every later start. A new container has a target of its own.
    """
    daemon = await run_daemon()
    async with log_source(daemon.address, 10) as source:
        await source.processed(0)
        for number in range(2):
            container = await start_ready("web-0", TOPIC, http=daemon.http_address)
            await until(
                daemon.http_address, lambda _, gate: gate.get("lag") == 10, query=f"marks={TOPIC}", name="web-0"
            )
            container.kill()
            await container.communicate()
            source.ends[0] += 100 * (number + 1)
        code, gate = await run_ready("web-0", TOPIC, "--timeout", "0", http=daemon.http_address)
        assert (code, gate["lag"]) == (EXPIRED, 10)
        container = await start_ready("web-0", TOPIC, "--timeout", "60s", http=daemon.http_address)
        await source.processed(10)
        assert await container.wait() == READY
        source.ends[0] += 1_000
        code, gate = await run_ready("web-0", TOPIC, "--timeout", "0", http=daemon.http_address)
        assert (code, gate) == (READY, {"name": "web-0", "ready": True, "lag": 0})
        code, gate = await run_ready("web-1", TOPIC, "--timeout", "0", http=daemon.http_address)
        assert (code, gate["lag"]) == (EXPIRED, source.ends[0] - 10)


async def test_a_crash_loop_of_the_daemon(tmp_path: Path) -> None:
    """With a journal, a gate keeps its target over any number of kill -9, and once it is ready, it is ready after each
    of them, also with no source to ask. Nothing is asked again.
    """
    daemon: DaemonProcess | None = None

    def start() -> DaemonProcess:
        return DaemonProcess(tmp_path / "daemon", ["--data-dir", str(tmp_path / "data")])

    try:
        for number in range(2):
            daemon = start()
            # The log grows, and the group proceeds; the target stays at 10.
            async with log_source(daemon.address, 10 * (number + 1)) as source:
                await source.processed(3 * number)
                await until(daemon.http_address, _lags(10 - 3 * number))
                assert source.asked == (number == 0)
                await _on_disk(daemon)
            daemon.kill()
        daemon = start()
        async with log_source(daemon.address, 1_000) as source:
            await source.processed(10)
            await until(daemon.http_address, lambda status, _: status == 200)
            assert source.asked == 0
            await _on_disk(daemon)
        daemon.kill()
        daemon = start()
        assert await ask(daemon.http_address) == (200, {"name": "web", "ready": True, "lag": 0})
        assert daemon.stop() == 0
        daemon = start()
        assert (await ask(daemon.http_address))[0] == 200
    finally:
        if daemon is not None:
            daemon.kill()


async def test_a_restart_without_a_journal_forgets(run_daemon: RunDaemon) -> None:
    for end in (10, 20):
        daemon = await run_daemon()
        async with log_source(daemon.address, end):
            await until(daemon.http_address, _lags(end))
        await daemon.stop()


async def test_the_command_waits_for_the_daemon_and_says_what_is_wrong(run_daemon: RunDaemon) -> None:
    """A daemon that cannot be reached is asked until the timeout (exit code 13). What no retry can repair is reported
    at once: a refused request (15), an address that is none and a token file that is missing (2).
    """
    code, said = await run_ready("web", TOPIC, "--timeout", "0", http="127.0.0.1:9")
    assert (code, "127.0.0.1:9 does not answer" in said) == (UNAVAILABLE, True)
    daemon = await run_daemon()
    code, gate = await run_ready("web", TOPIC, "--timeout", "0", http=daemon.http_address)
    assert (code, gate["ready"]) == (EXPIRED, False)
    assert "no source that publishes" in gate["reason"]
    code, said = await run_ready("web", TOPIC, "--timeout", "0", http=daemon.address)
    assert (code, "does not answer" in said) == (UNAVAILABLE, True), "that is its gRPC port"
    code, said = await run_ready("web", TOPIC, "--http", f"http://{daemon.http_address}/no-page", http="")
    assert (code, "nothing is served at /no-page" in said) == (REFUSED, True)
    code, said = await run_ready("x" * 200, TOPIC, http=daemon.http_address)
    assert (code, "128 characters" in said) == (REFUSED, True)
    code, said = await run_ready("web", TOPIC, "--http", "127.0.0.1", http=daemon.http_address)
    assert (code, "expected a URL" in said) == (USAGE, True)
    code, said = await run_ready("web", TOPIC, "--token-file", "no-file", http=daemon.http_address)
    assert (code, "no-file" in said) == (USAGE, True)


def _lags(lag: int) -> Callable[[int, Any], bool]:
    return lambda _, gate: gate.get("lag") == lag


async def _on_disk(daemon: DaemonProcess) -> None:
    """Return once the journal has everything so far: a call that is answered when its own change is on disk."""
    async with AsyncClient(daemon.address) as client:
        await client.register("barrier", 1, batches.signal(["never"], timeouts_ms=[0], indexes=[0]))
