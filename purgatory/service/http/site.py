"""The HTTP site beside gRPC: the calls as HTTP, metrics for Prometheus, probes, and pages for people.

An ASGI application, served by uvicorn's protocol in the daemon's own loop.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from google.rpc import code_pb2
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from purgatory.service.http.browser_guard import FOREIGN_NAME, FOREIGN_PAGE, is_foreign_page, is_led_astray
from purgatory.service.http.http_acceptor import HttpAcceptor, Lost
from purgatory.service.http.http_connection import TRANSPORT, HttpConnection
from purgatory.service.http.http_peer import certificate_of, header_of
from purgatory.service.http.probes import PROBES
from purgatory.service.rpc.statuses import CallRefused
from purgatory.service.settings import HttpSettings
from purgatory.service.transport.tls import Tls

STOP_S: Final = 1.0
"""What is still being served when the site stops has so long to end."""
MESSAGE_BYTES_MAX: Final = 4_194_304

HTTP_STATUSES: Final = {
    code_pb2.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    code_pb2.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    code_pb2.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Of a page that is refused."""

CheckPage = Callable[[str, str, str | None, str], None]
"""Given path, peer, authorization header and the principal of the client's certificate: raises `CallRefused` for who
may not see the page.
"""


class HttpSite:
    """Serves `routes` from `start` to `stop`; `check_page` is called before each but the probes. With `tls`, over TLS
    only. `calls` are applications by path, which check their callers themselves. With `local_names_only` who
    shows no token must ask for a name of loopback: see `browser_guard`.
    """

    def __init__(
        self,
        settings: HttpSettings,
        routes: Sequence[BaseRoute],
        *,
        calls: Mapping[str, ASGIApp] | None = None,
        tls: Tls | None = None,
        check_page: CheckPage | None = None,
        local_names_only: bool = False,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._settings: Final = settings
        self._tls: Final = tls
        self._check_page: Final = check_page
        self._calls: Final = {} if calls is None else calls
        self._local_names_only: Final = local_names_only
        self._message_bytes_max: Final = message_bytes_max
        self._pages: Final = Starlette(routes=routes)
        self._state: Final = ServerState()
        self._config: Final = Config(
            self._serve,
            interface="asgi3",
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # its warnings are of bytes that are not HTTP, which port scanners send
            access_log=False,
            proxy_headers=False,  # the peer is who connects, not who a header says it is
            timeout_keep_alive=settings.keepalive_timeout_ms // 1_000 + 1,  # the acceptor comes first
        )
        self._acceptor: HttpAcceptor | None = None

    async def start(self, host: str, port: int) -> int:
        """Binds and serves; returns the bound port (`port` 0: any free one). Raises OSError when it cannot bind."""
        self._acceptor = HttpAcceptor(
            self._connection,
            connections_max=self._settings.connections_max,
            read_timeout_s=self._settings.read_timeout_ms / 1_000,
            keepalive_timeout_s=self._settings.keepalive_timeout_ms / 1_000,
            context=None if self._tls is None else self._tls.http_context(),
        )
        return self._acceptor.start(host, port)

    async def end_requests(self, timeout_s: float) -> None:
        """What is being served has so long to end; then its connection is closed. Further requests are served."""
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Closes everything."""
        if self._acceptor is not None:
            await self._acceptor.stop()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self.end_requests(STOP_S)
        for connection in list(self._state.connections):
            connection.transport.abort()

    def _connection(self, lost: Lost) -> HttpConnection:
        return HttpConnection(self._config, self._state, {}, body_bytes_max=self._message_bytes_max, lost=lost)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        call = self._calls.get(path)
        refused: Response | None = None
        if path in PROBES:
            pass
        elif self._local_names_only and is_led_astray(scope):
            refused = PlainTextResponse(FOREIGN_NAME, HTTPStatus.MISDIRECTED_REQUEST)
        elif is_foreign_page(scope):
            refused = PlainTextResponse(FOREIGN_PAGE, HTTPStatus.FORBIDDEN)
        elif call is not None:
            await call(scope, receive, send)
            return
        else:
            refused = self._refusal(scope)
        try:
            await (self._pages if refused is None else refused)(scope, receive, send)
        except asyncio.CancelledError:
            # Only `stop` cancels, and nobody is above this. Closed unfinished, an answer is seen to be cut off.
            scope["state"][TRANSPORT].abort()

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to who may not see a page; None: they may."""
        certified = ""
        if self._tls is not None and self._tls.asks_clients:
            peer = certificate_of(scope)
            if peer is None:
                return PlainTextResponse("a client certificate is needed\n", HTTPStatus.FORBIDDEN)
            if self._tls.is_revoked(peer):
                return PlainTextResponse("this client certificate has been revoked\n", HTTPStatus.FORBIDDEN)
            certified = peer.principal
        if self._check_page is not None:
            client = scope["client"]
            try:
                authorization = header_of(scope, b"authorization")
                self._check_page(scope["path"], "" if client is None else client[0], authorization, certified)
            except CallRefused as refused:
                status = HTTP_STATUSES[refused.code]
                headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
                return PlainTextResponse(f"{refused.message}\n", status, headers)
        return None
