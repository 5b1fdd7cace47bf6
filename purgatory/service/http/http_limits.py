"""The limits of the HTTP server: connections, bytes in memory, and time.

A connection handles one request at a time: nothing more is parsed until the answer has been written and the client has
read it. All bytes that were received for requests in progress, or that clients have not read yet, are counted. Together
they have a share of the memory budget; when it is used up, the connection that holds the most of it is closed, so that
small requests still get in.

Above the limit on connections, new ones are accepted into a few extra places: there only probes are served, and other
requests are answered with 503.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import OrderedDict, deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from purgatory.service.budget.shares import MemoryHolder
from purgatory.service.http.probes import PROBES

LOGGER: Final = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 12_288
"""Concurrent connections, limited also by the open files that gRPC leaves free."""
READ_TIMEOUT_S: Final = 10.0
"""A request that takes longer than this to arrive is answered with 408."""
KEEPALIVE_TIMEOUT_S: Final = 75.0
"""A connection is closed this long after its last request."""
STEPS_PER_LOOP_TURN: Final = 2
"""Heads of requests and parts of bodies that are parsed in one iteration of the event loop. Each takes up to half a
millisecond, and in a long iteration the fair queue serves one call.
"""
MEMORY_SHARE: Final = 8
"""Requests in progress and unread answers may take this fraction of the memory budget: 1 / MEMORY_SHARE."""
SMALL_BYTES: Final = 4_096
"""A connection that holds no more than this is never closed for it, so that small requests always get in."""
MEMORY_KEPT: Final = 0.875
"""Connections are closed until this fraction of the share is used, so that not every received byte needs a search."""
FILES_SHARE: Final = 16
"""This fraction of the files that the process may open is left for the journal, the archive and sources: 1 / 16."""
PROBE_PLACES: Final = 32


class Connection(Protocol):
    """The part of a connection that the limits use."""

    held_bytes: int

    def is_closable(self) -> bool:
        """Return whether a request is arriving or an answer is not read."""

    def give_up(self, status: HTTPStatus, message: str) -> None:
        """Answer the request that is arriving, if any, with this error; close the connection."""

    def abort(self) -> None:
        """Close the connection at once."""


class HttpLimits(MemoryHolder):
    """The open connections and the bytes that they hold."""

    def __init__(self, memory_bytes_max: int, grpc_connections_max: int) -> None:
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        others = grpc_connections_max + files_max // FILES_SHARE
        self.connections_max: Final = max(1, min(CONNECTIONS_MAX, files_max - others))
        if self.connections_max < CONNECTIONS_MAX:
            LOGGER.warning(
                "HTTP connections are reduced from %d to %d: the process may open only %d files; raise `ulimit -n`",
                CONNECTIONS_MAX,
                self.connections_max,
                files_max,
            )
        self.held_bytes = 0
        self._held_bytes_max: Final = memory_bytes_max // MEMORY_SHARE
        self._steps: Final[deque[Callable[[], None]]] = deque()
        self._is_scheduled = False
        self.connections: Final[set[Connection]] = set()
        """`held_bytes` is the sum over them. Reports of a connection that is not among them change nothing."""
        self._extra: Final[OrderedDict[Connection, None]] = OrderedDict()
        """Those in the extra places, in the order of their acceptance."""

    def add(self, connection: Connection) -> None:
        """A connection was accepted."""
        self.connections.add(connection)
        if len(self.connections) > self.connections_max:
            self._extra[connection] = None
        if len(self._extra) > PROBE_PLACES:
            next(iter(self._extra)).abort()

    def remove(self, connection: Connection) -> None:
        """Safe to call twice: by an abort, and when the transport reports the loss."""
        self.connections.discard(connection)
        self._extra.pop(connection, None)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def serves(self, connection: Connection, path: str) -> bool:
        """Return whether a request may be served: in the extra places, only probes are."""
        if len(self.connections) <= self.connections_max:
            self._extra.pop(connection, None)
        return connection not in self._extra or path in PROBES

    def hold(self, connection: Connection, held_bytes: int) -> None:
        """The connection holds this many bytes from now on. It may be closed by this call, as any other may."""
        if connection not in self.connections:
            return  # closed
        more_bytes = held_bytes - connection.held_bytes
        self.held_bytes += more_bytes
        connection.held_bytes = held_bytes
        if more_bytes <= 0 or self.held_bytes <= self._held_bytes_max:
            return
        # Requests that are being served are left alone: their work has begun, and their bodies are dropped as soon as
        # they are decoded.
        holders = [one for one in self.connections if one.held_bytes > SMALL_BYTES and one.is_closable()]
        holders.sort(key=lambda one: one.held_bytes)
        while holders and self.held_bytes > self._held_bytes_max * MEMORY_KEPT:
            holders.pop().give_up(HTTPStatus.SERVICE_UNAVAILABLE, "too many bytes of requests are in memory")

    def run_soon(self, step: Callable[[], None]) -> None:
        """Do a step of a connection's work: now if no other was done in this iteration of the loop, or else in turn."""
        self._steps.append(step)
        if not self._is_scheduled:
            self._run_steps()

    def _run_steps(self) -> None:
        self._is_scheduled = bool(self._steps)
        if self._is_scheduled:
            # Also if no steps are left after this one: further steps of this loop iteration must wait for the next.
            asyncio.get_running_loop().call_soon(self._run_steps)
        for _ in range(min(len(self._steps), STEPS_PER_LOOP_TURN)):
            self._steps.popleft()()
