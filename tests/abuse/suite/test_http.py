"""Attacks on the HTTP site, which can also affect gRPC callers: they share files and the event loop."""

import gzip
import json
import resource
import select
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import unquote

import pytest
from purgatory_client import Client

from purgatory.service.http import http_connection
from tests.abuse.result import memory_mb, open_files
from tests.http.http_serving import Answer, RawConnection, chunked, request
from tests.kit.daemon import DaemonProcess, DaemonThread, ServeDaemon, StartDaemon
from tests.kit.eventually import wait_until

HALF_OPEN = 400
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
BUDGET_BYTES = 128 * 1024 * 1024
SERVICE = "/purgatory.v1.PurgatoryService"
STATUS = f"{SERVICE}/GetStatus"
WATCH = request("GET", "/v1/watch")


def answer_of(daemon: DaemonProcess | DaemonThread, path: str) -> Answer:
    """The answer to a request on a new connection."""
    with RawConnection(daemon.http_address) as connection:
        connection.send(request("GET", path))
        return connection.answer()


def test_half_a_request_is_not_waited_for(serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets status 408, even if single bytes keep arriving; the connection is closed, and others are served."""
    monkeypatch.setattr(http_connection, "READ_TIMEOUT_S", 0.1)
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 2)
    daemon = serve_daemon()
    with RawConnection(daemon.http_address) as silent, RawConnection(daemon.http_address) as idle:
        silent.send(HALF_A_REQUEST)
        assert silent.answer().status == 408
        assert silent.is_closed()
        assert idle.is_closed()
    with RawConnection(daemon.http_address) as slow:
        slow.send(HALF_A_REQUEST)
        while not select.select([slow.socket], [], [], 0.02)[0]:
            slow.send(b"x")
        assert slow.answer().status == 408
    assert answer_of(daemon, "/healthz").status == 200


def test_connections_are_limited(serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all connections are in use, a further request gets status 503 and advice, and probes are served. When one
    ends, a new one is accepted.
    """
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 2)
    daemon = serve_daemon()
    with ExitStack() as connections:
        first, second = (connections.enter_context(RawConnection(daemon.http_address)) for _ in range(2))
        for held in (first, second):
            held.send(WATCH)
            assert held.answer(only_first_bytes=True).status == 200
        for _ in range(100):
            answer = answer_of(daemon, "/metrics")
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert json.loads(answer.body)["code"] == "unavailable"
        with RawConnection(daemon.http_address) as further:
            further.send(request("GET", "/metrics"))
            assert further.answer().status == 503
            assert further.is_closed()
        with RawConnection(daemon.http_address) as probe:
            for path in ("/healthz", "/readyz", "/healthz"):
                probe.send(request("GET", path))
                assert probe.answer().status == 200
        first.socket.close()

        wait_until(lambda: answer_of(daemon, "/metrics").status == 200, "there is room")


def test_probes_are_served_while_hundreds_of_connections_never_send_a_request(
    serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit, the connection that was accepted first is closed to make room for a probe."""
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 256)
    monkeypatch.setattr(http_connection, "READ_TIMEOUT_S", 60.0)
    daemon = serve_daemon()
    with ExitStack() as connections:
        for _ in range(HALF_OPEN):
            connection = connections.enter_context(RawConnection(daemon.http_address))
            with suppress(OSError):  # the daemon may have closed it already
                connection.send(HALF_A_REQUEST)
        for path in ("/readyz", "/healthz") * 5:
            assert answer_of(daemon, path).status == 200


def test_the_first_connection_may_come_while_there_are_no_files(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    pid = daemon.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files(daemon), hard))
    with RawConnection(daemon.http_address) as first:
        first.send(request("GET", "/readyz"))
        assert not select.select([first.socket], [], [], 0.3)[0]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert first.answer().body == b"ready\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A process whose memory is limited and measured."""
    flags = ["--limits-memory-bytes-max", str(BUDGET_BYTES)]
    patient = {"purgatory.service.http.http_connection.READ_TIMEOUT_S": 60.0}
    with DaemonProcess(tmp_path_factory.mktemp("small"), flags, constants=patient) as daemon:
        yield daemon


def test_unread_answers_to_pipelined_requests_take_no_memory(small: DaemonProcess) -> None:
    """Two connections send requests until no more are accepted, read nothing, and close. Few of the requests have been
    answered, and new callers are served.
    """
    assert answer_of(small, "/healthz").status == 200
    before_mb = memory_mb(small)
    pipelined = request("GET", "/healthz") * 10_000
    with ExitStack() as connections:
        for _ in range(2):
            sender = connections.enter_context(RawConnection(small.http_address)).socket
            sender.setblocking(False)
            while select.select([], [sender], [], 0.2)[1]:
                sender.send(pipelined)
        assert answer_of(small, "/healthz").status == 200
        assert memory_mb(small) - before_mb < 16
    with Client(small.address) as client:
        client.advance("orders-3", high_watermark=42)
        assert client.produce({"orders-3": 42}).satisfied


def test_unfinished_bodies_have_a_share_of_the_memory(small: DaemonProcess) -> None:
    """Unfinished bodies of 900 kB, in total four times the allowed memory: the largest get status 503, the daemon's
    memory does not grow, and small requests are still served.
    """
    before_mb, status = memory_mb(small), request("POST", STATUS, {"content-type": "application/json"}, b"{}")
    head = request("POST", f"{SERVICE}/Register", {"content-type": "application/proto", "content-length": "1000000"})
    with ExitStack() as connections:
        bodies = [connections.enter_context(RawConnection(small.http_address)) for _ in range(4 * BUDGET_BYTES >> 23)]
        for number, body in enumerate(bodies):
            body.send(head + b"x" * 900_000)
            if number % 16 == 0:
                with RawConnection(small.http_address) as honest:
                    honest.send(status)
                    assert honest.answer("POST").status == 200
        assert memory_mb(small) - before_mb < (BUDGET_BYTES >> 20) // 8 + 48
        sockets = {body.socket: body for body in bodies}
        half = len(bodies) // 2
        refused = wait_until(lambda: select.select(sockets, [], [], 0)[0][half:], "most bodies are refused")
        answer = sockets[refused[0]].answer("POST")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("kind", ["proto", "json", "connect+json", "grpc-web+proto"])
@pytest.mark.parametrize(
    ("deflated", "message"),
    [
        (gzip.compress(b"") * 40_000, "bytes after the first gzip member"),
        (gzip.compress(bytes(100_000_000)), "larger than"),
        (gzip.compress(b"{}")[:-4], "only the beginning of a gzip member"),
        (b"\x1f\x8b\x08 no gzip", "not gzip"),
    ],
    ids=["many members", "bomb", "cut off", "something else"],
)
def test_hostile_gzip(shared_daemon: DaemonProcess, kind: str, deflated: bytes, message: str) -> None:
    """It is refused with a reason, after at most the size of one message has been decompressed."""
    encoding = {"connect+json": "connect-content-encoding", "grpc-web+proto": "grpc-encoding"}
    headers = {"content-type": f"application/{kind}", encoding.get(kind, "content-encoding"): "gzip"}
    body = deflated if kind not in encoding else struct.pack(">BI", 1, len(deflated)) + deflated
    method = "Wait" if kind != "connect+json" else "StreamResults"
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(request("POST", f"{SERVICE}/{method}", headers, body))
        answer = connection.answer("POST")
    assert message in unquote(answer.body.decode("latin-1"))


def test_a_body_of_tiny_chunks_does_not_hold_the_loop(shared_daemon: DaemonProcess) -> None:
    body = chunked(b"{" + b" " * 50_000 + b"}", 1)
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(request("POST", STATUS, headers, body))
        assert connection.answer("POST").status == 200


def test_an_idle_connection_is_closed_after_a_while(serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a response it stays open for the next request for longer than a request may take, but not forever."""
    monkeypatch.setattr(http_connection, "KEEPALIVE_TIMEOUT_S", 1.5)
    monkeypatch.setattr(http_connection, "READ_TIMEOUT_S", 0.05)
    daemon = serve_daemon()
    with RawConnection(daemon.http_address) as kept:
        for _ in range(2):
            kept.send(request("GET", "/healthz"))
            assert kept.answer().body == b"ok\n"
            assert not select.select([kept.socket], [], [], 0.2)[0]
        assert kept.is_closed()
