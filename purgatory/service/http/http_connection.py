"""One HTTP/1.1 connection: an ASGI server on h11, for one request at a time.

h11 is a pull parser, so a pipelined request is not parsed before the request in front of it has been answered. The
socket is read only while the connection waits for the next request, for the rest of a body, or for the client to
disconnect. `http_limits` limits the memory and the time that a connection may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.client import responses
from typing import Final
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message, Scope

from purgatory.service.errors import shortened
from purgatory.service.http.http_limits import (
    ARRIVING,
    CHUNKS_MAX,
    CLOSING,
    HEADER_BYTES_MAX,
    IDLE,
    SERVING,
    UNREAD,
    WRITE_BUFFER_BYTES,
    HttpLimits,
)
from purgatory.service.http.request_head import HEAD_END, head_fault
from purgatory.service.transport.linear_h11 import make_h11_linear

LOGGER: Final = logging.getLogger(__name__)

CONNECTION: Final = "connection"
"""The name under which a request finds its connection in `scope["state"]`."""
ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
DISCONNECT: Final = {"type": "http.disconnect"}
CODES: Final = {
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    HTTPStatus.REQUEST_TIMEOUT: "deadline_exceeded",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal",
}
RETRY_AFTER_S: Final = 1

make_h11_linear()


# A server of our own, because uvicorn's parser handles all pipelined requests of a chunk at once, and runs the body of
# a request that offers an upgrade as a second request.
class HttpConnection(asyncio.Protocol):
    """`tasks` holds the tasks that serve requests, of all connections."""

    __slots__ = (
        "_app", "_body", "_is_complete", "_is_delivered", "_is_serving", "_is_whole", "_limits", "_method", "_over",
        "_parser", "_readable", "_received_bytes", "_start", "_tasks", "_unread_bytes", "_writable", "abort_connecting",
        "held_bytes", "is_extra", "state", "transport",
    )  # fmt: skip

    def __init__(self, app: ASGIApp, limits: HttpLimits, tasks: set[asyncio.Task[None]]) -> None:
        self._app: Final = app
        self._limits: Final = limits
        self._tasks: Final = tasks
        self._parser: Final = h11.Connection(h11.SERVER, HEADER_BYTES_MAX)
        self.transport: asyncio.Transport | None = None
        self.abort_connecting: Callable[[], object] = bool
        """Ends a TLS handshake. The transport is set when the handshake is complete."""
        self.state = ARRIVING
        self.held_bytes = 0
        self.is_extra = False
        self._received_bytes = 0
        """Bytes of requests that have not been served, or whose body has not been decoded."""
        self._unread_bytes = 0
        self._over = False
        """The client has disconnected, or an error was sent instead of the application's answer."""
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        # The steps of a request: `_begin` parses the header, `_serve` runs the application, which pulls the body by
        # `_receive` and writes by `_send`; `_finish` comes back here. Within a request these flags only become true,
        # and all are reset together.
        self._method = b""
        self._body = b""
        """Parsed bytes of the body that have not been delivered to the application yet."""
        self._is_serving = False
        self._is_whole = False
        """The whole request has been parsed,"""
        self._is_delivered = False
        """and delivered to the application."""
        self._is_complete = False
        """The whole answer has been written."""
        self._start: Message | None = None
        """The status and headers of the answer, if not written yet."""

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if self._is_over():  # evicted during the TLS handshake
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._end()

    def data_received(self, data: bytes) -> None:
        if self._is_over():
            return
        is_first = not self._received_bytes
        self._hold(self._received_bytes + len(data), self._unread_bytes)
        if self._is_over():  # it held too much
            return
        self._parser.receive_data(data)
        if not self._is_serving:
            if is_first:  # a new connection is ARRIVING already, but its time starts over
                self._limits.enter(self, ARRIVING)
            self._begin_soon()
            return
        self._transport.pause_reading()  # until the application asks for more
        if not self._is_whole:
            wake(self._readable)

    def pause_writing(self) -> None:
        if not self._is_over():
            self._limits.enter(self, UNREAD)
            # Counted once: the buffer does not grow before it is read, because `_send` waits until then.
            self._hold(self._received_bytes, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        if not self._is_over():
            self._limits.enter(self, SERVING if self._is_whole else ARRIVING)
            self._hold(self._received_bytes, 0)
        wake(self._writable)

    # Called by the limits and by the application.

    def give_up(self, status: HTTPStatus, message: str) -> None:
        # In all other states there is no request to answer, or its answer has begun.
        if self.state == ARRIVING and self._received_bytes:
            self._refuse(status, message)
        else:
            self.abort()

    def abort(self) -> None:
        self._end()
        if self.transport is None:
            self.abort_connecting()
        else:
            self.transport.abort()

    def body_decoded(self, kept_bytes: int = 0) -> None:
        """Stop counting the bytes of the request, except those that are kept until it has been answered."""
        # Bytes behind the body are kept by the parser. They belong to the next requests and stay counted.
        self._hold(len(self._parser.trailing_data[0]) + kept_bytes, self._unread_bytes)

    # A request.

    @property
    def _transport(self) -> asyncio.Transport:
        assert self.transport is not None, "before the connection was made"
        return self.transport

    def _is_over(self) -> bool:
        return self._over

    def _hold(self, received_bytes: int, unread_bytes: int) -> None:
        # This may close the connection itself, as the one that holds the most: callers have to look at `_is_over`
        # before they go on.
        self._received_bytes, self._unread_bytes = received_bytes, unread_bytes
        self._limits.hold(self, received_bytes + unread_bytes)

    def _begin_soon(self) -> None:
        self._transport.pause_reading()  # otherwise each request would read more of the next ones
        self._limits.run_soon(self._begin)

    def _begin(self) -> None:
        """Serve the next request, if its header has arrived."""
        if self._is_over() or self._is_serving:
            return
        fault = head_fault(self._parser.trailing_data[0][: HEADER_BYTES_MAX + len(HEAD_END)])
        if fault:
            self._refuse(HTTPStatus.BAD_REQUEST, fault)
            return
        try:
            request = self._parser.next_event()
            # The header is not complete yet.
            if not isinstance(request, h11.Request):
                self._transport.resume_reading()
                return
        except h11.RemoteProtocolError as error:
            self._refuse(HTTPStatus(error.error_status_hint), shortened(str(error)))
            return
        if not request.http_version.startswith(b"1."):
            self._refuse(HTTPStatus.BAD_REQUEST, "HTTP/1.1 is served here; HTTP/2 is on the gRPC port")
            return
        # Before the body is parsed: an error in it has to be answered according to the method.
        self._is_serving, self._method = True, request.method
        self._body = self._pull()
        if self._is_over():
            return
        scope = self._scope_of(request)
        # Only now, because probes are served in places in which nothing else is: the path decides.
        if not self._limits.serves(self, scope["path"]):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again later")
            return
        task = asyncio.get_running_loop().create_task(self._serve(scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _scope_of(self, request: h11.Request) -> Scope:
        transport = self._transport
        server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "asgi": ASGI,
            "http_version": request.http_version.decode("ascii"),
            "server": server and server[:2],
            "client": client and client[:2],
            "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
            "method": request.method.decode("ascii"),
            "root_path": "",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": list(request.headers),
            "state": {CONNECTION: self},
        }

    async def _serve(self, scope: Scope) -> None:
        try:
            await self._app(scope, self._receive, self._send)
        except asyncio.CancelledError:
            self.abort()  # raised when the site stops: the client sees that the answer is cut off
            raise
        except Exception:
            LOGGER.exception("cannot serve %s %s", scope["method"], scope["path"])
        if not self._is_over() and not self._is_complete:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this call failed; the daemon's log says why")
        self._finish()

    def _finish(self) -> None:
        """The request has been served: continue with the next one, or close the connection."""
        parser = self._parser
        if self._is_over():
            return
        # Otherwise the rest of an unread body would be taken for the next request.
        if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
            self._close()
            return
        parser.start_next_cycle()
        self._reset()
        self.body_decoded()
        self._limits.enter(self, ARRIVING if self._received_bytes else IDLE)
        if self._received_bytes:
            self._begin_soon()
        else:
            self._transport.resume_reading()

    def _pull(self) -> bytes:
        parts = []
        try:
            # The rest is parsed in the next turn: a megabyte of one-byte chunks would hold the loop for seconds.
            for _ in range(CHUNKS_MAX):
                event = self._parser.next_event()
                if not isinstance(event, h11.Data):
                    break
                parts.append(bytes(event.data))
        except h11.RemoteProtocolError as error:
            self._refuse(HTTPStatus(error.error_status_hint), shortened(str(error)))
            return b""
        # Each event is either kept in `parts` or handled here: one that is pulled and dropped would be lost.
        if isinstance(event, h11.EndOfMessage):
            self._is_whole = True
            self._limits.enter(self, SERVING)
            if not self._parser.trailing_data[0]:
                self._transport.resume_reading()  # to see that the client has gone
        return b"".join(parts)

    async def _receive(self) -> Message:
        """Return the next part of the body, and finally the end of the request or of the connection."""
        if self._parser.they_are_waiting_for_100_continue and not self._is_over():
            self._write(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
        while not self._has_part():
            # Parsing waits for a step of its own: bodies of many connections would otherwise be parsed in one iteration
            # of the loop.
            turn = asyncio.get_running_loop().create_future()
            self._limits.run_soon(partial(wake, turn))
            await turn
            self._body = self._pull()
            if not self._has_part():
                await self._more()
        if not (self._is_delivered or self._is_over()):
            body, self._body, self._is_delivered = self._body, b"", self._is_whole
            return {"type": "http.request", "body": body, "more_body": not self._is_whole}
        # By ASGI, a call after the end of the request returns only when the client has gone or the answer is complete.
        while not (self._is_over() or self._is_complete):
            await self._more()
        return DISCONNECT

    def _has_part(self) -> bool:
        return bool(self._body) or self._is_whole or self._over

    async def _more(self) -> None:
        """Wait until bytes arrive, the answer is complete, or the connection is over."""
        assert self._readable is None, "two tasks read one request"
        self._readable = asyncio.get_running_loop().create_future()
        if not self._is_whole:
            self._transport.resume_reading()
        try:
            await self._readable
        finally:
            self._readable = None

    async def _send(self, message: Message) -> None:
        """Write a part of the answer, and wait until the client has read most of it."""
        if self._is_over():
            return
        if message["type"] == "http.response.start":
            self._start = message  # written with the first part of the body, which may be the only one
            return
        data, is_last = message.get("body", b""), not message.get("more_body", False)
        events: list[h11.Event] = []
        if self._start is not None:
            events.append(self._response(self._start, len(data) if is_last else None))
            self._start = None
        if self._is_over():
            return
        if data and self._method != b"HEAD":
            events.append(h11.Data(data=data))
        if is_last:
            events.append(h11.EndOfMessage())
        self._write(*events)
        if is_last:
            self._is_complete = True
            wake(self._readable)
        # The transport calls `pause_writing` within the writes above if the client does not read.
        if self.state == UNREAD:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    def _response(self, start: Message, length: int | None) -> h11.Response:
        status, headers = start["status"], list(start.get("headers", ()))
        # Without a length h11 uses chunks.
        if length is not None and not any(name == b"content-length" for name, _ in headers):
            headers.append((b"content-length", str(length).encode()))
        if not self._is_whole:
            self._pull()  # the connection is kept if the rest of the body has arrived
        if not self._is_whole:
            headers.append((b"connection", b"close"))
        return h11.Response(status_code=status, headers=headers, reason=responses.get(status, "").encode())

    def _write(self, *events: h11.Event) -> None:
        # Joined: each write costs as much as encoding its event.
        data = b"".join([self._parser.send(event) or b"" for event in events])
        if data:
            self._transport.write(data)

    # The end.

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Send an error instead of the application's answer; to the application, the client has disconnected."""
        # The answer has begun, so an error cannot be sent any more; a reset shows the client that it is cut off.
        if self._parser.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.abort()
            return
        body = json.dumps({"code": CODES.get(status, "invalid_argument"), "message": message}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        data = [] if self._method == b"HEAD" else [h11.Data(data=body)]
        response = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        self._write(response, *data, h11.EndOfMessage())
        self._close()

    def _close(self) -> None:
        """Close the connection once the client has read the answer. Until then its data is read and discarded: with
        unread data, the system would reset the connection, and the client could lose the answer.
        """
        self._over = True
        self._hold(0, 0)
        self._limits.enter(self, CLOSING)
        wake(self._readable)
        # TLS transports cannot half-close.
        if self._transport.can_write_eof():
            # `eof_received` is not overridden: when the client closes its side too, the transport closes.
            with contextlib.suppress(OSError):  # asyncio's own loop raises it if the client has reset the connection
                self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def _end(self) -> None:
        self._over = True
        self._limits.remove(self)
        wake(self._readable)
        wake(self._writable)


def wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
