"""What a standby serves on the daemon's addresses: its health, its probes, and for every call the leader's address.

A closed port would not do: gRPC's clients need the answer NOT_SERVING to move on from a leader that is only stopped,
and callers with a single address need to learn which one to use.
"""

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from google.rpc import code_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from purgatory.extensions.fleet.fleet_view import STANDING_BY, FleetMetrics, FleetView, fleet_route
from purgatory.listening import bind_grpc, bind_http
from purgatory.service.errors import RpcError, unavailable
from purgatory.service.http.connect_codecs import json_of
from purgatory.service.http.connect_errors import error_response
from purgatory.service.http.monitoring import MetricsPage, probe_routes
from purgatory.service.http.site import HttpSite
from purgatory.service.rpc.grpc_options import server_options
from purgatory.service.rpc.handlers import SERVICE
from purgatory.service.settings import Settings
from purgatory.service.transport.tls import Tls

GET_TOPOLOGY: Final = "GetTopology"
HEALTH: Final = f"/{health.SERVICE_NAME}/"
STOP_S: Final = 0.05
"""Enough for refusals that are on their way. Clients watch the health without end, so a takeover waits this long."""
METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class StandbySite:
    """Serves from `start` to `stop`."""

    def __init__(self, settings: Settings, view: Callable[[], FleetView], topology: Message) -> None:
        """Raises `CannotUseCertificates`."""
        self._settings: Final = settings
        self._view: Final = view
        self._tls: Final = None if settings.tls.certificate_file is None else Tls(settings.tls)
        self._server: Final = grpc.aio.server(options=server_options(settings))
        self._topology: Final = topology
        self._health: Final = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers((_RefuseCalls(self._refusal, self._topology.SerializeToString()),))
        self._http: Final = HttpSite(self._routes(), allowed_hosts=settings.http.allowed_hosts, tls=self._tls)

    async def start(self) -> None:
        """Raises `StartupError` if an address cannot be bound."""
        bind_grpc(self._server, self._settings.grpc.address, self._tls)
        await bind_http(self._http, self._settings.http.address)
        for name in (health.OVERALL_HEALTH, SERVICE.full_name):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def stop(self) -> None:
        await self._http.stop()
        await self._server.stop(STOP_S)

    def _is_ready(self) -> bool:
        return self._view().state == STANDING_BY

    def _refusal(self, path: str = "") -> RpcError:
        leader = self._view().leader
        reason = f"standby; {leader} leads" if leader else "standby; no daemon leads at the moment"
        # A repetition of this call would not help: it must not be repeated at the leader by itself.
        is_hand_over = path == f"/{SERVICE.full_name}/HandOver"
        return RpcError(code_pb2.FAILED_PRECONDITION, reason) if is_hand_over else unavailable(reason)

    def _routes(self) -> list[BaseRoute]:
        async def refuse(request: Request) -> Response:
            return error_response(self._refusal(request.url.path))

        registry = CollectorRegistry()
        registry.register(FleetMetrics(self._view))

        async def tell_topology(request: Request) -> Response:
            is_json = "proto" not in request.headers.get("content-type", "")
            content = json_of(self._topology) if is_json else self._topology.SerializeToString()
            return Response(content, media_type=f"application/{'json' if is_json else 'proto'}")

        return [
            Route(f"/{SERVICE.full_name}/{GET_TOPOLOGY}", tell_topology, methods=["GET", "POST"]),
            # Ready as a standby: rollouts and disruption budgets would otherwise wait for it forever.
            *probe_routes(self._is_ready, lambda: ["standby"], lambda: self._refusal().message),
            fleet_route(self._view),
            *MetricsPage(registry).routes(),
            Route("/{path:path}", refuse, methods=METHODS),
        ]


class _RefuseCalls(grpc.GenericRpcHandler):
    """Ends every call except those of the health service and `GetTopology`."""

    def __init__(self, refusal: Callable[[str], RpcError], topology: bytes) -> None:
        self._refusal: Final = refusal
        self._topology: Final = topology

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if details.method == f"/{SERVICE.full_name}/{GET_TOPOLOGY}":
            return grpc.unary_unary_rpc_method_handler(self._tell_topology)
        if details.method.startswith(HEALTH):
            return None

        async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            await context.abort_with_status(self._refusal(details.method).to_grpc())

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def _tell_topology(self, _request: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return self._topology
