"""The least that an event and its result can cost: what arrives on one bare stream is answered on another.

`Session` only keeps its stream open. Each message of `AdvanceStream` makes the server write one message to the session
opened last, with nothing in between: no engine, no decoding of events, no receipt.
"""

from typing import Any

import grpc.aio

from bench.peers.grpc_server import serve_until_signal
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceServicer

# ruff: noqa: N802, ARG002 - methods have the names and arguments of the calls

Context = grpc.aio.ServicerContext[Any, Any]


class RelayServicer(PurgatoryServiceServicer):
    def __init__(self) -> None:
        self._session: Context | None = None

    async def Session(self, requests: object, context: Context) -> None:
        self._session = context
        while await context.read() is not grpc.aio.EOF:
            await context.write(wire.SessionResponse(heartbeat=wire.Heartbeat()))

    async def AdvanceStream(self, requests: object, context: Context) -> None:
        answer = wire.SessionResponse(heartbeat=wire.Heartbeat())
        while await context.read() is not grpc.aio.EOF:
            assert self._session is not None, "an event arrived before a session was opened"
            await self._session.write(answer)


if __name__ == "__main__":
    serve_until_signal(RelayServicer())
