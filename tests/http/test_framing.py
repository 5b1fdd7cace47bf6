"""Every entry point of the HTTP server, with every kind of request framing and compression. Uses the real daemon."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.raw_http import Answer, RawConnection, chunked, request
from tests.kit.daemon import DaemonProcess

SERVICE = "/purgatory.v1.PurgatoryService"
WAIT = {"operation": {"operationId": "7", "timeoutMs": 1, "signal": {"keys": [{"key": "framing"}]}}}
KEYS = [operation_pb2.SignalKey(key="framing")]
BAIT = request("GET", "/readyz")


def protobuf() -> bytes:
    operation = operation_pb2.Operation(operation_id=7, timeout_ms=1, signal=operation_pb2.Signal(keys=KEYS))
    return wire.WaitRequest(operation=operation).SerializeToString()


def enveloped(data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(data)) + data


@dataclass(frozen=True)
class Entry:
    """An entry point. `expected` is in the response if, and only if, the request was understood."""

    method: str
    path: str
    expected: bytes
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    encoding_header: str = "content-encoding"
    is_enveloped: bool = False
    is_endless: bool = False


ENTRIES = {
    "unary POST, JSON": Entry(
        "POST",
        f"{SERVICE}/Wait",
        b'"operationId": "7"',
        json.dumps(WAIT).encode(),
        {"content-type": "application/json"},
    ),
    "unary POST, protobuf": Entry(
        "POST", f"{SERVICE}/Wait", b"framing", protobuf(), {"content-type": "application/proto"}
    ),
    "unary GET": Entry(
        "GET",
        f"{SERVICE}/GetPartition?connect=v1&encoding=json&message="
        + quote('{"topicPartition": {"topic": "framing", "partition": 3}}'),
        b"framing",
    ),
    "Connect stream": Entry(
        "POST",
        f"{SERVICE}/StreamResults",
        b"",
        json.dumps({"sessionId": "framing"}).encode(),
        {"content-type": "application/connect+json"},
        "connect-content-encoding",
        is_enveloped=True,
        is_endless=True,
    ),
    "gRPC-Web": Entry(
        "POST",
        f"{SERVICE}/Wait",
        b"framing",
        protobuf(),
        {"content-type": "application/grpc-web+proto"},
        "grpc-encoding",
        is_enveloped=True,
    ),
    "server-sent events": Entry("GET", "/v1/watch?topic_prefix=framing", b"event: partitions", is_endless=True),
    "page": Entry("GET", "/", b"<html"),
    "metrics": Entry("GET", "/metrics", b"purgatory_"),
    "probe": Entry("GET", "/healthz", b"ok\n"),
}
WITH_BODY = [name for name, entry in ENTRIES.items() if entry.body is not None]
OFFERS = {
    "h2c": {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQCAAAAAAIAAAAA"},
    "websocket": {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    },
}
FRAMINGS = ["length", "chunked", "split", "upgrade to h2c", "upgrade to websocket", "pipelined", "HTTP/1.0"]


def packets(entry: Entry, framing: str, encoding: str) -> list[bytes]:
    headers, body = dict(entry.headers), entry.body
    if body is not None and encoding == "gzip":
        body, headers[entry.encoding_header] = gzip.compress(body), "gzip"
    elif body is not None and encoding == "unknown":
        headers[entry.encoding_header] = "zoo"
    if body is not None and entry.is_enveloped:
        body = enveloped(body, flags=encoding == "gzip")
    headers |= OFFERS.get(framing.removeprefix("upgrade to "), {})
    version = "1.0" if framing == "HTTP/1.0" else "1.1"
    if body is not None and framing in ("chunked", "upgrade to websocket"):
        head = request(entry.method, entry.path, {**headers, "transfer-encoding": "chunked"}, b"", version)
        return [head, chunked(body, 5)]
    sent = request(entry.method, entry.path, headers, body, version)
    if framing in ("split", "upgrade to h2c"):
        middle = len(sent) - len(body or b"") // 2 - 1
        return [sent[:20], sent[20:middle], sent[middle:]]
    return [sent + BAIT] if framing == "pipelined" else [sent]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize(
    ("name", "encoding"),
    [(name, "identity") for name in ENTRIES] + [(name, kind) for name in WITH_BODY for kind in ("gzip", "unknown")],
)
def test_every_framing(shared_daemon: DaemonProcess, name: str, encoding: str, framing: str) -> None:
    """The request is served with its body, whatever upgrade is offered, and an unknown compression is refused. A
    pipelined request gets its own response after the first one. HTTP/1.0 never gets chunks.
    """
    entry = ENTRIES[name]
    if entry.is_endless:
        with RawConnection(shared_daemon.http_address) as preparing:
            batch = {"rows": {"operations": [WAIT["operation"]]}}
            body = json.dumps({"sessionId": "framing", "batch": batch}).encode()
            preparing.send(request("POST", f"{SERVICE}/Register", {"content-type": "application/json"}, body))
            assert preparing.answer().status == 200
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(*packets(entry, framing, encoding))
        answer = connection.answer(entry.method, only_first_bytes=entry.is_endless)
        if encoding == "unknown":
            assert b"zoo" in answer.body
        else:
            assert answer.status == (404 if name == "unary GET" else 200)
            assert entry.expected in answer.body
        if framing == "HTTP/1.0":
            assert "transfer-encoding" not in answer.headers
            assert entry.is_endless or connection.is_closed()
        if framing == "pipelined" and not entry.is_endless:
            assert connection.answer() == Answer(200, connection_headers(), b"ready\n")


def connection_headers() -> dict[str, str]:
    return {"content-length": "6", "content-type": "text/plain; charset=utf-8"}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_body_is_never_a_request(shared_daemon: DaemonProcess, offer: str, is_chunked: bool, is_split: bool) -> None:
    """A body that looks like a request is answered as one invalid JSON document, and by nothing else."""
    headers = {"content-type": "application/json", **OFFERS[offer]}
    body = BAIT
    if is_chunked:
        headers["transfer-encoding"], body = "chunked", chunked(BAIT, len(BAIT))
    head = request("POST", f"{SERVICE}/Wait", headers | {"connection": "close, " + headers["connection"]}, body)
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(*([head[: -len(body)], body] if is_split else [head]))
        answer = connection.answer("POST")
        assert answer.status == 400
        assert json.loads(answer.body)["code"] == "invalid_argument"
        assert connection.is_closed()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\0" * 100 + b"\r\n\r\n", 400),
        (request("GET", "/healthz", {"host": "a\r\nhost: b"}), 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1_000_000, 431),
        (request("POST", f"{SERVICE}/Wait", {"transfer-encoding": "chunked"}, b"zz\r\n"), 400),
        (request("POST", f"{SERVICE}/Wait", {"content-length": "-1"}, b""), 400),
        (request("POST", f"{SERVICE}/Wait", {"transfer-encoding": "identity"}, b""), 501),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ],
    ids=["no request", "HTTP/2", "NUL", "two hosts", "no host", "long header", "bad chunk", "bad length", "bad coding",
         "CONNECT"],
)  # fmt: skip
def test_what_is_not_http(shared_daemon: DaemonProcess, sent: bytes, status: int) -> None:
    """The response is an error in JSON, and the connection is closed, also if the client sends more than is read."""
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(sent)
        answer = connection.answer()
        assert answer.status == status
        if status != 404:
            assert json.loads(answer.body)["code"] == "invalid_argument"
            assert connection.is_closed()


def framed(first: str, *lines: str, body: bytes = b"{}", end: str = "\r\n") -> bytes:
    """A request with exactly these lines, and another one behind it."""
    head = end.join([first, "Host: localhost", "Content-Type: application/json", *lines, "", ""]).encode()
    return head + body + BAIT


STATUS = f"POST {SERVICE}/GetStatus HTTP/1.1"
AMBIGUOUS = {
    "length and chunks": framed(STATUS, "Content-Length: 12", "Transfer-Encoding: chunked", body=chunked(b"{}", 2)),
    "chunks and length": framed(STATUS, "Transfer-Encoding: chunked", "content-length: 2", body=chunked(b"{}", 2)),
    "a list of lengths": framed(STATUS, "Content-Length: 2, 2"),
    "two equal lengths": framed(STATUS, "Content-Length: 2", "Content-Length: 2"),
    "a signed length": framed(STATUS, "Content-Length: +2"),
    "digits that are not ASCII": framed(STATUS, "Content-Length: \u0662"),
    "a length of 5,000 digits": framed(STATUS, "Content-Length: " + "1" * 5_000),
    "a folded header": framed(STATUS, "X-Note: a", " b", "Content-Length: 2"),
    "a folded length": framed(STATUS, "Content-Length:", "\t2"),
    "a folded first line": framed(STATUS + "\r\n ", "Content-Length: 2"),
    "bare LF": framed(STATUS, "Content-Length: 2", end="\n"),
    "one bare LF": framed(STATUS, "X-Note: a\nContent-Length: 2", "Content-Length: 2"),
    "bare CR": framed(STATUS, "X-Note: a\rContent-Length: 9", "Content-Length: 2"),
    "LF ends the header": framed(STATUS, "Content-Length: 2").replace(b"\r\n\r\n", b"\r\n\n", 1),
    "NUL": framed(STATUS, "X-Note: a\0", "Content-Length: 2"),
    "a space before the colon": framed(STATUS, "Content-Length : 2"),
    "HTTP/1.0 in chunks": framed(STATUS.replace("1.1", "1.0"), "Transfer-Encoding: chunked", body=chunked(b"{}", 2)),
    "LF ends the trailers": framed(STATUS, "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\nX-Note: a\n\n"),
    "LF before the end of trailers": framed(
        STATUS, "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\nX-Note: a\n\r\n"
    ),
    "LF in place of trailers": framed(STATUS, "Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\n"),
    "bare LF in a chunk's line": framed(STATUS, "Transfer-Encoding: chunked", body=b"2;a\nb\r\n{}\r\n0\r\n\r\n"),
}
"""Requests that a proxy in front of the daemon may see end elsewhere."""


@pytest.mark.parametrize("name", AMBIGUOUS)
@pytest.mark.parametrize("is_split", [False, True])
def test_request_without_a_certain_end_is_refused(shared_daemon: DaemonProcess, name: str, is_split: bool) -> None:
    """With 400, and the connection is closed: what is behind it is not answered."""
    sent = AMBIGUOUS[name]
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(*([sent[:70], sent[70:]] if is_split else [sent]))
        answer = connection.answer("POST")
        assert (answer.status, json.loads(answer.body)["code"]) == (400, "invalid_argument")
        assert connection.is_closed()


def test_expect_continue(shared_daemon: DaemonProcess) -> None:
    """A client that waits for 100 Continue before its body gets it, and then its response."""
    entry = ENTRIES["unary POST, JSON"]
    assert entry.body is not None
    sent = request("POST", entry.path, {**entry.headers, "expect": "100-continue"}, entry.body)
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(sent[: -len(entry.body)])
        assert connection.socket.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(entry.body)
        assert entry.expected in connection.answer("POST").body


def test_head(shared_daemon: DaemonProcess) -> None:
    """It returns the headers of GET without a body; the connection is kept."""
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(request("HEAD", "/healthz"))
        assert connection.answer("HEAD") == Answer(
            200, {"content-length": "3", "content-type": "text/plain; charset=utf-8"}, b""
        )
        connection.send(BAIT)
        assert connection.answer().body == b"ready\n"
