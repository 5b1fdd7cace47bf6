"""Attacks that use only connections and streams, before any message is read."""

import asyncio
import contextlib
import socket
import time
import urllib.request

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from purgatory_client import AsyncClient, Client, Outcome
from purgatory_client.errors import Unavailable
from purgatory_client.waits import produce as produce_wait

from purgatory.service.transport.resets import RESETS_MAX, ResetWatch, close_connection
from purgatory.v1 import event_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.raw_bytes import PREFACE, SETTINGS, frame, headers
from tests.abuse.result import memory_mb
from tests.client.until import until_pending
from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess, open_files_max
from tests.service.serving import DaemonChannel, high_watermark, produce

HEADERS, RST_STREAM, END_HEADERS, CANCEL = 1, 3, 4, 8
RESETS = 60_000
GROWTH_MB_MAX = 192
"""If streams were not limited, this number of resets would cost 450 MB."""

PATIENCE_S = 60.0
WAITS = 2_000
FILES = 256
MARK = wire.AdvanceRequest(rows=event_pb2.EventRows(events=[high_watermark("held", 1)]))
HELD = wire.WaitRequest(operation=produce(1, "held", 1, timeout_ms=60_000))


def connect(daemon: DaemonProcess) -> socket.socket:
    host, _, port = daemon.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(PREFACE + SETTINGS)
    return connection


def until_served(client: Client) -> bool:
    """Call until a connection is accepted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return bool(client.status().version)
        except Unavailable:
            assert time.monotonic() < deadline, "there is no room though all connections have ended"
            time.sleep(0.02)


def is_served(connection: socket.socket) -> bool:
    """Whether the daemon sends its own settings instead of closing the connection."""
    try:
        return bool(connection.recv(9))
    except ConnectionError:
        return False


def test_rapid_reset_costs_no_memory(daemon: DaemonProcess) -> None:
    """A caller opens streams and resets each at once (CVE-2023-44487): memory does not grow, and others are served."""
    before_mb = memory_mb(daemon)
    block = headers("/purgatory.v1.PurgatoryService/Wait")
    with connect(daemon) as connection:
        assert is_served(connection)
        with contextlib.suppress(ConnectionError):  # the daemon may and should close the connection
            for first in range(1, 2 * RESETS, 2_000):
                connection.sendall(
                    b"".join(
                        frame(HEADERS, END_HEADERS, stream, block)
                        + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
                        for stream in range(first, first + 2_000, 2)
                    )
                )
        with Client(daemon.address) as client:
            assert client.status().version
        assert memory_mb(daemon) - before_mb < GROWTH_MB_MAX


async def test_a_connection_that_resets_too_many_calls_is_closed() -> None:
    """The limit applies to one second and one connection: below it, and for other connections, nothing happens."""
    now_s = 100.0
    watch = ResetWatch(lambda: now_s)
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = [socket.create_connection(server.getsockname(), PATIENCE_S) for _ in range(2)]
        accepted = [server.accept()[0] for _ in clients]
        peers = ["ipv4:{}:{}".format(*client.getsockname()) for client in clients]
        for _ in range(2):
            for _ in range(RESETS_MAX - 1):
                watch.add(peers[0])
            now_s += 1.0
        watch.add(peers[1])
        assert not close_connection("ipv4:127.0.0.1:1")
        assert not close_connection("unix:")
        for _ in range(RESETS_MAX):
            watch.add(peers[0])
        assert await asyncio.to_thread(accepted[0].recv, 1) == b""
        clients[1].sendall(b"x")
        assert accepted[1].recv(1) == b"x"
        for connection in (*clients, *accepted):
            connection.close()


def test_open_files_limit_connections(start_daemon: StartDaemon) -> None:
    """With few files, the daemon allows fewer connections than configured, and logs that. While all of them are idle,
    probes are answered and a further connection is closed unread. New ones are accepted once the old ones are gone.
    """
    with open_files_max(FILES):
        daemon = start_daemon()
    assert f"grpc.connections_max is reduced from 4096 to {FILES // 2}" in daemon.log
    with contextlib.ExitStack() as opened:
        idle = [opened.enter_context(connect(daemon)) for _ in range(FILES)]
        assert sum(map(is_served, idle)) == FILES // 2
        for _ in range(20):
            with urllib.request.urlopen(f"http://{daemon.http_address}/readyz", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
    with Client(daemon.address) as client:
        assert until_served(client)


def test_connections_are_limited(start_daemon: StartDaemon) -> None:
    """At the limit, a further connection is closed unread. As soon as one ends, a new one is accepted."""
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


@pytest.mark.slow
async def test_thousands_of_waits_share_a_connection(daemon: DaemonProcess) -> None:
    """All waits stay pending, and an event on the same connection is served and ends all of them."""
    async with DaemonChannel(daemon.address) as caller, AsyncClient(daemon.address) as other:
        waits = [asyncio.ensure_future(caller.stub.Wait(HELD)) for _ in range(WAITS)]
        await until_pending(other, WAITS)
        receipt = (await caller.stub.Advance(MARK)).receipt
        assert list(receipt.ended) == [WAITS]
        assert {answer.result.outcome for answer in await asyncio.gather(*waits)} == {result_pb2.OUTCOME_SATISFIED}


@pytest.mark.slow
async def test_the_client_waits_by_thousands_of_single_calls(daemon: DaemonProcess) -> None:
    """`wait_once`, called many times at once on one client, loses no wait."""
    async with AsyncClient(daemon.address) as client, AsyncClient(daemon.address) as other:
        waits = [asyncio.ensure_future(client.wait_once(produce_wait({"held-0": 1}, timeout=60))) for _ in range(WAITS)]
        await until_pending(other, WAITS)
        await client.advance("held-0", high_watermark=1)
        assert all(result.satisfied for result in await asyncio.gather(*waits))


async def test_calls_above_the_limit_of_a_connection_are_refused(start_daemon: StartDaemon) -> None:
    """Of 40 waits, those above the limit get a retry delay, and the event that ends the others is served."""
    daemon = start_daemon("--limits-calls-per-caller-max", "32")
    async with DaemonChannel(daemon.address) as caller, AsyncClient(daemon.address) as other:
        waits = [asyncio.ensure_future(caller.stub.Wait(HELD)) for _ in range(40)]
        await until_pending(other, 30)
        receipt = (await caller.stub.Advance(MARK)).receipt
        assert list(receipt.ended) == [30]
        answers = await asyncio.gather(*waits, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(refused) == 10
    for error in refused:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(error)
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)


async def test_a_client_continues_when_its_connection_ages(start_daemon: StartDaemon) -> None:
    """Over a connection that is cut every 0.3 s, a single wait (with its original timeout) and a tail continue."""
    daemon = start_daemon("--grpc-connection-age-max-ms", "200", "--shutdown-grace-ms", "100")
    async with AsyncClient(daemon.address) as client, AsyncClient(daemon.address) as other:
        tail = client.tail()
        assert not (await anext(tail)).operations
        waiting = asyncio.ensure_future(client.wait_once(produce_wait({"held-0": 1}, timeout=60)))
        expiring = asyncio.ensure_future(client.wait_once(produce_wait({"held-0": 2}, timeout=1.5)))
        openings = 1
        while openings < 3:
            openings += not (await anext(tail)).operations
        assert (await expiring).outcome is Outcome.EXPIRED
        await until_pending(other, 1)
        await other.advance("held-0", high_watermark=1)
        result = await waiting
        assert result.satisfied


@pytest.mark.parametrize("calls_max", [1, 3])
async def test_unary_waits_are_limited(start_daemon: StartDaemon, calls_max: int) -> None:
    """Calls of Wait up to the limit are accepted. The next is refused with the limit and a retry delay, and is accepted
    once one has ended.
    """
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
