"""Calls without a valid credential, and calls to unknown methods."""

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

from purgatory.service.fair_queue import FairQueue
from purgatory.service.rpc import call_gate
from purgatory.service.rpc.call_gate import PAUSE_S, Strangers
from purgatory.service.rpc.grpc_options import CONNECTIONS_MAX, calls_per_connection_max, server_options
from purgatory.service.settings import LimitsSettings, Settings
from purgatory.service.transport.flood_watch import FloodWatch
from tests.abuse.http2 import RawConnection, message
from tests.kit.daemon import RunDaemon, ServeDaemon
from tests.kit.eventually import eventually
from tests.kit.served_host import refused

CALLS = 20


@contextlib.contextmanager
def connected(count: int) -> Iterator[list[tuple[str, socket.socket]]]:
    """Connections of this process: the peer in gRPC's notation, and the client's side of it."""
    with contextlib.ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as server:
        clients = [opened.enter_context(socket.create_connection(server.getsockname(), 60.0)) for _ in range(count)]
        for _ in clients:
            opened.enter_context(server.accept()[0])
        yield [("ipv4:{}:{}".format(*client.getsockname()), client) for client in clients]


async def test_refusals_are_paced() -> None:
    """The first is at once. All together take at least the pauses between them, whatever their connection."""
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
        open_still.settimeout(0.01)
        with pytest.raises(TimeoutError):
            open_still.recv(1)
        await asyncio.gather(*waiting)
    assert caplog.messages == [
        f"connection from {most} closed: 20 of its calls wait to be refused: no valid credential, or no method"
    ]
    assert 'purgatory_connections_closed_total{calls="refused"} 1.0' in generate_latest(registry).decode()


async def test_call_that_ends_while_it_waits_leaves_its_place() -> None:
    """Places are given back when the client has gone, and nothing of its connection is remembered."""
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
    """With its name, cut; metrics count all such methods as one."""
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
        connections = [RawConnection(daemon.address, "") for _ in range(9)]
        for connection in connections:
            connection.until_read()  # and its settings have arrived
            streams_max = connection.http2.remote_settings.max_concurrent_streams
            for _ in range(1 if connection is connections[-1] else min(streams_max, 11_000)):
                stream = connection.call("GetStatus")
                connection.send(stream, message(0))
                connection.http2.end_stream(stream)
                started += 1
            connection.until_read()
            assert not connection.ended, f"{len(connection.ended)} of {started} calls were reset"
    finally:
        release.set()
        holding.join()
        for connection in connections:
            connection.close()
