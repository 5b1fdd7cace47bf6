"""Attacks that use only connections and streams, calls without a valid credential, and calls to unknown methods."""

import asyncio
import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry
from purgatory_client import AsyncClient, Client, Outcome
from purgatory_client.errors import Unavailable
from purgatory_client.waits import produce as produce_wait

from purgatory.service.fair_queue import FairQueue
from purgatory.service.rpc import call_gate, grpc_options
from purgatory.service.rpc.call_gate import PAUSE_S, Strangers
from purgatory.service.rpc.grpc_options import CONNECTIONS_MAX, calls_per_connection_max, server_options
from purgatory.service.settings import LimitsSettings, Settings
from purgatory.service.transport.flood_watch import RESETS_MAX, FloodWatch, close_connection
from tests.abuse.http2 import ACK, GOAWAY, PING, PREFACE, SETTINGS, Connection, frame
from tests.kit.daemon import DaemonProcess, DaemonThread, RunDaemon, ServeDaemon, StartDaemon, open_files_max
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.served_host import refused

CALLS = 20
FILES = 256


@contextlib.contextmanager
def connected(count: int) -> Iterator[list[tuple[str, socket.socket]]]:
    """Connections of this process: the peer in gRPC's notation, and the client's side of it."""
    with contextlib.ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as server:
        clients = [opened.enter_context(socket.create_connection(server.getsockname(), 60.0)) for _ in range(count)]
        for _ in clients:
            opened.enter_context(server.accept()[0])
        yield [("ipv4:{}:{}".format(*client.getsockname()), client) for client in clients]


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    with contextlib.suppress(TimeoutError):
        return connection.recv(1) != b""
    return True


def connect(daemon: DaemonProcess | DaemonThread) -> socket.socket:
    host, _, port = daemon.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return connection


def is_served(connection: socket.socket) -> bool:
    """Whether the daemon sends its own settings instead of closing the connection."""
    try:
        return bool(connection.recv(9))
    except ConnectionError:
        return False


# Connections.


async def test_connection_that_resets_too_many_calls_is_closed() -> None:
    """The limit applies to one second and one connection: below it, and for other connections, nothing happens."""
    now_s = 100.0
    watch = FloodWatch(lambda: now_s)
    with connected(2) as ((peer, closed), (other, open_still)):
        for _ in range(2):
            for _ in range(RESETS_MAX - 1):
                watch.reset(peer)
            now_s += 1.0
        watch.reset(other)
        assert not close_connection("ipv4:127.0.0.1:1")
        assert not close_connection("unix:")
        for _ in range(RESETS_MAX):
            watch.reset(peer)
        assert await asyncio.to_thread(closed.recv, 1) == b""
        assert is_open(open_still)


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


def test_client_that_pings_too_often_is_disconnected(
    serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings at the allowed interval are answered for as long as they come; after a few that are faster, the
    connection ends.
    """
    monkeypatch.setattr(grpc_options, "PING_INTERVAL_MIN_MS", 50)
    daemon = serve_daemon()
    assert GOAWAY not in kinds_after_pings(daemon, 6, pause_s=0.06)
    assert GOAWAY in kinds_after_pings(daemon, 6, pause_s=0.0)


async def test_client_continues_when_its_connection_ages(run_daemon: RunDaemon) -> None:
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
        assert (await waiting).satisfied


# Calls without a valid credential, and to unknown methods.


async def test_refusals_are_paced_whatever_their_connection() -> None:
    turns = Strangers(FairQueue(), FloodWatch(), CALLS)
    began_s = time.monotonic()
    await asyncio.gather(*(turns.turn(f"ipv4:{number % 3}") for number in range(CALLS)))
    assert time.monotonic() - began_s >= (CALLS - 1) * PAUSE_S


async def test_connection_with_most_waiting_calls_is_closed_when_too_many_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged with its peer and counted; the other connection stays open, and its calls are refused in turn."""
    registry = CollectorRegistry()
    floods = FloodWatch()
    registry.register(floods)
    turns = Strangers(FairQueue(), floods, CALLS)
    with connected(2) as ((most, closed), (other, open_still)):
        waiting = [
            asyncio.create_task(turns.turn(peer)) for peer in (other, *[most] * CALLS)
        ]  # the first one is served
        await asyncio.sleep(0)
        await turns.turn(other)  # one too many: refused now
        assert await asyncio.to_thread(closed.recv, 1) == b""
        await eventually(lambda: bool(caplog.messages), "the closed connection is logged")
        assert is_open(open_still)
        await asyncio.gather(*waiting)
    assert caplog.messages == [
        f"connection from {most} closed: 20 of its calls wait to be refused: no valid credential, or no method"
    ]
    assert 'purgatory_connections_closed_total{calls="refused"} 1.0' in generate_latest(registry).decode()


async def test_call_that_ends_while_it_waits_leaves_its_place() -> None:
    turns = Strangers(FairQueue(), FloodWatch(), 2)
    for _ in range(3):
        waiting = [asyncio.create_task(turns.turn("ipv4:127.0.0.1:1")) for _ in range(3)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not turns.waiting
    await turns.turn("ipv4:127.0.0.1:2")


async def test_flood_is_logged_once_with_its_busiest_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_gate, "FLOOD", 3)
    now_s = 100.0
    turns = Strangers(FairQueue(), FloodWatch(), CALLS, lambda: now_s)
    for _ in range(2):
        for peer in ("ipv4:a", "ipv4:b", "ipv4:a", "ipv4:b", "ipv4:b"):
            await turns.turn(peer)
        now_s += call_gate.LOG_INTERVAL_S
    assert len(caplog.messages) == 2
    assert "over 2 connections; 2 of them from ipv4:a" in caplog.messages[0]


async def test_unknown_method_is_refused_in_turn_and_counted(run_daemon: RunDaemon) -> None:
    """The error has its name, truncated; metrics count all such methods as one."""
    daemon = await run_daemon()
    long = "/purgatory.v1.PurgatoryService/" + "x" * 1_000
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        for method in ("/purgatory.v1.PurgatoryService/Wiat", "/other.Service/Call", long):
            with refused(grpc.StatusCode.UNIMPLEMENTED, f"no such method: {method[:90]}") as error:
                await channel.unary_unary(method)(b"")  # type: ignore[arg-type]
            assert len(error.value.details() or "") < 200
    metrics = await asyncio.to_thread(urllib.request.urlopen, f"http://{daemon.http_address}/metrics", timeout=60.0)
    with metrics:
        assert 'purgatory_calls_ended_total{code="UNIMPLEMENTED",method="unknown"} 3.0' in metrics.read().decode()


@pytest.mark.parametrize(("memory_mb", "streams"), [(16_384, 1_000), (512, 349), (128, 100)])
def test_few_connections_cannot_fill_the_queue_of_all(memory_mb: int, streams: int) -> None:
    """With all their streams in use, 16 connections leave room, unless the budget is tiny."""
    limits = LimitsSettings(memory_bytes_max=memory_mb << 20)
    options = dict(server_options(Settings(limits=limits)))
    assert options["grpc.max_concurrent_streams"] == streams
    assert options["grpc.max_allowed_incoming_connections"] == CONNECTIONS_MAX
    assert calls_per_connection_max(limits) <= streams
    assert calls_per_connection_max(limits) * 16 <= options["grpc.server.max_pending_requests"]


@pytest.mark.slow  # thousands of calls
def test_full_connections_leave_room_for_calls_of_others(serve_daemon: ServeDaemon) -> None:
    """Eight connections have all the calls in flight that they may have, and none of them is started yet: a call on
    another connection is not reset, but waits with them.
    """
    daemon = serve_daemon("--limits-memory-bytes-max", str(512 << 20))
    is_held, release = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        release.wait(60.0)

    holding = threading.Thread(target=daemon.call, args=(hold,))
    holding.start()
    is_held.wait()
    try:
        started = 0
        connections = [Connection(daemon.address, "") for _ in range(9)]
        for connection in connections:
            connection.until_read()
            calls = 1 if connection is connections[-1] else min(connection.streams_max, 11_000)
            started += sum(connection.start(("GetStatus", (b"",))) for _ in range(calls))
            connection.until_read()
            assert connection.in_flight == calls, f"{connection.tally} of {started} calls were reset"
    finally:
        release.set()
        holding.join()
        for connection in connections:
            connection.close()
