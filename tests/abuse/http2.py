"""Bare HTTP/2 connections, for calls at a rate and with a behaviour that client libraries do not allow.

A client library starts a few thousand calls per second, which is too slow for a flood. Here the headers of a method are
encoded once, and only the stream number differs between calls. The server's limits on streams and windows are obeyed. A
call that they delay starts as soon as they allow, but is counted as `due` from its scheduled time.
"""

import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

import grpc
import hpack

SERVICE: Final = "/purgatory.v1.PurgatoryService/"
MEGABYTE: Final = 1024 * 1024
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
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 1, 3, 4
STATUS_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}

Call = tuple[str, tuple[bytes, ...]]
"""A method, and the messages sent on its stream before the sending side is closed."""


class Target(NamedTuple):
    """The daemon to attack, and the duration."""

    grpc: str
    """Address of gRPC, host:port."""
    seconds: float
    token: str
    """The attacker's token; empty: none."""


def until(deadline_s: float) -> Iterator[None]:
    while time.monotonic() < deadline_s:
        yield


def message(length: int, body: bytes = b"") -> bytes:
    """A gRPC message with a length field of `length` bytes, and as much of it as `body` has."""
    return b"\0" + length.to_bytes(4, "big") + body


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


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


class Connection:
    """One non-blocking connection; `tally` counts the results of its calls. Responses are discarded.

    With a `window` of 0, the server cannot send responses.
    """

    def __init__(
        self, address: str, token: str, tally: Counter[str] | None = None, *, window: int = WINDOW_BYTES
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket: Final = socket.create_connection((host, int(port)), 10.0)
        self.socket.setblocking(False)
        self.tally: Final[Counter[str]] = Counter() if tally is None else tally
        self.streams_max = 0
        """Unknown until the server's settings arrive."""
        self._token: Final = token
        self._open: Final[set[int]] = set()
        self._next_stream = 1
        self._window, self._stream_window = 65_535, 65_535
        self._used: Final[Counter[int]] = Counter()
        """How much of its window each stream has used that is not ended by `start`."""
        self._arrived = bytearray()
        """Received bytes of an incomplete frame."""
        self._granted = 65_535
        """Number of bytes that the server may still send."""
        self._pings = 0
        ours = HEADER_TABLE_SIZE.to_bytes(2, "big") + bytes(4)
        ours += INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big")
        self._unsent = bytearray(PREFACE + frame(SETTINGS, 0, 0, ours))

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        """Whether too much is unsent because the server reads too slowly."""
        return len(self._unsent) > UNSENT_BYTES_MAX

    def fileno(self) -> int:
        return self.socket.fileno()

    # Calls.

    def start(self, call: Call) -> bool:
        """Start a call, unless the server or the socket accepts no more at the moment."""
        method, bodies = call
        data = b"".join(message(len(body), body) for body in bodies)
        if len(self._open) >= self.streams_max or self.is_full:
            return False
        if len(data) > min(self._window, self._stream_window):
            return False
        stream = self.open(method)
        self._window -= len(data)
        for first in range(0, len(data), FRAME_BYTES_MAX):
            piece = data[first : first + FRAME_BYTES_MAX]
            self._unsent += frame(DATA, END_STREAM if first + len(piece) == len(data) else 0, stream, piece)
        if not data:
            self._unsent += frame(DATA, END_STREAM, stream)
        return True

    def open(self, method: str) -> int:
        """Open a stream for a call, and return its id."""
        stream = self._next_stream
        self._next_stream += 2
        self._open.add(stream)
        self._unsent += frame(HEADERS, END_HEADERS, stream, headers_of(method, self._token))
        return stream

    def reset(self, stream: int) -> None:
        self._open.discard(stream)
        self._unsent += frame(RST_STREAM, 0, stream, bytes(4))

    def write(self, stream: int, data: bytes) -> int:
        """Write as much on an open stream as the server's windows allow; return the number of bytes."""
        if stream not in self._open or self.is_full:
            return 0
        room = min(len(data), FRAME_BYTES_MAX, self._window, self._stream_window - self._used[stream])
        if room > 0:
            self._window -= room
            self._used[stream] += room
            self._unsent += frame(DATA, 0, stream, data[:room])
        return max(0, room)

    # The socket.

    def send(self) -> None:
        if self._unsent:
            try:
                del self._unsent[: self.socket.send(self._unsent)]
            except BlockingIOError:
                return

    def exchange(self, timeout_s: float) -> None:
        """Send what can be sent, and wait for something to be received.

        Raises:
            ConnectionError: The server has closed the connection.
        """
        self.send()
        if select.select([self], [], [], timeout_s)[0]:
            self.receive()

    def until_read(self) -> None:
        """Wait until the server has read everything that was sent, and its settings have arrived."""
        pings = self._pings
        self._unsent += frame(PING, 0, 0, bytes(8))
        while self._pings == pings:
            self.exchange(0.1)

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
        self.tally["closed"] += len(self._open)
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
        elif kind == PING and flags & ACK:
            self._pings += 1
        elif kind == PING:
            self._unsent += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE and stream in self._used:
            self._used[stream] -= int.from_bytes(payload, "big")

    def _end(self, stream: int, how: str) -> None:
        if stream in self._open:
            self._open.remove(stream)
            self.tally[how] += 1

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            setting, value = (
                int.from_bytes(payload[at : at + 2], "big"),
                int.from_bytes(payload[at + 2 : at + 6], "big"),
            )
            if setting == MAX_CONCURRENT_STREAMS:
                self.streams_max = value
            elif setting == INITIAL_WINDOW_SIZE:
                self._stream_window = value
        self._unsent += frame(SETTINGS, ACK, 0)


def flood(
    target: Target,
    make_call: Callable[[int], Call],
    calls_per_second: float | None,
    *,
    in_flight: int = IN_FLIGHT,
    may_be_cut: bool = False,
) -> Counter[str]:
    """Start calls at this rate for the target's time, and leave without waiting for calls in flight.

    Without a rate, a call starts for each one that ends, with up to `in_flight` calls in flight.

    Returns:
        The results of calls by status, the number `started`, the number `due`, and the connections that were `cut`.

    Raises:
        ConnectionError: The server has closed a connection, unless it `may_be_cut`: then another one is opened.
    """
    tally: Counter[str] = Counter()
    connections = [Connection(target.grpc, target.token, tally) for _ in range(CONNECTIONS)]
    began_s, started, due, turn = time.monotonic(), 0, 0, 0
    while (elapsed_s := time.monotonic() - began_s) < target.seconds:
        if calls_per_second is None:
            due = started + in_flight - sum(connection.in_flight for connection in connections)
        else:
            due = int(elapsed_s * calls_per_second)
        full = 0
        while started < due and full < CONNECTIONS:
            if connections[turn % CONNECTIONS].start(make_call(started)):
                started, full = started + 1, 0
            else:
                full += 1
            turn += 1
        readable, _, _ = select.select(connections, [], [], 0.001)
        for place, connection in enumerate(connections):
            try:
                connection.send()
                if connection in readable:
                    connection.receive()
            except ConnectionError:
                if not may_be_cut:
                    raise
                tally["cut"] += 1
                connection.close()
                connections[place] = Connection(target.grpc, target.token, tally)
    for connection in connections:
        connection.close()
    tally.update(started=started, due=due)
    return tally
