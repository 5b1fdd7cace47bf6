"""Every entry point of the HTTP server, with every kind of request framing and compression; and requests whose
refusal once took quadratic time or more: each held the event loop for minutes. Uses the real daemon.
"""

import contextlib
import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

import h11
import pytest
from google.protobuf.json_format import ParseDict

from purgatory.service.sources.source_table import StaleIndex, Unseen
from purgatory.service.transport.linear_h11 import make_h11_linear
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.http.http_serving import Answer, RawConnection, chunked, enveloped, request
from tests.kit.daemon import DaemonProcess
from tests.kit.recorded import assert_recorded, cases_of

SERVICE = "/purgatory.v1.PurgatoryService"
WAIT = {"operation": {"operationId": "7", "timeoutMs": 1, "signal": {"keys": [{"key": "framing"}]}}}
PROTOBUF = ParseDict(WAIT, wire.WaitRequest()).SerializeToString()
BAIT = request("GET", "/readyz")
PLAIN = {"content-type": "text/plain; charset=utf-8"}


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
        "POST", f"{SERVICE}/Wait", b"framing", PROTOBUF, {"content-type": "application/proto"}
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
        PROTOBUF,
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
            assert connection.answer() == Answer(200, {"content-length": "6", **PLAIN}, b"ready\n")


def framed(first: str, *lines: str, body: bytes = b"{}", end: str = "\r\n") -> bytes:
    """A request with exactly these lines, and another one behind it."""
    head = end.join([first, "Host: localhost", "Content-Type: application/json", *lines, "", ""]).encode()
    return head + body + BAIT


STATUS = f"POST {SERVICE}/GetStatus HTTP/1.1"
FRAMING = Path(__file__).with_name("framing.txt")


def test_request_without_a_certain_end_is_refused(shared_daemon: DaemonProcess) -> None:
    """As in framing.txt: with an error in JSON, and the connection is closed, so what is behind it is not answered."""
    names = {"request": request, "framed": framed, "chunked": chunked, "STATUS": STATUS, "WAIT": f"{SERVICE}/Wait"}

    def answer_to(*packets: bytes) -> str:
        with RawConnection(shared_daemon.http_address) as connection:
            connection.send(*packets)
            answer = connection.answer("POST")
            how = f"{answer.status} {json.loads(answer.body)['code']}"
            return how if answer.status == 404 else f"{how}, {'closed' if connection.is_closed() else 'not closed'}"

    def answers_to(case: str) -> str:
        sent: bytes = eval(case, names)
        packets = [(sent,), (sent[:70], sent[70:])] if case.startswith("framed") else [(sent,)]
        return "\n".join(sorted({answer_to(*one) for one in packets}))

    assert_recorded(FRAMING, map(answers_to, cases_of(FRAMING)))


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
        assert connection.answer("HEAD") == Answer(200, {"content-length": "3", **PLAIN}, b"")
        connection.send(BAIT)
        assert connection.answer().body == b"ready\n"


IMITATED = 'has no field named "" at "a.".\n Available: "['
"""The beginning of protobuf's own error, again and again: a search for its parts tries all combinations."""
EVIL = json.dumps({"operation": {"timeoutMs": IMITATED * 800}}).encode()
IN_URL = quote(json.dumps({"topicPartition": {"partition": IMITATED * 400}}))
SPACES = b" " * 64_000
TO_WAIT = f"{SERVICE}/Wait"
CHUNKED = {"content-type": "application/json", "transfer-encoding": "chunked"}
REQUESTS = {
    "JSON": (request("POST", TO_WAIT, {"content-type": "application/json"}, EVIL), "has no field named"),
    "JSON in chunks": (request("POST", TO_WAIT, CHUNKED, chunked(EVIL, 1_000)), "has no field named"),
    "gRPC-Web": (
        request("POST", TO_WAIT, {"content-type": "application/grpc-web+json"}, enveloped(EVIL)),
        "has no field named",
    ),
    "JSON in a URL": (
        request("GET", f"{SERVICE}/GetPartition?connect=v1&encoding=json&message={IN_URL}"),
        "has no field named",
    ),
    "a view of the page": (request("GET", f"/page/repeat/GetPartition?request={IN_URL}"), "has no field named"),
    "a long field": (
        request("POST", TO_WAIT, {"content-type": "application/json"}, b'{"' + b"operation" * 50_000 + b'": 1}'),
        "unknown field; did you mean 'operation'?",
    ),
    "topics of a group": (
        request("GET", f"/v1/ready?name=n&group={'g' * 30_000}&topics={'t,' * 15_000}"),
        "has 30000 characters; at most 249",
    ),
    "a header": (request("GET", "/healthz").rstrip() + b"\r\nX:" + SPACES + b"\x0b\r\n\r\n", "control characters"),
    "an extension of a chunk": (request("POST", TO_WAIT, CHUNKED, b"5;" + SPACES + b"\nx\r\n"), ""),
    "a trailer": (request("POST", TO_WAIT, CHUNKED, b"0\r\nX:" + SPACES + b"\x0b\r\n\r\n"), ""),
}
"""Each request, and a part of its answer."""


@pytest.mark.parametrize("name", REQUESTS)
def test_request_made_to_be_slow_is_refused_at_once(shared_daemon: DaemonProcess, name: str) -> None:
    """Several at once, so that the daemon would need longer than the client's patience; the answer is short."""
    sent, said = REQUESTS[name]
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(RawConnection(shared_daemon.http_address)) for _ in range(5)]
        for connection in connections:
            connection.socket.sendall(sent)
        for connection in connections:
            answer = connection.answer(sent.partition(b" ")[0].decode())
            assert said in unquote(answer.body.decode(errors="replace"))
            assert len(answer.body) < 3_000


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"X:a", b"a"), (b"X: \t a  b\t c \t", b"a  b\t c"), (b"X:", b""), (b"X: \t ", b""),
        (b"X: \xff\x01", b"\xff\x01"), (b"X: a\x00", None), (b"X : a", None), (b": a", None),
    ],
)  # fmt: skip
def test_header_line_is_read_as_by_the_library(line: bytes, value: bytes | None) -> None:
    make_h11_linear()
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(b"GET / HTTP/1.1\r\nHost: h\r\n" + line + b"\r\n\r\n")
    if value is None:
        with pytest.raises(h11.RemoteProtocolError):
            parser.next_event()
    else:
        event = parser.next_event()
        assert isinstance(event, h11.Request)
        assert event.headers[1] == (b"x", value)


def test_stale_prefixes_of_any_length_are_found() -> None:
    """Also if there are more lengths than the topic has characters; longer prefixes match nothing."""
    index = StaleIndex()
    for length in (0, *range(2, 400)):
        index.add("a" * length, exact=False, partitions=[length % 2], unseen=Unseen(1_000 - length, f"{length}"))
    assert index.find(("aaa", 1)) == Unseen(997, "3")
    assert index.find(("aa", 0)) == Unseen(998, "2")
    assert index.find(("b", 0)) == Unseen(1_000, "0")
    assert index.find(("b", 1)) is None
