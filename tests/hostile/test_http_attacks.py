"""What a stranger can do to the HTTP site, and through it to gRPC callers: they share files and event loop."""

import asyncio
import resource
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from purgatory_client import AsyncClient, Client

from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess
from tests.service.serving import eventually

FILES = 1_024
HALF_OPEN = 1_000
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
PATIENCE_S = 60.0


@contextmanager
def files_max(count: int) -> Iterator[None]:
    """Processes started within may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def files_open(daemon: DaemonProcess) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def connect(daemon: DaemonProcess) -> socket.socket:
    host, _, port = daemon.http_address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def half_a_request(daemon: DaemonProcess) -> socket.socket:
    """A connection on which the rest of a request never comes; the daemon may have closed it already."""
    connection = connect(daemon)
    try:
        connection.sendall(HALF_A_REQUEST)
    except OSError:
        assert connection.fileno() >= 0
    return connection


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE_S)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def healthz(daemon: DaemonProcess) -> int:
    with urllib.request.urlopen(f"http://{daemon.http_address}/healthz", timeout=PATIENCE_S) as answer:
        return int(answer.status)


def test_half_open_requests_take_no_files_from_grpc(start_daemon: StartDaemon) -> None:
    """A thousand of them, for a daemon that may open 1,024 files: new gRPC callers get in, wait and are answered."""
    with files_max(FILES):
        daemon = start_daemon("--http-read-timeout-ms", "60000")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * FILES + HALF_OPEN)), hard))
    with ExitStack() as connections:
        for _ in range(HALF_OPEN):
            connections.enter_context(half_a_request(daemon))
        for _ in range(3):
            with Client(daemon.address) as client:
                assert client.status().version
                client.advance("orders-3", high_watermark=42)
                assert client.produce({"orders-3": 42}).satisfied
        assert files_open(daemon) < FILES // 2


def test_half_a_request_is_not_waited_for(start_daemon: StartDaemon) -> None:
    """Whether nothing more comes or byte after byte does, the connection is closed, and others are served."""
    daemon = start_daemon("--http-read-timeout-ms", "300", "--http-connections-max", "2")
    with half_a_request(daemon) as silent, connect(daemon) as idle:
        assert is_closed(silent)
        assert is_closed(idle)
    with half_a_request(daemon) as slow:
        slow.settimeout(0.05)
        for _ in range(1_000):
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("the connection stays open")
    assert healthz(daemon) == 200


def test_connections_are_limited(start_daemon: StartDaemon) -> None:
    """A further one is closed at once; when one ends there is room again."""
    daemon = start_daemon("--http-connections-max", "2")
    first, second = half_a_request(daemon), half_a_request(daemon)
    with second:
        with connect(daemon) as further:
            assert is_closed(further)
        first.close()

        async def has_room() -> bool:
            with connect(daemon) as third:
                third.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                try:
                    return third.recv(12) == b"HTTP/1.1 200"
                except ConnectionError:
                    return False

        asyncio.run(eventually(has_room, "there is room"))


def test_an_idle_connection_is_closed_after_a_while(start_daemon: StartDaemon) -> None:
    """One that has had its answer stays for the next request, but not for ever."""
    daemon = start_daemon("--http-keepalive-timeout-ms", "500", "--http-read-timeout-ms", "100")
    with connect(daemon) as kept:
        for _ in range(2):
            kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            kept.settimeout(PATIENCE_S)
            assert _body(kept) == b"ok\n"
        assert is_closed(kept)


async def test_eager_scrapers_get_the_page_that_there_is(start_daemon: StartDaemon) -> None:
    """Four of them ask without a pause, in one version after the other: what they get is computed once a second for
    each of two formats, while honest waits are answered.
    """
    daemon = start_daemon("--http-metrics-interval-ms", "3600000")
    pages: set[bytes] = set()

    def scrape() -> None:
        with connect(daemon) as scraper:
            for version in range(250):
                accept = f"application/openmetrics-text; version=1.0.{version}" if version % 2 else "text/plain"
                scraper.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
                pages.add(_body(scraper))

    async with AsyncClient(daemon.address) as client:
        scrapes = [asyncio.create_task(asyncio.to_thread(scrape)) for _ in range(4)]
        waits = 0
        while not all(scrape.done() for scrape in scrapes):
            waiting = asyncio.create_task(client.produce({"orders-3": waits + 1}, timeout=PATIENCE_S))
            await asyncio.sleep(0)
            await client.advance("orders-3", high_watermark=waits + 1)
            assert (await waiting).satisfied
            waits += 1
        await asyncio.gather(*scrapes)
    assert waits > 10
    assert len(pages) == 2


def _body(connection: socket.socket) -> bytes:
    data = _some(connection)
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += _some(connection)
    return body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    assert data, "the connection was closed"
    return data
