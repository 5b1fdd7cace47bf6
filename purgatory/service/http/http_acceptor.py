"""Accepts HTTP connections. They count from their acceptance on, not only from the end of a TLS handshake."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
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
        self, make: Callable[[], HttpConnection], limits: HttpLimits, context: ssl.SSLContext | None = None
    ) -> None:
        self._make: Final = make
        self._limits: Final = limits
        self._context: Final = context
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._opened: Final = contextlib.ExitStack()
        """The listening sockets. Not closed by their tasks, because one that is cancelled at once does nothing."""

    def start(self, host: str, port: int) -> int:
        """Listen on all addresses of the host; return the port. Raises OSError."""
        with contextlib.ExitStack() as opened:
            sockets = []
            for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                # If the port is 0, the first socket chooses it, and the others use the same one.
                listening = socket.create_server((address[0], port, *address[2:]), family=family, backlog=BACKLOG)
                sockets.append(opened.enter_context(listening))
                listening.setblocking(False)
                port = listening.getsockname()[1]
            self._opened.push(opened.pop_all())
        for listening in sockets:
            self._tasks.add(asyncio.get_running_loop().create_task(self._accept(listening)))
        return port

    async def stop(self) -> None:
        """Accept no more connections. Open ones are left to the site."""
        # With the tasks of handshakes, which would otherwise make connections after the stop.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._opened.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                LOGGER.debug("cannot accept an HTTP connection: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            connection = self._make()
            task = loop.create_task(self._connect(connection, accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._limits.add(connection)
            await asyncio.sleep(0)  # accept does not block while connections are queued

    async def _connect(self, connection: HttpConnection, accepted: socket.socket) -> None:
        timeout_s = None if self._context is None else self._limits.read_timeout_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # By hand: the transport does not report the loss, although it may have passed on a request already.
            connection.forget()
            with contextlib.suppress(OSError):
                accepted.close()
            if isinstance(error, asyncio.CancelledError):
                raise
