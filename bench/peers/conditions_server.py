"""A hand-written service: a unary call per wait, an `asyncio.Condition` per key, and `notify_all`."""

import asyncio
from collections import defaultdict
from typing import Any, Final

import grpc.aio

from bench.peers.grpc_server import serve_until_signal
from purgatory.v1 import event_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceServicer

# ruff: noqa: N802, ARG002 - methods have the names and arguments of the calls

Context = grpc.aio.ServicerContext[Any, Any]
Key = tuple[str, int]


class ConditionsServicer(PurgatoryServiceServicer):
    def __init__(self) -> None:
        self._marks: Final[defaultdict[Key, int]] = defaultdict(int)
        self._conditions: Final[defaultdict[Key, asyncio.Condition]] = defaultdict(asyncio.Condition)

    async def Wait(self, request: wire.WaitRequest, context: Context) -> wire.WaitResponse:
        """Answer when the mark of the operation's only partition has reached the required offset, or at its timeout."""
        operation = request.operation
        item = operation.produce.partitions[0]
        key = (item.topic_partition.topic, item.topic_partition.partition)
        condition, marks = self._conditions[key], self._marks
        outcome = result_pb2.OUTCOME_SATISFIED
        try:
            async with asyncio.timeout(operation.timeout_ms / 1_000), condition:
                await condition.wait_for(lambda: marks[key] >= item.required_offset)
        except TimeoutError:
            outcome = result_pb2.OUTCOME_EXPIRED
        return wire.WaitResponse(result=result_pb2.Result(operation_id=operation.operation_id, outcome=outcome))

    async def Advance(self, request: wire.AdvanceRequest, context: Context) -> wire.AdvanceResponse:
        for event in request.rows.events:
            await self._raise(event)
        return wire.AdvanceResponse(receipt=wire.AdvanceReceipt(ended=[0] * len(request.rows.events)))

    async def _raise(self, event: event_pb2.Event) -> None:
        key = (event.topic_partition.topic, event.topic_partition.partition)
        if event.high_watermark.offset > self._marks[key]:
            self._marks[key] = event.high_watermark.offset
            async with self._conditions[key]:
                self._conditions[key].notify_all()


if __name__ == "__main__":
    serve_until_signal(ConditionsServicer())
