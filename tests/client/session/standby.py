"""A daemon that stands by: it reports NOT_SERVING, and refuses all other calls, as long as another one leads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from purgatory.v1 import purgatory_service_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["PurgatoryService"].full_name
REFUSAL = "standby; a leads"


class _RefuseAll(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_stream_rpc_method_handler(_refuse) if details.method.startswith(f"/{SERVICE}/") else None


async def _refuse(_requests: object, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, REFUSAL)


@asynccontextmanager
async def standby(address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Stand by at an address, which is returned with its port. Nothing listens there afterwards."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 500)])
    port = server.add_insecure_port(address)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    server.add_generic_rpc_handlers((_RefuseAll(),))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
