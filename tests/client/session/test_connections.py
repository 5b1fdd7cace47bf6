"""Connections of a client: addresses, sessions that others take, pauses, and daemons of which one serves at a time.

Lost connections and restarted daemons are subjects of tests/conformance, tests/histories and tests/journal.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from purgatory_client import AsyncClient, Client, ClosedSession, Outcome, batches, errors
from purgatory_client.session.addresses import PING_MS, check_address, target_of
from purgatory_client.session.backoff import Backoff
from purgatory_client.session.channel import OPTIONS, channel_options

from examples.free_ports import free_port
from purgatory.cli.exit_codes import Exit
from purgatory.service.rpc.grpc_options import PING_INTERVAL_MIN_MS
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.cli.test_commands import purgatory
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually, until_pending
from tests.kit.proxy import NOBODY, FaultyProxy

pytestmark = pytest.mark.sockets

LONG = 300.0
SERVICE = wire.DESCRIPTOR.services_by_name["PurgatoryService"].full_name
REFUSAL = "standby; a leads"
WRONG = [
    "", "127.0.0.1", "localhost", "127.0.0.1:WRONG", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", ":7440",
    "http://127.0.0.1:7441", "https://daemon:7440", "127.0.0.1:7440/", "::1:7440", "a host:7440",
    "a:7440,", "a:7440, b:7440", "a:7440,b", "a:\u0667\u0664", "a:7440,dns:///b:7440",
]  # fmt: skip
RIGHT = [
    "127.0.0.1:1", "daemon.example.org:65535", "[::1]:7440", "unix:/run/p", "dns:///daemon:7440", "a:1,[::1]:2",
]  # fmt: skip


@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_can_never_be_connected_to(address: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="expected the daemon's gRPC address"):
        AsyncClient(address)
    with pytest.raises(errors.InvalidRequest), Client(address):
        pass
    answer = purgatory("status", "--address", address)
    assert (answer.returncode, answer.stdout) == (Exit.USAGE, "")
    assert "expected the daemon's gRPC address as host:port" in answer.stderr


@pytest.mark.parametrize("address", RIGHT)
def test_a_target_that_grpc_accepts_is_an_address(address: str) -> None:
    check_address(address)


def test_the_http_port_is_named_at_once(shared_daemon: DaemonProcess) -> None:
    """A client that never gives up fails too: this port will not answer gRPC later."""
    with Client(shared_daemon.http_address, give_up_after=None) as client:
        with pytest.raises(errors.Unavailable, match="answers HTTP/1 and not gRPC"):
            client.produce({"orders-3": 42}, timeout=60)
        with pytest.raises(errors.Unavailable, match="answers HTTP/1 and not gRPC"):
            client.status()


def test_one_address_has_the_usual_options_and_several_are_one_target() -> None:
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


def test_pauses_double_up_to_the_cap_and_are_spread_over_the_range() -> None:
    """Full jitter: clients that lost the same daemon do not reconnect at the same time."""

    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    backoff = Backoff(0.1, 0.5, Highest())
    assert [backoff.next_delay() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next_delay() == 0.1


# Sessions that others take, and no daemon at all.


async def test_closed_session_fails_its_waits_and_the_next_wait_opens_another(shared_daemon: DaemonProcess) -> None:
    async with AsyncClient(shared_daemon.address) as client, AsyncClient(shared_daemon.address) as operator:
        waiting = asyncio.create_task(client.produce({"orders-3": 1_000}, timeout=LONG))
        before = client.session_id
        await until_pending(operator, 1)
        assert await operator.close_session(before) == ClosedSession(cancelled=1, results_dropped=0)
        with pytest.raises(errors.SessionClosed, match=before):
            await waiting
        assert (await client.produce({"orders-3": 1_000}, timeout=0)).outcome is Outcome.EXPIRED
        assert client.session_id != before
        with pytest.raises(errors.NotFound):
            await operator.close_session(before)


async def test_a_stranger_in_the_session_is_noticed(shared_daemon: DaemonProcess) -> None:
    async with AsyncClient(shared_daemon.address) as client, AsyncClient(shared_daemon.address) as stranger:
        assert (await client.produce({"strange-3": 42}, timeout=0)).outcome is Outcome.EXPIRED
        foreign = batches.produce(["elsewhere-0"], offsets=[1], indexes=[0])
        assert (await stranger.register(client.session_id, 1_000, foreign)).accepted == 1
        with pytest.raises(errors.OperationIdInUse, match=client.session_id):
            await client.produce({"strange-3": 42}, timeout=LONG)
        waiting = asyncio.create_task(client.produce({"strange-3": 42}, timeout=LONG))
        await until_pending(client, 2)
        assert (await stranger.register(client.session_id, 2_000, foreign)).accepted == 1
        answer = await client.produce_many(["strange-3"], offsets=[42, 43], indexes=[0, 0])
        assert answer.outcomes == [Outcome.REFUSED, Outcome.REFUSED]
        await client.advance("strange-3", high_watermark=42)
        assert (await waiting).satisfied
        before = client.session_id
        assert (await stranger.register(before, 2**61 - 1, foreign)).accepted == 1  # no id is left
        with pytest.raises(errors.OperationIdInUse):
            await client.produce({"strange-3": 43}, timeout=LONG)
        await eventually(lambda: client.session_id != before, "another session")
        assert (await client.produce({"strange-3": 43}, timeout=0)).outcome is Outcome.EXPIRED


async def test_no_daemon_is_given_up_with_the_longest_timeout() -> None:
    """Before the first connection. A timer may be early by the clock's resolution."""
    async with FaultyProxy(NOBODY) as proxy, AsyncClient(proxy.address, give_up_after=LONG) as client:
        first_session, began_s = client.session_id, asyncio.get_running_loop().time()
        ended = await asyncio.gather(
            client.produce({"orders-3": 42}, timeout=0.1),
            client.produce_many(["orders-3"], offsets=[1, 2], timeouts_ms=[5, 500]),
            return_exceptions=True,
        )
        assert [type(one) for one in ended] == [errors.Unavailable, errors.Unavailable]
        assert asyncio.get_running_loop().time() - began_s > 0.5 - 0.001
        assert client.pending == 0
        assert client.session_id != first_session
        with pytest.raises(errors.Unavailable):
            await client.advance("orders-3", high_watermark=1)


# Daemons of which one serves at a time.


class _RefuseAll(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_stream_rpc_method_handler(_refuse) if details.method.startswith(f"/{SERVICE}/") else None


async def _refuse(_requests: object, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, REFUSAL)


@asynccontextmanager
async def standby() -> AsyncIterator[str]:
    """The address of a daemon that stands by: it reports NOT_SERVING, and refuses all other calls. Nothing listens
    there afterwards.
    """
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 500)])
    port = server.add_insecure_port("127.0.0.1:0")
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    server.add_generic_rpc_handlers((_RefuseAll(),))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


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
