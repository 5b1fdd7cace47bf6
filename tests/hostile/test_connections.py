"""What a stranger can do with connections and streams alone, before any message is read."""

import asyncio
import socket
import time
from pathlib import Path

import grpc
import pytest

from purgatory.v1 import operation_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess
from tests.fuzz.raw_bytes import PREFACE, SETTINGS, frame, headers

HEADERS, RST_STREAM, END_HEADERS, CANCEL = 1, 3, 4, 8
RESETS = 60_000
GROWTH_MB_MAX = 128
"""Without a limit on streams, so many resets cost 450 MB."""

PATIENCE_S = 30.0


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


def wait_for(topic: str) -> wire.WaitRequest:
    produce = operation_pb2.Produce(
        partitions=[
            operation_pb2.ProducePartition(topic_partition=operation_pb2.TopicPartition(topic=topic), required_offset=1)
        ]
    )
    return wire.WaitRequest(operation=operation_pb2.Operation(operation_id=1, timeout_ms=60_000, produce=produce))


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
        with grpc.insecure_channel(daemon.address) as channel:
            status = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).GetStatus(
                wire.GetStatusRequest(), timeout=PATIENCE_S
            )
        assert status.version
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
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        waits = [asyncio.ensure_future(stub.Wait(wait_for("held"), timeout=PATIENCE_S)) for _ in range(2)]
        async with grpc.aio.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]) as other:
            looking = purgatory_service_pb2_grpc.PurgatoryServiceStub(other)
            await until_pending(looking, 2)
        further = asyncio.ensure_future(stub.GetStatus(wire.GetStatusRequest(), timeout=PATIENCE_S))
        done, _ = await asyncio.wait([further], timeout=0.2)
        assert not done
        waits[0].cancel()
        assert (await further).version
        waits[1].cancel()


@pytest.mark.parametrize("calls_max", [1, 3])
async def test_unary_waits_are_limited(start_daemon: StartDaemon, calls_max: int) -> None:
    """So many calls of Wait are taken; the next is told the limit and to retry; one that ends makes room."""
    daemon = start_daemon("--limits-unary-waits-max", str(calls_max))
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        waits = [asyncio.ensure_future(stub.Wait(wait_for("held"), timeout=PATIENCE_S)) for _ in range(calls_max)]
        await until_pending(stub, calls_max)
        with pytest.raises(grpc.aio.AioRpcError, match=f"{calls_max} calls of Wait are in flight") as refused:
            await stub.Wait(wait_for("held"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waits.pop().cancel()
        await until_pending(stub, calls_max - 1)
        waits.append(asyncio.ensure_future(stub.Wait(wait_for("held"), timeout=PATIENCE_S)))
        await until_pending(stub, calls_max)
        for wait in waits:
            wait.cancel()


async def until_pending(stub: purgatory_service_pb2_grpc.PurgatoryServiceStub, count: int) -> None:
    """Returns once so many produce waits are pending."""
    async with asyncio.timeout(PATIENCE_S):
        while (await stub.GetStatus(wire.GetStatusRequest())).kinds[0].pending != count:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
