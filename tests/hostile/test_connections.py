"""What a stranger can do with connections and streams alone, before any message is read."""

import asyncio
import socket
import time
from pathlib import Path

import grpc
import pytest
from purgatory_client import AsyncClient, Client

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.until import until_pending
from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess
from tests.fuzz.raw_bytes import PREFACE, SETTINGS, frame, headers
from tests.service.serving import DaemonChannel, produce

HEADERS, RST_STREAM, END_HEADERS, CANCEL = 1, 3, 4, 8
RESETS = 60_000
GROWTH_MB_MAX = 128
"""Without a limit on streams, so many resets cost 450 MB."""

PATIENCE_S = 60.0
HELD = wire.WaitRequest(operation=produce(1, "held", 1, timeout_ms=60_000))


def memory_mb(daemon: DaemonProcess) -> int:
    """Resident memory of a daemon."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text("ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024


def connect(daemon: DaemonProcess) -> socket.socket:
    host, _, port = daemon.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(PREFACE + SETTINGS)
    return connection


def is_served(connection: socket.socket) -> bool:
    """Whether the daemon sends its own settings, rather than closing."""
    try:
        return bool(connection.recv(9))
    except ConnectionError:
        return False


def test_rapid_reset_costs_no_memory(daemon: DaemonProcess) -> None:
    """A caller opens streams and resets each at once (CVE-2023-44487): memory stays, and others are served."""
    before_mb = memory_mb(daemon)
    block = headers("/purgatory.v1.PurgatoryService/Wait")
    with connect(daemon) as connection:
        for first in range(1, 2 * RESETS, 2_000):
            connection.sendall(
                b"".join(
                    frame(HEADERS, END_HEADERS, stream, block) + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
                    for stream in range(first, first + 2_000, 2)
                )
            )
        assert is_served(connection)
        with Client(daemon.address) as client:
            assert client.status().version
        assert memory_mb(daemon) - before_mb < GROWTH_MB_MAX


def test_connections_are_limited(start_daemon: StartDaemon) -> None:
    """At the limit a further connection is closed unread, and as soon as one ends there is room again."""
    daemon = start_daemon("--grpc-connections-max", "3")
    first, *others = [connect(daemon) for _ in range(3)]
    assert all(is_served(connection) for connection in (first, *others))
    with connect(daemon) as further:
        assert not is_served(further)
    first.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with connect(daemon) as further:
            if is_served(further):
                break
        assert time.monotonic() < deadline, "there is no room though a connection has ended"
    for connection in others:
        connection.close()


async def test_calls_on_one_connection_are_limited(start_daemon: StartDaemon) -> None:
    """A client holds back what is above the limit of its connection, and sends it once a call has ended."""
    daemon = start_daemon("--grpc-streams-per-connection-max", "2")
    async with DaemonChannel(daemon.address) as caller, AsyncClient(daemon.address) as other:
        waits = [asyncio.ensure_future(caller.stub.Wait(HELD)) for _ in range(2)]
        await until_pending(other, 2)
        further = asyncio.ensure_future(caller.status())
        done, _ = await asyncio.wait([further], timeout=0.2)
        assert not done
        waits[0].cancel()
        assert (await further).version
        waits[1].cancel()


@pytest.mark.parametrize("calls_max", [1, 3])
async def test_unary_waits_are_limited(start_daemon: StartDaemon, calls_max: int) -> None:
    """So many calls of Wait are taken; the next is told the limit and to retry; one that ends makes room."""
    daemon = start_daemon("--limits-unary-waits-max", str(calls_max))
    async with DaemonChannel(daemon.address) as caller, AsyncClient(daemon.address) as other:
        waits = [asyncio.ensure_future(caller.stub.Wait(HELD)) for _ in range(calls_max)]
        await until_pending(other, calls_max)
        with pytest.raises(grpc.aio.AioRpcError, match=f"{calls_max} calls of Wait are in flight") as refused:
            await caller.stub.Wait(HELD)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waits.pop().cancel()
        await until_pending(other, calls_max - 1)
        waits.append(asyncio.ensure_future(caller.stub.Wait(HELD)))
        await until_pending(other, calls_max)
        for wait in waits:
            wait.cancel()
