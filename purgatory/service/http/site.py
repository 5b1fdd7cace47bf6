"""The HTTP site: the calls over HTTP, metrics for Prometheus, probes, and pages for people.

An ASGI application, served in the daemon's event loop.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from google.rpc import code_pb2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from purgatory.service.budget.shares import MemoryBudget
from purgatory.service.errors import RpcError
from purgatory.service.http.browser_guard import FOREIGN_PAGE, WRONG_HOST, is_dns_rebinding, is_foreign_page
from purgatory.service.http.connect_errors import wrong_method, wrong_path
from purgatory.service.http.http_acceptor import HttpAcceptor
from purgatory.service.http.http_connection import HttpConnection
from purgatory.service.http.http_context import certificate_of, header_of
from purgatory.service.http.http_limits import HttpLimits
from purgatory.service.http.probes import PROBES
from purgatory.service.settings import HttpSettings
from purgatory.service.transport.tls import Tls

STOP_S: Final = 1.0
"""Time for requests in progress to end when the site stops."""
MEMORY_BYTES_MAX: Final = 536_870_912

HTTP_STATUSES: Final = {
    code_pb2.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    code_pb2.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    code_pb2.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""HTTP status of a refused page, by gRPC code."""

CheckPage = Callable[[str, str, str | None, str], None]
"""Given path, peer, authorization header and the principal of the client's certificate: raises `RpcError` if the caller
may not see the page.
"""


class HttpSite:
    """Serves `routes` from `start` to `stop`; `check_page` is called before each of them except the probes. With `tls`,
    over TLS only. `calls` are applications by path, which check their callers themselves; `verifies_tokens` states
    whether they do so, or whether no credential is needed.
    """

    def __init__(
        self,
        settings: HttpSettings,
        routes: Sequence[BaseRoute],
        *,
        calls: Mapping[str, ASGIApp] | None = None,
        tls: Tls | None = None,
        check_page: CheckPage | None = None,
        verifies_tokens: bool = False,
        budget: MemoryBudget | None = None,
        grpc_connections_max: int = 0,
    ) -> None:
        self._settings: Final = settings
        self._allowed_hosts: Final = settings.allowed_hosts.lower().replace(":*", "").split()
        self._tls: Final = tls
        self._check_page: Final = check_page
        self._calls: Final = {} if calls is None else calls
        self._verifies_tokens: Final = verifies_tokens
        explained = {HTTPStatus.NOT_FOUND: self._not_found, HTTPStatus.METHOD_NOT_ALLOWED: _method_not_allowed}
        self._pages: Final = Starlette(routes=routes, exception_handlers=explained)
        self._state: Final = ServerState()
        memory_bytes_max = MEMORY_BYTES_MAX if budget is None else budget.bytes_max
        self.limits: Final = HttpLimits(settings, memory_bytes_max, grpc_connections_max)
        if budget is not None:
            budget.http = self.limits
        config = self._config()
        self._acceptor: Final = HttpAcceptor(
            lambda: HttpConnection(config, self._state, self.limits),
            self.limits,
            None if tls is None else tls.http_context(),
        )

    def _config(self) -> Config:
        config = Config(
            self._serve,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
        )
        config.timeout_keep_alive = self.limits.keepalive_timeout_s  # type: ignore[assignment]  # any number will do
        config.load()
        return config

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; return the bound port (`port` 0: any free one). Raises OSError if the address cannot be
        bound.
        """
        return self._acceptor.start(host, port)

    async def end_requests(self, timeout_s: float) -> None:
        """Wait for the requests in progress; after the timeout, close their connections. New requests are served."""
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Close all connections and the listening socket."""
        await self._acceptor.stop()
        await self.end_requests(STOP_S)
        for connection in list(self.limits.connections):
            connection.abort()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        call = self._calls.get(path)
        refused: Response | None = None
        if path in PROBES:
            pass
        elif self._is_dns_rebinding(scope, is_call=call is not None):
            refused = PlainTextResponse(WRONG_HOST, HTTPStatus.MISDIRECTED_REQUEST)
        elif is_foreign_page(scope, self._allowed_hosts):
            refused = PlainTextResponse(FOREIGN_PAGE, HTTPStatus.FORBIDDEN)
        elif call is not None:
            await call(scope, receive, send)
            return
        else:
            refused = self._refusal(scope)
        await (self._pages if refused is None else refused)(scope, receive, send)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return wrong_path(request.url.path, self._calls)

    def _is_dns_rebinding(self, scope: Scope, *, is_call: bool) -> bool:
        """With TLS, the certificate would have another name. With verified tokens, the other site would need one."""
        if self._tls is not None or not is_dns_rebinding(scope, self._allowed_hosts):
            return False
        is_verified = self._verifies_tokens and (is_call or self._check_page is not None)
        return not is_verified or header_of(scope, b"authorization") is None

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a caller that may not see a page; None if it may."""
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
            except RpcError as refused:
                status = HTTP_STATUSES[refused.code]
                headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
                return PlainTextResponse(f"{refused.message}\n", status, headers)
        return None


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for a status"
    return wrong_method(request.url.path, request.method, error.headers or {})
