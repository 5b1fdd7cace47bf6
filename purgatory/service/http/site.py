"""The HTTP site: the calls over HTTP, metrics for Prometheus, probes, and pages for people.

An ASGI application, served in the daemon's event loop.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final

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
from purgatory.service.http import http_connection
from purgatory.service.http.connect_errors import STATUSES, wrong_method, wrong_path
from purgatory.service.http.http_calls import certificate_of, header_of, headers_of
from purgatory.service.http.http_connection import HttpConnection, HttpLimits
from purgatory.service.http.monitoring import PROBES
from purgatory.service.transport.tls import Tls

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
        timeout_s = None if self._context is None else http_connection.READ_TIMEOUT_S
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


FOREIGN_SITES: Final = frozenset(("cross-site", "same-site"))
FOREIGN_PAGE: Final = "requests from pages of other sites are refused; names of this daemon: see http.allowed_hosts\n"
HOSTS_KEPT: Final = 8
"""Few, because a name that a caller sends may have 64 kB."""
WRONG_HOST: Final = "the Host header must be localhost, an IP address, or one of http.allowed_hosts\n"


def is_foreign_page(scope: Scope, allowed_hosts: Sequence[str]) -> bool:
    """Return whether a page of another origin sent the request. Only browsers send these headers.

    On loopback no credential is needed, and a browser runs programs of other sites on this machine.
    """
    # "same-site" is foreign too: another port or subdomain is another program.
    if any(site.lower() in FOREIGN_SITES for site in headers_of(scope, b"sec-fetch-site")):
        return True
    # "Origin: null", as sandboxed frames send it, is a host of that name here and therefore foreign.
    hosts = {origin.rpartition("//")[2].lower() for origin in headers_of(scope, b"origin")}
    # A proxy may send its own name as Host, so that the two differ although the page belongs to the daemon.
    own = (header_of(scope, b"host") or "").lower()
    return any(host != own and not _is_allowed(host, allowed_hosts) for host in hosts)


def is_own_host(host: str | None, allowed_hosts: Sequence[str] = ()) -> bool:
    """Return whether a Host header is localhost, an address, or one of `allowed_hosts` (in lower case)."""
    if host is None:
        return True  # HTTP/1.0: no browser
    name = _name_of(host.lower())
    if name == "localhost" or name.endswith(".localhost") or _is_allowed(host.lower(), allowed_hosts):
        return True
    return _is_ip_address(name)


@lru_cache(HOSTS_KEPT)
def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host


def _is_allowed(host: str, allowed_hosts: Sequence[str]) -> bool:
    name = _name_of(host)
    return any(one in (host, name) or (one[:2] == "*." and name.endswith(one[1:])) for one in allowed_hosts)


STOP_S: Final = 1.0
"""Time for requests in progress to end when the site stops."""
MEMORY_BYTES_MAX: Final = 536_870_912

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
        routes: Sequence[BaseRoute],
        *,
        allowed_hosts: str = "",
        calls: Mapping[str, ASGIApp] | None = None,
        tls: Tls | None = None,
        check_page: CheckPage | None = None,
        verifies_tokens: bool = False,
        budget: MemoryBudget | None = None,
        grpc_connections_max: int = 0,
    ) -> None:
        self._allowed_hosts: Final = allowed_hosts.lower().replace(":*", "").split()
        self._tls: Final = tls
        self._check_page: Final = check_page
        self._calls: Final = {} if calls is None else calls
        self._verifies_tokens: Final = verifies_tokens
        explained = {HTTPStatus.NOT_FOUND: self._not_found, HTTPStatus.METHOD_NOT_ALLOWED: _method_not_allowed}
        self._pages: Final = Starlette(routes=routes, exception_handlers=explained)
        self._state: Final = ServerState()
        memory_bytes_max = MEMORY_BYTES_MAX if budget is None else budget.bytes_max
        self.limits: Final = HttpLimits(memory_bytes_max, grpc_connections_max)
        if budget is not None:
            budget.http = self.limits
        config = self._config()
        self._acceptor: Final = HttpAcceptor(
            lambda: HttpConnection(config, self._state, self.limits),
            self.limits,
            None if tls is None else tls.http_context,
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
        config.timeout_keep_alive = http_connection.KEEPALIVE_TIMEOUT_S  # type: ignore[assignment]  # any number will do
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
        """Return whether the Host header has a name that a foreign name server could resolve to this machine.

        The page and the daemon then have the same origin, so `is_foreign_page` does not detect it. With TLS, the
        certificate would have another name. With verified tokens, the other site would need one.
        """
        if self._tls is not None or is_own_host(header_of(scope, b"host"), self._allowed_hosts):
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
                status = STATUSES[refused.code]
                headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
                return PlainTextResponse(f"{refused.message}\n", status, headers)
        return None


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for a status"
    return wrong_method(request.url.path, request.method, error.headers or {})
