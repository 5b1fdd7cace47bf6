"""Accepts HTTP connections, and closes those that exceed a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Final

from purgatory.service.http.http_connection import HttpConnection
from purgatory.service.http.http_limits import HttpLimits

LOGGER: Final = logging.getLogger(__name__)

BACKLOG: Final = 1_024
ACCEPT_PAUSE_S: Final = 0.1
"""After a failed accept, for instance because the process has too many open files."""


class HttpAcceptor:
    """Listens from `start` to `stop`. `make` creates a connection."""

    def __init__(
        self,
        make: Callable[[], HttpConnection],
        limits: HttpLimits,
        handshake_timeout_s: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._make: Final = make
        self._limits: Final = limits
        self._handshake_timeout_s: Final = None if context is None else handshake_timeout_s
        self._context: Final = context
        self._listening: Final[list[socket.socket]] = []
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def start(self, host: str, port: int) -> int:
        """Listen on all addresses of the host; return the port. Raises OSError."""
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            listening = socket.socket(family, kind, protocol)
            self._listening.append(listening)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                # Otherwise the IPv6 wildcard socket would also claim the IPv4 port, which has a socket of its own.
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind((address[0], port, *address[2:]))
                listening.listen(BACKLOG)
                listening.setblocking(False)
            except OSError:
                self._close_listening()
                raise
            # If it was 0, the first socket has chosen the port, and the others use the same one.
            port = listening.getsockname()[1]
        # Only when all addresses are bound: a failure above must not leave tasks behind that accept.
        for listening in self._listening:
            self._start_task(self._accept(listening))
        self._start_task(self._sweep())
        return port

    async def stop(self) -> None:
        """Accept no more connections. Open ones are left to the server."""
        # With the tasks of handshakes, which would otherwise make connections after the stop.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_listening()

    def _close_listening(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                LOGGER.debug("cannot accept an HTTP connection: %s", error)
                # Otherwise a full table of idle connections would keep every new client, and the probes, out.
                self._limits.free_file()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connection = self._make()
            # Set before `add`, which may evict any connection, even this one.
            connection.abort_connecting = self._start_task(self._connect(connection, accepted)).cancel
            self._limits.add(connection)
            await asyncio.sleep(0)  # accept does not block while connections are queued

    async def _connect(self, connection: HttpConnection, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # By hand: the transport does not call it, although it may have passed on a request already.
            connection.connection_lost(error if isinstance(error, OSError) else None)
            with contextlib.suppress(OSError):
                accepted.close()
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_interval_s)
            self._limits.end_late()
