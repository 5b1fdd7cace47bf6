"""Calls of the standard services are counted too, by the status that their own code has set."""

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from purgatory.service.fair_queue import FairQueue
from purgatory.service.rpc.call_gate import CallGate
from purgatory.service.rpc.handlers import add_standard_service
from purgatory.service.settings import LimitsSettings


async def test_a_call_that_a_standard_service_aborts() -> None:
    server, gate, registry = grpc.aio.server(), CallGate(FairQueue(), LimitsSettings()), CollectorRegistry()
    service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    add_standard_service(health.aio.HealthServicer(), server, gate, service)
    registry.register(gate.counts)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest(service="unknown"))
        await stub.Check(health_pb2.HealthCheckRequest())
    await server.stop(0)
    for code in ("OK", "NOT_FOUND"):
        labels = {"method": "Health/Check", "code": code}
        assert registry.get_sample_value("purgatory_calls_ended_total", labels) == 1, code
