"""HTTP/1.1 byte by byte, for requests that a client library would not send."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

import h11

from tests.kit.eventually import PATIENCE_S


class Answer(NamedTuple):
    """One response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One connection. `address` is host:port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address: Final = address
        self.socket: Final = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unparsed = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        """Send the packets, each after the daemon has read the one before. The daemon may refuse the last one."""
        for number, packet in enumerate(packets):
            if number:
                with RawConnection(self._address) as other:  # its response shows that the packet was read
                    other.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert other.answer().status == 200
            self.socket.sendall(packet)

    def answer(self, method: str = "GET", *, only_first_bytes: bool = False) -> Answer:
        """The next response. With `only_first_bytes`, the body of an endless response is cut."""
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "localhost")]))
        client.send(h11.EndOfMessage())
        if self._unparsed:
            client.receive_data(self._unparsed)
        head, body = None, b""
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(self.socket.recv(65_536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            if isinstance(event, h11.EndOfMessage) or (only_first_bytes and body):
                break
        assert head is not None, "a body without a status"
        self._unparsed = client.trailing_data[0]
        return Answer(head.status_code, {name.decode(): value.decode() for name, value in head.headers}, body)

    def is_closed(self) -> bool:
        """Whether the daemon closes the connection without sending anything more. Waits for either."""
        try:
            return not self._unparsed and self.socket.recv(1) == b""
        except ConnectionError:
            return True


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None, version: str = "1.1"
) -> bytes:
    """One request, with Host and Content-Length unless `headers` has others."""
    given = {"host": "localhost", **(headers or {})}
    if body is not None and "transfer-encoding" not in given:
        given.setdefault("content-length", str(len(body)))
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode() + (body or b"")


def enveloped(data: bytes, flags: int = 0) -> bytes:
    """A message in a frame of Connect or gRPC-Web."""
    return struct.pack(">BI", flags, len(data)) + data


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks of this many bytes."""
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])
