"""One connection of HTTP: uvicorn's protocol, and since when it is awaited what its client has to do.

uvicorn waits as long as a client likes, and keeps however many bytes of header it sends. Here every connection is in
one of four states, each with a time limit but the one in which the daemon is at work, and a request has a size. Who
looks at the times is `HttpAcceptor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEADER_BYTES_MAX: Final = 65_536
"""What a client may send before its header is complete; of a body, what goes beyond the bytes it may have."""

TRANSPORT: Final = "transport"
"""Under this name a request finds the transport of its connection in `scope["state"]`."""

IDLE, ARRIVING, SERVING, UNREAD = range(4)
"""Nothing to do; a request (or, on a new connection, the first one) is awaited; it is being served; the client does not
read its answer.
"""


class HttpConnection(HttpToolsProtocol):
    """`lost` is told when it ends. A request may have `body_bytes_max`, and is cut off far above that: those who are to
    say so read the body.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        body_bytes_max: int,
        lost: Callable[[HttpConnection], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(config, server_state, app_state, loop)
        self._lost: Final = lost
        # Chunks may be small, each with a line of its own.
        self._body_bytes_max: Final = 2 * body_bytes_max + HEADER_BYTES_MAX
        self._bytes = 0
        """Received of what is being received now: a header or a body."""
        self._is_body = False
        self._unanswered = 0
        """Requests whose header is complete and whose answer is not."""
        self._is_request = True
        """Whether a request is awaited: of the first one nothing need have come."""
        self._since_s = loop.time()
        """Since when the request is awaited or, without one, nothing has been going on."""
        self._unread_since_s: float | None = None

    def state(self) -> tuple[int, float]:
        """What it does now, and since when (loop time, seconds)."""
        if self._unread_since_s is not None:
            return UNREAD, self._unread_since_s
        if self._is_request:
            return ARRIVING, self._since_s
        if self._unanswered:
            return SERVING, self._since_s
        return IDLE, self._since_s

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {TRANSPORT: transport}
        self._since_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        super().data_received(data)
        if self._bytes > (self._body_bytes_max if self._is_body else HEADER_BYTES_MAX):
            self.abort()

    def pause_writing(self) -> None:
        self._unread_since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        super().resume_writing()

    # The parser's side.

    def on_message_begin(self) -> None:
        self._is_request = True
        self._since_s = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._bytes = 0
        self._is_body = True
        self._unanswered += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._bytes = 0
        self._is_body = False
        self._is_request = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        if not self._is_request:
            self._since_s = self.loop.time()
        super().on_response_complete()
