"""Attacks that use only connections and streams, before any message is read."""

import asyncio
import contextlib
import socket
import time
import urllib.request

import pytest
from purgatory_client import AsyncClient, Client, Outcome
from purgatory_client.errors import Unavailable
from purgatory_client.waits import produce as produce_wait

from purgatory.service.rpc import grpc_options
from purgatory.service.transport.flood_watch import RESETS_MAX, FloodWatch, close_connection
from tests.abuse.open_loop import ACK, GOAWAY, PING, frame
from tests.abuse.requests.raw_bytes import PREFACE, SETTINGS
from tests.kit.daemon import DaemonProcess, DaemonThread, RunDaemon, ServeDaemon, StartDaemon, open_files_max
from tests.kit.eventually import PATIENCE_S, until_pending, wait_until

WAITS = 900
FILES = 256


def connect(daemon: DaemonProcess | DaemonThread) -> socket.socket:
    host, _, port = daemon.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(PREFACE + SETTINGS)
    return connection


def is_served(connection: socket.socket) -> bool:
    """Whether the daemon sends its own settings instead of closing the connection."""
    try:
        return bool(connection.recv(9))
    except ConnectionError:
        return False


async def test_a_connection_that_resets_too_many_calls_is_closed() -> None:
    """The limit applies to one second and one connection: below it, and for other connections, nothing happens."""
    now_s = 100.0
    watch = FloodWatch(lambda: now_s)
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = [socket.create_connection(server.getsockname(), PATIENCE_S) for _ in range(2)]
        accepted = [server.accept()[0] for _ in clients]
        peers = ["ipv4:{}:{}".format(*client.getsockname()) for client in clients]
        for _ in range(2):
            for _ in range(RESETS_MAX - 1):
                watch.reset(peers[0])
            now_s += 1.0
        watch.reset(peers[1])
        assert not close_connection("ipv4:127.0.0.1:1")
        assert not close_connection("unix:")
        for _ in range(RESETS_MAX):
            watch.reset(peers[0])
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
    assert f"gRPC connections are reduced from 4096 to {FILES // 2}" in daemon.log
    assert "HTTP connections are reduced from 12288 to 112: the process may open only 256 files" in daemon.log
    with contextlib.ExitStack() as opened:
        idle = [opened.enter_context(connect(daemon)) for _ in range(FILES)]
        assert sum(map(is_served, idle)) == FILES // 2
        for _ in range(20):
            with urllib.request.urlopen(f"http://{daemon.http_address}/readyz", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
    with Client(daemon.address) as client:
        assert wait_until(client.status, "there is room for a connection", but=Unavailable).version


def kinds_after_pings(daemon: DaemonThread, count: int, pause_s: float) -> set[int]:
    """The kinds of frames that answer pings, each sent a pause after the answer to the one before."""
    kinds: set[int] = set()
    with connect(daemon) as connection, connection.makefile("rb") as received:
        for _ in range(count):
            with contextlib.suppress(ConnectionError):
                connection.sendall(frame(PING, 0, 0, bytes(8)))
            while header := received.read(9):
                kinds.add(header[3])
                received.read(int.from_bytes(header[:3], "big"))
                if (header[3], header[4]) == (PING, ACK):
                    break
            time.sleep(pause_s)
    return kinds


def test_a_client_that_pings_too_often_is_disconnected(
    serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings at the allowed interval are answered for as long as they come; after a few that are faster, the
    connection ends.
    """
    monkeypatch.setattr(grpc_options, "PING_INTERVAL_MIN_MS", 50)
    daemon = serve_daemon()
    assert GOAWAY not in kinds_after_pings(daemon, 6, pause_s=0.06)
    assert GOAWAY in kinds_after_pings(daemon, 6, pause_s=0.0)


@pytest.mark.slow
async def test_the_client_waits_by_thousands_of_single_calls(shared_daemon: DaemonProcess) -> None:
    """`wait_once`, called many times at once on one client, loses no wait."""
    async with AsyncClient(shared_daemon.address) as client, AsyncClient(shared_daemon.address) as other:
        waits = [asyncio.ensure_future(client.wait_once(produce_wait({"held-0": 1}, timeout=60))) for _ in range(WAITS)]
        await until_pending(other, WAITS)
        await client.advance("held-0", high_watermark=1)
        assert all(result.satisfied for result in await asyncio.gather(*waits))


async def test_a_client_continues_when_its_connection_ages(run_daemon: RunDaemon) -> None:
    """Over a connection that is cut every 0.3 s, a single wait (with its original timeout) and a tail continue."""
    daemon = await run_daemon("--grpc-connection-age-max-ms", "200", "--shutdown-grace-ms", "100")
    async with AsyncClient(daemon.address) as client, AsyncClient(daemon.address) as other:
        tail = client.tail()
        assert not (await anext(tail)).operations
        waiting = asyncio.ensure_future(client.wait_once(produce_wait({"held-0": 1}, timeout=60)))
        expiring = asyncio.ensure_future(client.wait_once(produce_wait({"held-0": 2}, timeout=0.8)))
        openings = 1
        while openings < 3:
            openings += not (await anext(tail)).operations
        assert (await expiring).outcome is Outcome.EXPIRED
        await until_pending(other, 1)
        await other.advance("held-0", high_watermark=1)
        result = await waiting
        assert result.satisfied
