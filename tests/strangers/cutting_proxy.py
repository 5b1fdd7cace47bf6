"""A TCP proxy on loopback whose connections can be cut, and which can be switched to another daemon."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final

from purgatory.service.settings import split_address

CHUNK_BYTES: Final = 65_536


class CuttingProxy:
    """Listens at `address` and forwards to `target`, an address that may be changed for later connections."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._listening: Final = socket.create_server(("127.0.0.1", 0))
        self.address: Final = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._changed: Final = threading.Condition()
        self._connections: list[tuple[socket.socket, socket.socket]] = []
        self._passed_bytes = 0
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, after_bytes: int, timeout_s: float) -> None:
        """Cut all connections once `after_bytes` have passed from the daemon since the last cut."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._passed_bytes >= after_bytes, timeout_s)
            assert arrived, f"{self._passed_bytes} bytes have passed, not {after_bytes}, in {timeout_s} s"
            connections, self._connections = self._connections, []
            self._passed_bytes = 0
        for pair in connections:
            for one in pair:
                _reset(one)

    def close(self) -> None:
        self._listening.close()
        with self._changed:
            self._is_closed = True  # a connection that is being made now ends itself
        self.cut(0, 0)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                self._connect(self._listening.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        try:
            daemon = socket.create_connection(split_address(self.target))
        except OSError:  # it is being started again
            _reset(client)
            return
        for one in (client, daemon):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each answer takes up to 40 ms longer
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._connections.append((client, daemon))
        if is_closed:
            _reset(client)
            _reset(daemon)
            return
        threading.Thread(target=self._pass_on, args=(client, daemon, 0), daemon=True).start()
        threading.Thread(target=self._pass_on, args=(daemon, client, 1), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counts: int) -> None:
        with contextlib.suppress(OSError):  # cut, or closed by the other side
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(data)
                with self._changed:
                    self._passed_bytes += counts * len(data)
                    self._changed.notify_all()
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _reset(connection: socket.socket) -> None:
    """Ends it at once, in the middle of whatever is under way."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
