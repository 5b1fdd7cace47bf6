"""Requests that once took the square of their length, or more, to be refused: each held the event loop for minutes."""

import contextlib
import json
import struct
from urllib.parse import quote, unquote

import h11
import pytest

from purgatory.service.sources.source_table import StaleIndex, Unseen
from purgatory.service.transport.linear_h11 import make_h11_linear
from tests.http.raw_http import RawConnection, chunked, request
from tests.kit.daemon import DaemonProcess

SERVICE = "/purgatory.v1.PurgatoryService"
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
        request(
            "POST", TO_WAIT, {"content-type": "application/grpc-web+json"}, struct.pack(">BI", 0, len(EVIL)) + EVIL
        ),
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
