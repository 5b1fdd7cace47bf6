"""The HTTP site beside gRPC: metrics for Prometheus, probes, and a page that links to them.

Liveness (`/healthz`) means that the event loop answers, readiness (`/readyz`) that new work is accepted. They differ
while the daemon shuts down: it must not be restarted then, and not be sent more work.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from google.rpc import code_pb2
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from purgatory import __version__
from purgatory.service.http.http_acceptor import HttpAcceptor
from purgatory.service.rpc.statuses import CallRefused
from purgatory.service.settings import HttpSettings
from purgatory.service.transport.peer import PeerCertificate, of_der
from purgatory.service.transport.tls import Tls

PROBES: Final = frozenset(("/healthz", "/readyz"))
"""Answered without any credential: what probes a daemon has none, and learns nothing but yes or no."""

HTTP_STATUSES: Final = {
    code_pb2.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    code_pb2.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    code_pb2.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Of a page that is refused."""

CheckPage = Callable[[str, str, str | None, str], None]
"""Given path, peer, authorization header and the principal of the client's certificate: raises `CallRefused` for who
may not see the page."""

OPEN_METRICS: Final = "application/openmetrics-text"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PAGE: Final = f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>Purgatory</title></head>
<body>
<h1>Purgatory</h1>
<p>Waits as a service, version {__version__}. This is the HTTP site; operations and events use gRPC.</p>
<ul>
<li><a href="/metrics">/metrics</a>: for Prometheus</li>
<li><a href="/healthz">/healthz</a>: the event loop answers</li>
<li><a href="/readyz">/readyz</a>: new work is accepted</li>
</ul>
</body>
</html>
"""


def is_server_fault(record: logging.LogRecord) -> bool:
    """False for bytes that are not HTTP: aiohttp answers 400 and logs a traceback, and port scanners send many."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


class HttpSite:
    """Serves the site from `start` to `stop`. `is_ready` is called at each probe, `check_page` before each other page.
    With `tls`, over TLS only. `source_states` says how each source fares that the daemon runs itself.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        settings: HttpSettings,
        tls: Tls | None = None,
        check_page: CheckPage | None = None,
        source_states: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._tls: Final = tls
        self._check_page: Final = check_page
        self._registry: Final = registry
        self._is_ready: Final = is_ready
        self._settings: Final = settings
        self._metrics_computed: Final[dict[str, tuple[float, bytes]]] = {}
        """By format: when they were last computed (monotonic seconds), and the page. Computing them holds the event
        loop for milliseconds, which four eager scrapers would make most of its time.
        """
        self._acceptor: HttpAcceptor | None = None
        application = web.Application(middlewares=[self._checks_caller])
        application.router.add_get("/", self._page)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        self._source_states: Final = source_states
        application.router.add_get("/readyz", self._readyz)
        logger = logging.getLogger("aiohttp.server")
        logger.addFilter(is_server_fault)
        self._runner: Final = web.AppRunner(application, access_log=None, logger=logger, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> int:
        """Binds and serves; returns the bound port (`port` 0: any free one). Raises OSError when it cannot bind."""
        await self._runner.setup()
        context = None if self._tls is None else self._tls.http_context()
        server = self._runner.server
        assert server is not None, "the runner is set up"
        self._acceptor = HttpAcceptor(
            server,
            connections_max=self._settings.connections_max,
            read_timeout_s=self._settings.read_timeout_ms / 1_000,
            keepalive_timeout_s=self._settings.keepalive_timeout_ms / 1_000,
            context=context,
        )
        return self._acceptor.start(host, port)

    async def stop(self) -> None:
        if self._acceptor is not None:
            await self._acceptor.stop()
        await self._runner.cleanup()

    @web.middleware
    async def _checks_caller(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in PROBES:
            return await handler(request)
        certified = ""
        if self._tls is not None and self._tls.asks_clients:
            peer = self._certificate(request, self._tls)
            if isinstance(peer, web.Response):
                return peer
            certified = peer.principal
        if self._check_page is not None:
            try:
                caller = request.remote or ""
                self._check_page(request.path, caller, request.headers.get("Authorization"), certified)
            except CallRefused as refused:
                status = HTTP_STATUSES[refused.code]
                headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
                return web.Response(text=f"{refused.message}\n", status=status, headers=headers)
        return await handler(request)

    @staticmethod
    def _certificate(request: web.Request, tls: Tls) -> PeerCertificate | web.Response:
        """The client's certificate, or the answer to who has none that counts."""
        connection = request.get_extra_info("ssl_object")
        der = None if connection is None else connection.getpeercert(binary_form=True)
        if der is None:
            return web.Response(text="a client certificate is needed\n", status=HTTPStatus.FORBIDDEN)
        peer = of_der(der)
        if tls.is_revoked(peer):
            return web.Response(text="this client certificate has been revoked\n", status=HTTPStatus.FORBIDDEN)
        return peer

    async def _page(self, _request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def _metrics(self, request: web.Request) -> web.Response:
        # One of two formats: the library would make one of whatever version a caller names, each computed anew.
        accepted = OPEN_METRICS if OPEN_METRICS in request.headers.get("Accept", "") else ""
        encode, content_type = choose_encoder(accepted)
        now_s = time.monotonic()
        computed_s, page = self._metrics_computed.get(accepted, (-math.inf, b""))
        if now_s - computed_s >= self._settings.metrics_interval_ms / 1_000:
            page = encode(self._registry)
            self._metrics_computed[accepted] = now_s, page
        return web.Response(body=page, headers={"Content-Type": content_type})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        if not self._is_ready():
            return web.Response(text="not ready\n", status=503)
        # A source that cannot see does not make the daemon unready: what else is waited for is served as ever.
        states = "".join(f"source {number}: {state}\n" for number, state in enumerate(self._source_states(), 1))
        return web.Response(text=f"ready\n{states}")
