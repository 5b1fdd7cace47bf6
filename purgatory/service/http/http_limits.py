"""The limits of the HTTP server: connections, bytes in memory, and time.

Every connection is in one state, and each state except SERVING has a time limit. A connection handles one request at a
time: nothing more is parsed until the answer has been written and the client has read it. All bytes that were received
for requests in progress, or that clients have not read yet, are counted. Together they have a share of the memory
budget; when it is used up, the connection that holds the most of it is closed, so that small requests still get in.

At `connections_max`, a new connection replaces the one that has been idle for the longest time. If none is idle, the
new one is accepted into a few extra places: there only probes are served, and other requests are answered with 503.
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
from purgatory.service.settings import HttpSettings

LOGGER: Final = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 65_536
CHUNKS_MAX: Final = 32
"""Chunks of a body that are parsed at a time: a chunk may hold one byte, and takes 14 microseconds."""
STEPS_PER_LOOP_TURN: Final = 2
"""Requests that begin, and parts of bodies that are parsed, in one iteration of the event loop. Each takes up to half a
millisecond, and in a long iteration the fair queue serves one call.
"""
WRITE_BUFFER_BYTES: Final = 16_384
"""Above this, the connection is UNREAD and its bytes are counted."""
MEMORY_SHARE: Final = 8
"""Requests in progress and unread answers may take this fraction of the memory budget: 1 / MEMORY_SHARE."""
SMALL_BYTES: Final = 4_096
"""A connection that holds no more than this is never closed for it, so that small requests always get in."""
MEMORY_KEPT: Final = 0.875
"""Connections are closed until this fraction of the share is used, so that not every received byte needs a search."""
FILES_SHARE: Final = 16
"""This fraction of the files that the process may open is left for the journal, the archive and sources: 1 / 16."""
PROBE_PLACES: Final = 32
CLOSING_S: Final = 2.0
"""Time for a client to read an answer that came before the end of its request; then the connection is reset."""
EVICTABLE_S: Final = 1.0
"""A request that takes longer to arrive loses its place when no connection is idle."""

IDLE, ARRIVING, SERVING, UNREAD, CLOSING = range(5)
"""Between requests; a request is arriving (or the first one is awaited); being served; the client does not read its
answer; answered before the whole request had arrived, and about to be closed.
"""


class Connection(Protocol):
    """The part of a connection that the limits use."""

    state: int
    held_bytes: int
    is_extra: bool

    def give_up(self, status: HTTPStatus, message: str) -> None:
        """Answer the request that is arriving, if any, with this error; close the connection."""

    def abort(self) -> None:
        """Close the connection at once."""


class HttpLimits(MemoryHolder):
    """The open connections by state, in the order in which they entered it, and the bytes that they hold."""

    def __init__(self, settings: HttpSettings, memory_bytes_max: int, grpc_connections_max: int) -> None:
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # HTTP gets what gRPC leaves, because only HTTP can close an idle connection when files run out (`free_file`).
        others = min(grpc_connections_max, files_max // 2) + files_max // FILES_SHARE
        self.connections_max: Final = max(1, min(settings.connections_max, files_max - others))
        if self.connections_max < settings.connections_max:
            LOGGER.warning(
                "http.connections_max is reduced from %d to %d: the process may open only %d files; raise `ulimit -n`",
                settings.connections_max,
                self.connections_max,
                files_max,
            )
        self.held_bytes = 0
        self._held_bytes_max: Final = memory_bytes_max // MEMORY_SHARE
        read_s, keepalive_s = settings.read_timeout_ms / 1_000, settings.keepalive_timeout_ms / 1_000
        self._timeouts_s: Final = {IDLE: keepalive_s, ARRIVING: read_s, UNREAD: keepalive_s, CLOSING: CLOSING_S}
        self.sweep_interval_s: Final = min(1.0, read_s / 4, keepalive_s / 4)
        self._steps: Final[deque[Callable[[], None]]] = deque()
        self._is_scheduled = False
        # An open connection is in exactly one of these, that of its `state`; a closed one is in none, and its later
        # reports change nothing. `held_bytes` is the sum over all of them.
        self._by_state: Final[tuple[OrderedDict[Connection, float], ...]] = tuple(OrderedDict() for _ in range(5))

    def __len__(self) -> int:
        return sum(map(len, self._by_state))

    def connections(self) -> list[Connection]:
        return [connection for connections in self._by_state for connection in connections]

    def add(self, connection: Connection) -> None:
        """A connection was accepted: another one makes room for it if necessary, and if there is one that can."""
        now_s = asyncio.get_running_loop().time()
        self._by_state[connection.state][connection] = now_s
        if len(self) > self.connections_max and not self._evict(IDLE):
            self._evict(ARRIVING, since_s=now_s - EVICTABLE_S)
        # The extra places are limited too. Connections that are being served are not closed for a new one.
        if len(self) > self.connections_max + PROBE_PLACES:
            self._evict(CLOSING, ARRIVING, UNREAD)
        # After the evictions, which may have made room.
        connection.is_extra = len(self) > self.connections_max

    def remove(self, connection: Connection) -> None:
        # Called twice for an aborted connection: by the abort, and when its transport reports the loss.
        self._by_state[connection.state].pop(connection, None)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def enter(self, connection: Connection, state: int) -> None:
        """The connection is in another state from now on."""
        # A connection that was removed must not come back. The others move to the end: each state is in the order of
        # entry.
        if self._by_state[connection.state].pop(connection, None) is not None:
            connection.state = state
            self._by_state[state][connection] = asyncio.get_running_loop().time()

    def serves(self, connection: Connection, path: str) -> bool:
        """Whether a request may be served: in the extra places, only probes are."""
        connection.is_extra = connection.is_extra and len(self) > self.connections_max
        return not connection.is_extra or path in PROBES

    def hold(self, connection: Connection, held_bytes: int) -> None:
        """The connection holds this many bytes from now on. It may be closed by this call, as any other may."""
        if connection not in self._by_state[connection.state]:
            return  # closed
        more_bytes = held_bytes - connection.held_bytes
        self.held_bytes += more_bytes
        connection.held_bytes = held_bytes
        if more_bytes <= 0 or self.held_bytes <= self._held_bytes_max:
            return
        # Requests in SERVING are left alone: their work has begun, and their bodies are dropped as soon as they are
        # decoded.
        closable = [*self._by_state[ARRIVING], *self._by_state[UNREAD]]
        holders = sorted((one for one in closable if one.held_bytes > SMALL_BYTES), key=lambda one: one.held_bytes)
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

    def free_file(self) -> None:
        """The process cannot open another file: close a connection, preferably one that does nothing."""
        self._evict(IDLE, CLOSING, ARRIVING)

    def end_late(self) -> None:
        """Close the connections that have been in their state for too long."""
        now_s = asyncio.get_running_loop().time()
        for state, timeout_s in self._timeouts_s.items():
            # This ends: `give_up` removes the connection, or moves it to CLOSING with the present time.
            while self._evict(state, since_s=now_s - timeout_s):
                pass

    def _evict(self, *states: int, since_s: float = float("inf")) -> bool:
        """Close the connection that has been in the first of these states for the longest time, since `since_s` at
        least. Returns whether there was one.
        """
        for state in states:
            connection = next(iter(self._by_state[state]), None)
            if connection is not None and self._by_state[state][connection] < since_s:
                connection.give_up(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")
                return True
        return False
