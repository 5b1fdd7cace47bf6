"""HTTP/1.1 connections: uvicorn's protocol on h11, and the limits on connections, bytes in memory, and time.

h11 is a pull parser, so a pipelined request is not parsed before the request in front of it has been answered. This
module adds errors as JSON, time limits, a count of the bytes in memory, and steps that are short enough for the event
loop. uvicorn's minor version is pinned, because some of the methods overridden here are not documented.
"""

import asyncio
import contextlib
import json
import logging
import resource
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import h11
from h11._receivebuffer import ReceiveBuffer
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from purgatory.service.budget.shares import MemoryHolder
from purgatory.service.errors import shortened
from purgatory.service.http.monitoring import PROBES
from purgatory.service.transport.linear_h11 import make_h11_linear

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


class HttpLimits(MemoryHolder):
    """The open connections and the bytes that they hold.

    A connection handles one request at a time: nothing more is parsed until the answer has been written and the client
    has read it. All bytes that were received for requests in progress, or that clients have not read yet, are counted.
    Together they have a share of the memory budget; when it is used up, the connection that holds the most of it is
    closed, so that small requests still get in.

    Above the limit on connections, new ones are accepted into a few extra places: there only probes are served, and
    other requests are answered with 503.
    """

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
        self.connections: Final[set[HttpConnection]] = set()
        """`held_bytes` is the sum over them. Reports of a connection that is not among them change nothing."""
        self._extra: Final[OrderedDict[HttpConnection, None]] = OrderedDict()
        """Those in the extra places, in the order of their acceptance."""

    def add(self, connection: "HttpConnection") -> None:
        self.connections.add(connection)
        if len(self.connections) > self.connections_max:
            self._extra[connection] = None
        if len(self._extra) > PROBE_PLACES:
            next(iter(self._extra)).abort()

    def remove(self, connection: "HttpConnection") -> None:
        """Safe to call twice: by an abort, and when the transport reports the loss."""
        self.connections.discard(connection)
        self._extra.pop(connection, None)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0

    def serves(self, connection: "HttpConnection", path: str) -> bool:
        """Return whether a request may be served: in the extra places, only probes are."""
        if len(self.connections) <= self.connections_max:
            self._extra.pop(connection, None)
        return connection not in self._extra or path in PROBES

    def hold(self, connection: "HttpConnection", held_bytes: int) -> None:
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


LOGGER: Final = logging.getLogger(__name__)

HEAD_END: Final = b"\r\n\r\n"
LINE_BYTES: Final = bytes((0x09, *range(0x20, 0x7F), *range(0x80, 0x100)))


def head_fault(received: bytes) -> str:
    """Return why the request that begins here must be refused; empty if its head is valid, or not complete yet.

    h11 reads such requests in one of several ways (RFC 9112: 2.2, 5.2, 6.1, 6.3). If a proxy in front of the daemon
    reads them in another one, a caller can pass a second request through it unseen.
    """
    head, end, _ = received.partition(HEAD_END)
    if not end:
        return "lines must end with CR LF" if b"\n\n" in received or b"\n\r\n" in received else ""
    lines = head.split(b"\r\n")
    if b"".join(lines).translate(None, LINE_BYTES):
        return "a header must not contain control characters, and its lines must end with CR LF"
    if any(line.startswith((b" ", b"\t")) for line in lines):
        return "a header must not be folded"
    fields = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
    lengths = [value for name, value in fields if name == b"content-length"]
    is_coded = any(name == b"transfer-encoding" for name, _ in fields)
    if len(lengths) > 1 or not all(map(bytes.isdigit, lengths)):
        return "Content-Length must be one number"
    if is_coded and (lengths or not lines[0].endswith(b"/1.1")):
        return "Transfer-Encoding needs HTTP/1.1, and no Content-Length"
    return ""


CONNECTION: Final = "connection"
"""The name under which a request finds its connection in `scope["state"]`."""
HEADER_BYTES_MAX: Final = 65_536
CHUNKS_MAX: Final = 32
"""Chunks of a body that are parsed at a time: a chunk may hold one byte, and takes 14 microseconds."""
WRITE_BUFFER_BYTES: Final = 16_384
"""Above this, the answer counts as unread: its bytes and its time are limited."""
CLOSING_S: Final = 2.0
"""Time for a client to read an answer that came before the end of its request; then the connection is reset."""
CODES: Final = {
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    HTTPStatus.REQUEST_TIMEOUT: "deadline_exceeded",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal",
}
RETRY_AFTER_S: Final = 1

make_h11_linear()


class _Lines(ReceiveBuffer):
    """What has been received. Lines end with CR LF: in h11, LF alone may end trailers, and the body with them."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if self._data.startswith(b"\r\n"):
            self._extract(2)
            return []
        end = self._data.find(HEAD_END, self._multiple_lines_search)
        if end < 0:
            self._multiple_lines_search = max(0, len(self) - len(HEAD_END) + 1)
            return None
        return self._extract(end + len(HEAD_END)).split(b"\r\n")[:-2]


class _Parser(h11.Connection):
    """h11's parser. It checks the head of each request first, passes what is wrong with a request to `refuse`, and
    parses `CHUNKS_MAX` chunks at a time: then it asks for more data, although it `is_paused` only.
    """

    def __init__(self, refuse: Callable[[HTTPStatus, str], None], note_end: Callable[[], None]) -> None:
        super().__init__(h11.SERVER, HEADER_BYTES_MAX)
        self._receive_buffer = _Lines()
        self._refuse: Final = refuse
        self._note_end: Final = note_end
        self.is_over = False
        self.chunks_left = 0

    @property
    def is_paused(self) -> bool:
        return not (self.chunks_left or self.is_over)

    def next_event(self) -> Any:  # noqa: ANN401 - h11's events and sentinels
        if self.is_over or self.is_paused:
            return h11.NEED_DATA
        try:
            fault = self.their_state is h11.IDLE and head_fault(
                self.trailing_data[0][: HEADER_BYTES_MAX + len(HEAD_END)]
            )
            event = h11.NEED_DATA if fault else super().next_event()
        except h11.RemoteProtocolError as error:
            self._refuse(HTTPStatus(error.error_status_hint), shortened(str(error)))
            return h11.NEED_DATA
        if isinstance(event, h11.Request) and not event.http_version.startswith(b"1."):
            fault = "HTTP/1.1 is served here; HTTP/2 is on the gRPC port"
        if fault:
            self._refuse(HTTPStatus.BAD_REQUEST, fault)
            return h11.NEED_DATA
        if isinstance(event, h11.Data):
            self.chunks_left -= 1
        elif isinstance(event, h11.EndOfMessage):
            self._note_end()
        return event


class HttpConnection(H11Protocol):
    """A connection from its acceptance on; `config` has the application. `state` holds the tasks that serve requests,
    of all connections.
    """

    def __init__(self, config: Config, state: ServerState, limits: HttpLimits) -> None:
        super().__init__(config, state, {CONNECTION: self}, asyncio.get_running_loop())
        self._site: Final = self.app
        self.app = self._serve
        self._limits: Final = limits
        self.conn: _Parser = _Parser(self.refuse, self._set_timer)
        self.held_bytes = 0
        self._received_bytes = 0
        """Bytes of requests that have not been served, or whose body has not been decoded."""
        self._start: Message | None = None
        """The status and headers of the answer, if not written yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer(READ_TIMEOUT_S)

    def _set_timer(self, after_s: float | None = None) -> None:
        """Give up after this time, in place of the time that was set before; None: do not."""
        if self._timer is not None:
            self._timer.cancel()
        expire = partial(self.give_up, HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")
        self._timer = None if after_s is None else self.loop.call_later(after_s, expire)

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if self.conn.is_over:  # closed during the TLS handshake
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.forget()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self.conn.is_over:
            return
        self._unset_keepalive_if_required()
        if not self._received_bytes and self.conn.their_state is h11.IDLE:
            self._set_timer(READ_TIMEOUT_S)
        self.conn.receive_data(data)
        # The rest of a body is read and dropped once its request has been answered.
        if self.conn.our_state is not h11.DONE:
            self._received_bytes += len(data)
            self._limits.hold(self, self._received_bytes)
        self.handle_events()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_timer(KEEPALIVE_TIMEOUT_S)
        # Counted once: the buffer does not grow before it is read, because uvicorn waits until then.
        self._limits.hold(self, self._received_bytes + self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_timer(None if self._is_whole() else READ_TIMEOUT_S)
        self._limits.hold(self, self._received_bytes)

    # Called by the limits and by the application.

    def is_closable(self) -> bool:
        """Return whether a request is arriving or an answer is not read. Of others, the work has begun."""
        return not self._is_whole() or self.flow.write_paused

    def give_up(self, status: HTTPStatus, message: str) -> None:
        """Answer the request that is arriving, if any, with this error; close the connection."""
        if self._received_bytes and not self.conn.is_over:
            self.refuse(status, message)
        else:
            self.abort()

    def abort(self) -> None:
        self.forget()
        if cast("asyncio.Transport | None", self.transport) is not None:  # the TLS handshake is complete
            self.transport.abort()

    def forget(self) -> None:
        """Stop counting the connection: it is closed, or was never made."""
        self._end()
        self._set_timer()
        self._limits.remove(self)

    def body_decoded(self, kept_bytes: int = 0) -> None:
        """Stop counting the bytes of the request, except those that are kept until it has been answered."""
        # Bytes behind the body are kept by the parser. They belong to the next requests and stay counted.
        self._received_bytes = len(self.conn.trailing_data[0]) + kept_bytes
        self._limits.hold(self, self._received_bytes)

    # A request.

    def _is_whole(self) -> bool:
        return self.conn.their_state in {h11.DONE, h11.MUST_CLOSE}

    def handle_events(self) -> None:
        """Parse what has arrived, in a step of its own: heads and bodies of many connections would otherwise be parsed
        in one iteration of the loop.
        """
        if not self.conn.is_over:
            self.flow.pause_reading()
            self._limits.run_soon(self._parse)

    def _parse(self) -> None:
        self.conn.chunks_left = CHUNKS_MAX
        self.flow.resume_reading()
        super().handle_events()
        # The rest waits for the next step: a megabyte of one-byte chunks would hold the loop for seconds.
        if self.conn.is_paused:
            self.handle_events()

    def _should_upgrade(self) -> bool:
        return False  # offers are ignored

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self.cycle
        self.headers = []  # the request has them, and drops those that its call does not need

        async def send_joined(message: Message) -> None:
            """Send the start of an answer with the first part of its body, which may be the only one."""
            if message["type"] == "http.response.start":
                self._start = message
                return
            start, self._start = self._start, None
            if start is not None:
                headers = list(start.get("headers", ()))
                is_last = not message.get("more_body", False)
                if is_last and not any(name == b"content-length" for name, _ in headers):  # h11 would use chunks
                    headers.append((b"content-length", str(len(message.get("body", b""))).encode()))
                if is_last and self._has_sent(cycle, start["status"], headers, message.get("body", b"")):
                    return
                await send({**start, "headers": headers})
            await send(message)

        try:
            if cycle.disconnected:
                return
            # Only now, because probes are served in places in which nothing else is: the path decides.
            if not self._limits.serves(self, scope["path"]):
                self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again later")
                return
            await self._site(scope, receive, send_joined)
        except asyncio.CancelledError:
            # Raised when the site stops: the client sees that the answer is cut off. Not raised again, because uvicorn
            # would log it as an error of the application.
            self.abort()
        except Exception:
            LOGGER.exception("cannot serve %s %s", scope["method"], scope["path"])
        if not (cycle.disconnected or cycle.response_complete):
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this call failed; the daemon's log says why")

    def _has_sent(
        self, cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Send a complete answer in one piece, if the next request may follow it; uvicorn sends all others. h11 would
        check the headers, in which nothing comes from a caller, and take twice as long as reading the request.
        """
        state = self.conn._cstate  # noqa: SLF001 - what h11 knows once it has sent an answer
        may_follow = self._is_whole() and state.keep_alive and cycle.keep_alive
        if not (body and may_follow) or cycle.scope["method"] == "HEAD" or cycle.disconnected or self.flow.write_paused:
            return False
        lines = b"".join([b"%s: %s\r\n" % header for header in headers])
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, STATUS_PHRASES[status], lines, body))
        state.states[h11.SERVER] = h11.DONE
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        self.body_decoded()
        super().on_response_complete()
        if self.transport.is_closing():
            self._set_timer(KEEPALIVE_TIMEOUT_S)  # to read the answer
        elif self._received_bytes:
            self._set_timer(READ_TIMEOUT_S)

    # The end.

    def timeout_keep_alive_handler(self) -> None:
        self.abort()  # uvicorn's own would wait for a client that does not read

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Send an error instead of the application's answer; to the application, the client has disconnected."""
        # The answer has begun, so an error cannot be sent any more; a reset shows the client that it is cut off.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.abort()
            return
        body = json.dumps({"code": CODES.get(status, "invalid_argument"), "message": message}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        served = self._served()
        is_head = served is not None and served.scope["method"] == "HEAD"
        response = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        for event in (response, *([] if is_head else [h11.Data(data=body)]), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._close()

    def _close(self) -> None:
        """Close the connection once the client has read the answer. Until then its data is read and discarded: with
        unread data, the system would reset the connection, and the client could lose the answer.
        """
        self._end()
        self._limits.hold(self, 0)
        self._set_timer(CLOSING_S)
        # TLS transports cannot half-close.
        if self.transport.can_write_eof():
            # When the client closes its side too, the transport closes.
            with contextlib.suppress(OSError):  # asyncio's own loop raises it if the client has reset the connection
                self.transport.write_eof()
            self.flow.resume_reading()
        else:
            self.transport.close()

    def _end(self) -> None:
        self.conn.is_over = True
        served = self._served()
        if served is not None:
            served.disconnected = True
            served.message_event.set()

    def _served(self) -> RequestResponseCycle | None:
        """Return the request whose answer is not complete, if there is one."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return None if cycle is None or cycle.response_complete else cycle
