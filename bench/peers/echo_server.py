"""An echo server for the same messages without a purgatory: the cost of gRPC, protobuf and the client alone.

It answers each registration at once with a receipt and with results as large as the daemon's, each batch of events with
a receipt, a heartbeat with a heartbeat, and unary calls with empty messages.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from bench.drivers.messages import echoed
from bench.peers.grpc_server import serve_until_signal
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceServicer

# ruff: noqa: N802, ARG002 - methods have the names and arguments of the calls

Context = grpc.aio.ServicerContext[Any, Any]
BATCH_MAX = 100_000


class EchoServicer(PurgatoryServiceServicer):
    async def Session(self, requests: AsyncIterator[wire.SessionRequest], context: Context) -> None:
        """Answer each message with one or two messages."""
        sequence = 1
        async for request in requests:
            message = request.WhichOneof("message")
            if message == "register":
                batch = request.register
                count = len(batch.columns.operation_id)
                highest = batch.columns.operation_id[-1]
                receipt = wire.Receipt(batch_id=batch.batch_id, highest_operation_id=highest, accepted=count)
                await context.write(wire.SessionResponse(receipt=receipt))
                results = wire.ResultBatch(first_sequence=sequence, columns=echoed(batch))
                await context.write(wire.SessionResponse(results=results))
                sequence += count
            elif message == "heartbeat":
                await context.write(wire.SessionResponse(heartbeat=request.heartbeat))
            elif message == "open":
                opened = wire.SessionOpened(
                    heartbeat_interval_ms=10_000,
                    session_ttl_ms=600_000,
                    operations_per_batch_max=BATCH_MAX,
                    unacknowledged_results_max=1_000_000,
                )
                await context.write(wire.SessionResponse(opened=opened))

    async def Advance(self, request: wire.AdvanceRequest, context: Context) -> wire.AdvanceResponse:
        """A receipt for all events."""
        return wire.AdvanceResponse(receipt=_advanced(request))

    async def AdvanceStream(self, requests: AsyncIterator[wire.AdvanceStreamRequest], context: Context) -> None:
        async for request in requests:
            await context.write(wire.AdvanceStreamResponse(receipt=_advanced(request)))

    async def Acknowledge(self, request: wire.AcknowledgeRequest, context: Context) -> wire.AcknowledgeResponse:
        return wire.AcknowledgeResponse()


def _advanced(request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
    count = len(request.columns.type) or len(request.rows.events)
    return wire.AdvanceReceipt(ended=[0] * count)


if __name__ == "__main__":
    serve_until_signal(EchoServicer())
