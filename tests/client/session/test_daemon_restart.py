"""A daemon with a journal is killed and restarted: clients continue by themselves, and each wait ends once."""

import asyncio
import json
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client, Result

from purgatory.cli.exit_codes import Exit
from tests.client.cli.test_commands import purgatory
from tests.client.until import until_pending
from tests.daemon_process import DaemonProcess
from tests.daemon_simulation.faulty_proxy import FaultyProxy

pytestmark = pytest.mark.sockets

LONG = 120.0
SINGLES = 300
IN_COLUMNS = 300


def daemon_on(tmp_path: Path, number: int) -> DaemonProcess:
    """A daemon that uses the test's journal."""
    return DaemonProcess(tmp_path / f"daemon-{number}", ["--data-dir", str(tmp_path / "journal")])


@pytest.mark.slow
async def test_waits_outlive_a_daemon_that_remembers(tmp_path: Path) -> None:
    """The daemon is killed twice while waits are registered and end: none is lost and none registered twice."""
    daemon = daemon_on(tmp_path, 0)
    try:
        async with FaultyProxy(daemon.address) as proxy, AsyncClient(proxy.address) as client:
            offsets = list(range(1, IN_COLUMNS + 1))
            many = asyncio.create_task(client.produce_many(["many-0"], offsets=offsets, timeouts_ms=[120_000]))
            waiting: list[asyncio.Task[Result]] = []
            for number in (1, 2):
                for _ in range(SINGLES // 2):
                    waiting.append(asyncio.create_task(client.produce({"single-0": len(waiting) + 1}, timeout=LONG)))
                await asyncio.sleep(0)
                async with AsyncClient(daemon.address) as direct:
                    await direct.advance("single-0", high_watermark=number * 50)
                    await direct.advance("many-0", high_watermark=number * 50)
                daemon.kill()
                daemon = daemon_on(tmp_path, number)
                proxy.target = daemon.address
            async with AsyncClient(daemon.address) as direct:
                await direct.advance("single-0", high_watermark=SINGLES)
                await direct.advance("many-0", high_watermark=IN_COLUMNS)
            assert all(result.satisfied for result in await asyncio.gather(*waiting))
            assert (await many).satisfied
            status = await client.status()
            assert sum(kind.pending for kind in status.kinds) == 0
            one = asyncio.create_task(client.produce({"single-0": SINGLES + 1}, timeout=LONG))
            async with AsyncClient(daemon.address) as direct:
                await until_pending(direct, 1)
                (listed,) = [pending async for pending in direct.operations()]
                assert listed.operation_id == SINGLES + IN_COLUMNS + 1
                await direct.advance("single-0", high_watermark=SINGLES + 1)
            assert (await one).satisfied
    finally:
        daemon.kill()


@pytest.mark.slow
def test_a_load_outlives_the_daemon(tmp_path: Path) -> None:
    """After `load --detach`, a kill and a restart, `status` shows the remaining time, and `results` returns each
    result once.
    """
    daemon = daemon_on(tmp_path, 0)
    try:
        left = purgatory(
            "load", "-n", "2000", "--session", "s", "--partitions", "2", "--detach", address=daemon.address
        )
        assert left.returncode == Exit.OK
        daemon.kill()
        daemon = daemon_on(tmp_path, 1)
        shown = purgatory("status", "--json", address=daemon.address)
        left_over = json.loads(shown.stdout)["remaining_time"]
        assert sum(left_over["operations"]) == 2_000
        assert 0 < left_over["soonest"] <= left_over["latest"] < 600
        with Client(daemon.address) as client:
            client.advance("load-0", high_watermark=1_000)
            client.advance("load-1", high_watermark=1_000)
        daemon.kill()
        daemon = daemon_on(tmp_path, 2)
        collected = purgatory("results", "--session", "s", "--json", address=daemon.address)
        assert collected.returncode == Exit.OK
        ids = [json.loads(line)["operation_id"] for line in collected.stdout.splitlines()]
        assert sorted(ids) == list(range(1, 2_001))
        assert purgatory("results", "--session", "s", address=daemon.address).stdout == ""
    finally:
        daemon.kill()
