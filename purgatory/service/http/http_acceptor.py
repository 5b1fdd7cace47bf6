"""Accepts connections for a server of HTTP, and ends those that hold one without using it.

Who has not sent a whole request for too long is cut off, however many bytes trickle in. At the limit a further
connection is accepted and closed at once, so that files are left for gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Final

from purgatory.service.http.http_connection import ARRIVING, SERVING, HttpConnection

LOGGER: Final = logging.getLogger(__name__)

BACKLOG: Final = 128
FILES_SHARE: Final = 4
"""Of the files that this process may open, HTTP takes at most one in so many."""
ACCEPT_PAUSE_S: Final = 0.1
"""After a failed accept, such as for want of files."""
SWEEP_S_MAX: Final = 1.0


Lost = Callable[[HttpConnection], None]


class HttpAcceptor:
    """Listens from `start` to `stop`. `serve` makes each connection, given whom to tell when it is lost."""

    def __init__(
        self,
        serve: Callable[[Lost], HttpConnection],
        *,
        connections_max: int,
        read_timeout_s: float,
        keepalive_timeout_s: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max: Final = max(1, min(connections_max, files_max // FILES_SHARE))
        self._serve: Final = serve
        self._read_timeout_s: Final = read_timeout_s
        self._keepalive_timeout_s: Final = keepalive_timeout_s
        self._context: Final = context
        self._open: Final[set[HttpConnection]] = set()
        self._listening: Final[list[socket.socket]] = []
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def start(self, host: str, port: int) -> int:
        """Listens on all addresses of the host; returns the port. Raises OSError."""
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            listening = socket.socket(family, kind, protocol)
            self._listening.append(listening)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind((address[0], port, *address[2:]))
                listening.listen(BACKLOG)
                listening.setblocking(False)
            except OSError:
                self._close_listening()
                raise
            port = listening.getsockname()[1]
        for listening in self._listening:
            self._start_task(self._accept(listening))
        self._start_task(self._sweep())
        return port

    async def stop(self) -> None:
        """Accepts nothing more. Open connections are left to the server."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_listening()

    def _close_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                LOGGER.debug("a connection to the HTTP site could not be accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._open) < self._connections_max:
                connection = self._serve(self._open.discard)
                self._open.add(connection)
                self._start_task(self._connect(connection, accepted))
            else:
                accepted.close()
            await asyncio.sleep(0)  # accepting does not wait while there is a queue

    async def _connect(self, connection: HttpConnection, accepted: socket.socket) -> None:
        """Sets a connection up; a TLS handshake has the time of a request."""
        timeout_s = None if self._context is None else self._read_timeout_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, TimeoutError):  # the peer's fault, or its choice
            self._open.discard(connection)
            with contextlib.suppress(OSError):
                accepted.close()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        turn_s = min(SWEEP_S_MAX, self._read_timeout_s / 4, self._keepalive_timeout_s / 4)
        while True:
            await asyncio.sleep(turn_s)
            now_s = loop.time()
            for connection in list(self._open):
                state, since_s = connection.state()
                if state == SERVING:
                    continue
                timeout_s = self._read_timeout_s if state == ARRIVING else self._keepalive_timeout_s
                if now_s - since_s > timeout_s:
                    connection.abort()
