"""Ready gates over crash loops of their callers, which use `purgatory ready`, and of the daemon; and with shards: any
shard can be asked for a gate, and its own one answers.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from purgatory_client import AsyncClient, batches
from purgatory_client.views import OperationOrder

from purgatory.cli.all_shards import over_shards
from purgatory.service.access.tokens import add_token
from tests.fleet.shard_daemons import session_of, start_shards
from tests.kit.daemon import DaemonProcess, RunDaemon, access_flags, daemon_environment
from tests.ready.gate_kit import TOPIC, ask, log_source, until

READY, EXPIRED, UNAVAILABLE, REFUSED, USAGE = 0, 11, 13, 15, 2


async def start_ready(*arguments: str, http: str) -> asyncio.subprocess.Process:
    """Start `purgatory ready`, as a container's entry point does."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "purgatory", "ready", *arguments, "--json",
        env=daemon_environment({"PURGATORY_HTTP_URL": f"http://{http}"}),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def run_ready(*arguments: str, http: str) -> tuple[int | None, Any]:
    """Run `purgatory ready` to its end. Returns its exit code and output, parsed JSON or an error message."""
    process = await start_ready(*arguments, http=http)
    printed, said = await process.communicate()
    return process.returncode, json.loads(printed) if printed else said.decode()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_the_command_waits_for_the_daemon_and_says_what_is_wrong(run_daemon: RunDaemon) -> None:
    """A daemon that cannot be reached is asked until the timeout (exit code 13). Errors that no retry can repair are
    reported at once: a refused request (15), an invalid address and a missing token file (2).
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
    assert (code, "not an HTTP address" in said) == (USAGE, True)
    code, said = await run_ready("web", TOPIC, "--token-file", "no-file", http=daemon.http_address)
    assert (code, "no-file" in said) == (USAGE, True)


def _lags(lag: int) -> Callable[[int, Any], bool]:
    return lambda _, gate: gate.get("lag") == lag


async def _on_disk(daemon: DaemonProcess) -> None:
    """Return once the journal has everything so far: a call that is answered when its own change is on disk."""
    async with AsyncClient(daemon.address) as client:
        await client.register("barrier", 1, batches.signal(["never"], timeouts_ms=[0], indexes=[0]))


OPEN, WAITING = HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE


def gate_of(shard: int) -> str:
    return session_of(shard, name="ready/web").removeprefix("ready/")


async def test_gate_asked_at_both_shards(run_daemon: RunDaemon) -> None:
    """A gate has one target, wherever it is asked for first and later, alone or among others, and it can be listed and
    closed from both shards.
    """
    daemons = await start_shards(run_daemon)
    addresses = [daemon.http_address for daemon in daemons]
    names = [gate_of(0), gate_of(1)]
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(log_source(daemon.address, 10)) for daemon in daemons]
        for source in sources:
            await source.processed(4)
        for name in names:  # for each gate, its own shard is not always the first
            assert await ask(addresses[0], name=name) == (WAITING, {"name": name, "ready": False, "lag": 6})
        for source in sources:
            source.ends[0] = 100
        for address in addresses:
            for name in names:
                assert (await ask(address, name=name))[1]["lag"] == 6
            status, answer = await ask(address, names=",".join([*names, names[0]]))
            assert (status, [(one["name"], one["lag"]) for one in answer["gates"]]) == (
                WAITING,
                [(names[0], 6), (names[1], 6), (names[0], 6)],
            )
        for source in sources:
            await source.processed(10)
        for address in addresses:
            assert [(await ask(address, name=name))[0] for name in names] == [OPEN, OPEN]
            assert (await ask(address, names=",".join(names)))[0] == OPEN
        for daemon, name in zip(daemons, reversed(names), strict=True):
            async with AsyncClient(daemon.address) as client:
                await client.close_session(f"ready/{name}")
        assert [(await ask(address, name=names[0]))[1]["lag"] for address in addresses] == [90, 90]


async def test_listing_of_a_gate_asks_its_shard_from_both(run_daemon: RunDaemon) -> None:
    daemons = await start_shards(run_daemon)
    session_id = f"ready/{gate_of(1)}"
    async with log_source(daemons[1].address, 10):
        await ask(daemons[0].http_address, name=gate_of(1))
        for daemon in daemons:
            async with AsyncClient(daemon.address) as client:
                shards = await over_shards(client)
                assert [one.session_id async for one in shards.operations(10, session_id=session_id)] == [session_id]
                ranked = await shards.ranked_operations(OperationOrder.LEAST_REMAINING, limit=10, session_id=session_id)
                assert ranked.matching == 1


async def test_gate_whose_shard_is_down_is_not_ready_and_says_why(run_daemon: RunDaemon) -> None:
    [daemon] = await start_shards(run_daemon, count=1)
    async with log_source(daemon.address, 0):
        status, gate = await ask(daemon.http_address, name=gate_of(1))
        assert (status, gate["ready"]) == (WAITING, False)
        assert gate["reason"].startswith("its shard, at http://127.0.0.1:")
        status, answer = await ask(daemon.http_address, names=f"{gate_of(0)},{gate_of(1)}")
        assert (status, [gate["ready"] for gate in answer["gates"]]) == (WAITING, [True, False])


@pytest.mark.parametrize("urls", [False, True])
async def test_gate_that_is_not_passed_on(run_daemon: RunDaemon, urls: bool) -> None:
    """Where the addresses of other shards are not known, and in a request that was passed on already, a gate of another
    shard is refused with its shard, and does not come to exist.
    """
    [daemon] = await start_shards(run_daemon, count=1, has_urls=urls)
    headers = {"purgatory-passed-on": "1"} if urls else {}
    status, answer = await ask(daemon.http_address, "topics=orders", headers, name=gate_of(1))
    assert status == HTTPStatus.BAD_REQUEST
    assert "belongs to shard 1, at 127.0.0.1:" in answer["message"]
    async with AsyncClient(daemon.address) as client:
        assert (await client.status()).sessions == 0


async def test_shard_of_a_gate_identifies_the_caller_by_its_token(run_daemon: RunDaemon, tmp_path: Path) -> None:
    flags = access_flags(
        tmp_path,
        'loopback_principal = "root"\n'
        '[[grant]]\nto = ["root", "billing"]\nroles = ["wait", "advance", "observe"]\ntopics = ["*"]\n',
    )
    billing = {"Authorization": f"Bearer {add_token(tmp_path / 'tokens', 'billing')}"}
    daemons = await start_shards(run_daemon, *flags)
    address, name = daemons[0].http_address, gate_of(1)
    async with log_source(daemons[1].address, 10) as source:
        assert (await ask(address, name=name))[1]["lag"] == 10
        source.ends[0] = 20
        assert (await ask(address, headers=billing, name=name))[1]["lag"] == 20, "a gate of its own"
        status, answer = await ask(address, "topics=orders", billing, name=name)
        assert status == HTTPStatus.BAD_REQUEST
        assert "belongs to a gate that waits for other marks" in answer["message"]
