"""Clients with several addresses find the daemon that serves, and go on with another that has its journal."""

import asyncio
import shutil
import signal
import socket
from pathlib import Path

import grpc.aio
import pytest
from purgatory_client import AsyncClient, Client, Result, errors, waits
from purgatory_client.session.addresses import PING_MS, target_of
from purgatory_client.session.channel import OPTIONS, channel_options, open_channel

from examples.free_ports import free_port
from purgatory.cli.exit_codes import Exit
from purgatory.service.rpc.grpc_options import PING_INTERVAL_MIN_MS
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.client.cli.test_commands import purgatory
from tests.client.session.standby import REFUSAL, standby
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending

pytestmark = pytest.mark.sockets

LONG = 300.0
HALF = 100


def leader(folder: Path, journal: Path, *listen: str) -> DaemonProcess:
    return DaemonProcess(folder, ["--data-dir", str(journal), *listen])


async def broken_wait(addresses: str) -> grpc.StatusCode:
    """The status with which the connection of a single call breaks that nothing repeats."""
    request = wire.WaitRequest(operation={"signal": {"keys": [{"key": "never"}]}})
    async with open_channel(addresses) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await PurgatoryServiceStub(channel).Wait(request)
    return broken.value.code()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_waits_outlive_their_leader(tmp_path: Path, fault: signal.Signals) -> None:
    """The leader is killed, or stopped, and another daemon continues its journal at the second address: each wait is
    answered once, also those made in between, and a single unary call gets UNAVAILABLE.
    """
    first, second = leader(tmp_path / "a", tmp_path / "journal"), None
    try:
        async with standby() as address:
            addresses = f"{first.address},{address}"
            client = AsyncClient(addresses)
            answered = [0] * 3 * HALF

            async def wait_for(place: int) -> Result:
                result = await client.produce({"single-0": place + 1}, timeout=LONG)
                answered[place] += 1
                return result

            waiting = [asyncio.create_task(wait_for(place)) for place in range(2 * HALF)]
            offsets = list(range(1, 2 * HALF + 1))
            many = asyncio.create_task(client.produce_many(["many-0"], offsets=offsets, timeouts_ms=[300_000]))
            once = asyncio.create_task(client.wait_once(waits.signal(["once"], timeout=LONG)))
            alone = asyncio.create_task(broken_wait(addresses))
            await until_pending(client, 4 * HALF + 2)
            await client.advance("single-0", high_watermark=HALF)
            await client.advance("many-0", high_watermark=HALF)
            await asyncio.gather(*waiting[:HALF])
            await until_pending(client, 2 * HALF + 2)
            first.process.send_signal(fault)
            assert await alone is grpc.StatusCode.UNAVAILABLE
            waiting += [asyncio.create_task(wait_for(place)) for place in range(2 * HALF, 3 * HALF)]
            await asyncio.sleep(0)
            shutil.copytree(tmp_path / "journal", tmp_path / "copy")
        second = leader(tmp_path / "b", tmp_path / "copy", "--grpc-address", address)
        async with client:
            # Both directly and by the client, which must have left the leader that is merely stopped.
            async with AsyncClient(address) as direct:
                # The pending operation of `broken_wait` is unary, so it is in no journal.
                await until_pending(direct, 3 * HALF + 1)
            await client.advance("single-0", high_watermark=3 * HALF)
            await client.advance("many-0", high_watermark=2 * HALF)
            await client.signal_key("once")
            assert all(result.satisfied for result in await asyncio.gather(*waiting, once))
            assert (await many).satisfied
            assert answered == [1] * 3 * HALF
            after = asyncio.create_task(client.produce({"single-0": 3 * HALF + 1}, timeout=LONG))
            await until_pending(client, 1)
            (listed,) = [pending async for pending in client.operations()]
            assert listed.operation_id == 5 * HALF + 1
            shown = await asyncio.to_thread(purgatory, "status", address=addresses)
            assert shown.returncode == Exit.OK
            await client.advance("single-0", high_watermark=3 * HALF + 1)
            assert (await after).satisfied
    finally:
        for daemon in filter(None, (first, second)):
            daemon.kill()


async def test_standby_alone_refuses_calls_and_is_given_up() -> None:
    async with standby() as address, AsyncClient(address, give_up_after=0.3) as client:
        with pytest.raises(errors.Unavailable, match=REFUSAL):
            await client.status()
        with pytest.raises(errors.Unavailable, match=f"no connection to {address} for "):
            await client.produce({"orders-3": 42}, timeout=10)


async def test_calls_fail_until_a_daemon_serves(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    async with standby() as address, AsyncClient(f"{nowhere},{address}") as client:
        with pytest.raises(errors.Unavailable, match="connections to all backends failing"):
            await client.status()
        waiting = asyncio.create_task(client.produce({"orders-3": 42}, timeout=LONG))
        with DaemonProcess(tmp_path, ["--grpc-address", nowhere]):
            await until_pending(client, 1, but=errors.Unavailable)
            await client.advance("orders-3", high_watermark=42)
            assert (await waiting).satisfied


async def test_name_that_moved_is_looked_up_again(
    shared_daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = shared_daemon.address.rpartition(":")
    found, real = ["127.0.0.9"], socket.getaddrinfo

    def moving(name: str, *others: object, **named: object) -> object:
        return real(found[0] if name == "moving.test" else name, *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    async with AsyncClient(f"moving.test:{port},127.0.0.9:{port}") as client:
        with pytest.raises(errors.Unavailable):
            await client.status()
        found[0] = host
        await until_pending(client, 0, but=errors.Unavailable)
        assert (await client.produce({"moved-0": 42}, timeout=0)).satisfied is False


def test_options_and_targets() -> None:
    """One address has the options that it always had; several of both families become one target."""
    for address in ("daemon:7440", "127.0.0.1:7440", "unix:/run/p", "ipv4:127.0.0.1:1,127.0.0.1:2"):
        assert (target_of(address), channel_options(address)) == (address, OPTIONS)
    assert target_of("127.0.0.1:1,127.0.0.2:2,127.0.0.1:1") == "ipv4:127.0.0.1:1,127.0.0.2:2"
    assert target_of("127.0.0.1:1,[::1]:2") == "ipv6:[::ffff:127.0.0.1]:1,[::1]:2"
    assert target_of("name.invalid:1,name.invalid:2") == "dns:///name.invalid:1"
    # A daemon disconnects clients that ping more often than that.
    assert PING_INTERVAL_MIN_MS < PING_MS
    assert dict(channel_options("a:1,b:2")).keys() - dict(channel_options("dns:///a:1")) == {"grpc.default_authority"}


def test_a_name_with_several_addresses(shared_daemon: DaemonProcess) -> None:
    port = shared_daemon.address.rpartition(":")[2]
    for address in (f"dns:///localhost:{port}", f"localhost:{port},localhost:1"):
        with Client(address) as client:
            client.advance("orders-3", high_watermark=42)
            assert client.produce({"orders-3": 42}, timeout=60).satisfied
