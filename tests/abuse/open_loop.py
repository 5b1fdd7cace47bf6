"""Starts calls at a given rate, whatever their responses, over bare HTTP/2 connections.

A client library starts a few thousand calls per second, which is too slow for a flood. Here the headers of a method are
encoded once, and only the stream number differs between calls. The server's limits on streams and windows are obeyed. A
call that they delay starts as soon as they allow, but is counted as `due` from its scheduled time.
"""

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Final

import grpc
import hpack

from tests.abuse.http2 import SERVICE, Target, message

CONNECTIONS: Final = 10
"""Each has as many streams as the daemon allows."""
IN_FLIGHT: Final = 16
"""Calls in flight of a flood that starts one for each that ends: enough to keep the daemon busy."""
UNSENT_BYTES_MAX: Final = 1 << 20
WINDOW_BYTES: Final = 1 << 24
"""Window of each stream, and the step by which the connection's window grows."""
FRAME_BYTES_MAX: Final = 1 << 14
FRAME_HEADER_BYTES: Final = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 3, 4
STATUS_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}

Call = tuple[str, tuple[bytes, ...]]
"""A method, and the messages sent on its stream before the sending side is closed."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """One HTTP/2 frame; `length` may differ from the payload's length."""
    stated = len(payload) if length is None else length
    return stated.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@cache
def headers_of(method: str, token: str) -> bytes:
    """The header block of a call. An empty token is left out. It does not use the connection's header table, so it is
    always the same.
    """
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", SERVICE + method), (":authority", "purgatory"),
        ("te", "trailers"), ("content-type", "application/grpc"),
    ]  # fmt: skip
    if token:
        fields.append(("authorization", f"Bearer {token}"))
    return bytes(hpack.Encoder().encode([(name, value, True) for name, value in fields]))


@cache
def status_of(trailers: bytes) -> str:
    """The name of the status in a header block; the server does not use a header table either."""
    fields = dict(hpack.Decoder().decode(trailers, raw=True))
    return STATUS_NAMES[int(fields[b"grpc-status"])]


class FloodConnection:
    """One non-blocking connection; `tally` counts the results of its calls."""

    def __init__(self, address: str, token: str, tally: Counter[str]) -> None:
        host, _, port = address.rpartition(":")
        self.socket: Final = socket.create_connection((host, int(port)), 10.0)
        self.socket.setblocking(False)
        self._token: Final = token
        self._tally: Final = tally
        self._open: Final[set[int]] = set()
        self._next_stream = 1
        self._streams_max = 0
        """Unknown until the server's settings arrive."""
        self._window, self._stream_window = 65_535, 65_535
        self._arrived = bytearray()
        """Received bytes of an incomplete frame."""
        self._granted = 65_535
        """Number of bytes that the server may still send."""
        ours = HEADER_TABLE_SIZE.to_bytes(2, "big") + bytes(4)
        ours += INITIAL_WINDOW_SIZE.to_bytes(2, "big") + WINDOW_BYTES.to_bytes(4, "big")
        self._unsent = bytearray(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, ours))

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def start(self, call: Call) -> bool:
        """Start a call, unless the server or the socket accepts no more at the moment."""
        method, bodies = call
        data = b"".join(message(len(body), body) for body in bodies)
        if len(self._open) >= self._streams_max or len(self._unsent) > UNSENT_BYTES_MAX:
            return False
        if len(data) > min(self._window, self._stream_window):
            return False
        stream = self._next_stream
        self._next_stream += 2
        self._open.add(stream)
        self._window -= len(data)
        self._unsent += frame(HEADERS, END_HEADERS, stream, headers_of(method, self._token))
        for first in range(0, len(data), FRAME_BYTES_MAX):
            piece = data[first : first + FRAME_BYTES_MAX]
            self._unsent += frame(DATA, END_STREAM if first + len(piece) == len(data) else 0, stream, piece)
        if not data:
            self._unsent += frame(DATA, END_STREAM, stream)
        return True

    def send(self) -> None:
        if self._unsent:
            try:
                del self._unsent[: self.socket.send(self._unsent)]
            except BlockingIOError:
                return

    def receive(self) -> None:
        """Process received frames.

        Raises:
            ConnectionError: The server has closed the connection.
        """
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the server has closed the connection")
        arrived = self._arrived
        arrived += data
        at = 0
        while len(arrived) - at >= FRAME_HEADER_BYTES:
            end = at + FRAME_HEADER_BYTES + int.from_bytes(arrived[at : at + 3], "big")
            if end > len(arrived):
                break
            stream = int.from_bytes(arrived[at + 5 : at + 9], "big")
            self._take(arrived[at + 3], arrived[at + 4], stream, bytes(arrived[at + FRAME_HEADER_BYTES : end]))
            at = end
        del arrived[:at]

    def close(self) -> None:
        """Close the connection and abort all calls in flight."""
        self._tally["closed"] += len(self._open)
        self.socket.close()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._granted -= len(payload)
            if self._granted < WINDOW_BYTES:
                self._granted += WINDOW_BYTES
                self._unsent += frame(WINDOW_UPDATE, 0, 0, WINDOW_BYTES.to_bytes(4, "big"))
        elif kind == HEADERS and flags & END_STREAM:
            assert flags & END_HEADERS, "trailers of more than one frame"
            assert not flags & (PADDED | PRIORITY), f"trailers with the flags {flags}"
            self._end(stream, status_of(payload))
        elif kind == RST_STREAM:
            self._end(stream, f"RST_STREAM {int.from_bytes(payload, 'big')}")
        elif kind == SETTINGS and not flags & ACK:
            self._take_settings(payload)
        elif kind == PING and not flags & ACK:
            self._unsent += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")

    def _end(self, stream: int, how: str) -> None:
        if stream in self._open:
            self._open.remove(stream)
            self._tally[how] += 1

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            setting, value = (
                int.from_bytes(payload[at : at + 2], "big"),
                int.from_bytes(payload[at + 2 : at + 6], "big"),
            )
            if setting == MAX_CONCURRENT_STREAMS:
                self._streams_max = value
            elif setting == INITIAL_WINDOW_SIZE:
                self._stream_window = value
        self._unsent += frame(SETTINGS, ACK, 0)


def flood(target: Target, make_call: Callable[[int], Call], calls_per_second: float | None) -> Counter[str]:
    """Start calls at this rate for the target's time, and leave without waiting for calls in flight.

    Without a rate, a call starts for each one that ends, with `IN_FLIGHT` calls in flight.

    Returns:
        The results of calls by status, the number `started`, and the number `due`.

    Raises:
        ConnectionError: The server has closed a connection.
    """
    tally: Counter[str] = Counter()
    connections = [FloodConnection(target.grpc, target.token, tally) for _ in range(CONNECTIONS)]
    began_s, started, due, turn = time.monotonic(), 0, 0, 0
    with selectors.DefaultSelector() as selector:
        for place, connection in enumerate(connections):
            selector.register(connection.socket, selectors.EVENT_READ, place)
        while (elapsed_s := time.monotonic() - began_s) < target.seconds:
            if calls_per_second is None:
                due = started + IN_FLIGHT - sum(connection.in_flight for connection in connections)
            else:
                due = int(elapsed_s * calls_per_second)
            full = 0
            while started < due and full < CONNECTIONS:
                if connections[turn % CONNECTIONS].start(make_call(started)):
                    started, full = started + 1, 0
                else:
                    full += 1
                turn += 1
            for connection in connections:
                connection.send()
            for key, _ in selector.select(0.001):
                connections[key.data].receive()
    for connection in connections:
        connection.close()
    tally.update(started=started, due=due)
    return tally
