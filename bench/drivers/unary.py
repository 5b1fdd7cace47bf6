"""Unary calls through the bare stub: a wait that already holds, the empty call, and the conditions of most people."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import uvloop
from purgatory_client.session.channel import open_channel

from bench.drivers.client import TIMEOUT_MS, new_topic
from bench.measure.worker import Numbers, Parameters, measured, serve
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

Call = Callable[[], Awaitable[object]]


def wait_request(topic: str, partition: int, offset: int) -> wire.WaitRequest:
    name = operation_pb2.TopicPartition(topic=topic, partition=partition)
    item = operation_pb2.ProducePartition(topic_partition=name, required_offset=offset)
    return wire.WaitRequest(
        operation=operation_pb2.Operation(timeout_ms=TIMEOUT_MS, produce=operation_pb2.Produce(partitions=[item]))
    )


def mark_request(topic: str, partition: int, offset: int) -> wire.AdvanceRequest:
    name = operation_pb2.TopicPartition(topic=topic, partition=partition)
    event = event_pb2.Event(topic_partition=name, high_watermark=event_pb2.HighWatermark(offset=offset))
    return wire.AdvanceRequest(rows=event_pb2.EventRows(events=[event]))


async def repeat(call: Call, callers: int, seconds: float) -> Numbers:
    """So many callers, each making one call after the other, for a time."""
    ended = 0

    async def go_on(end_s: float) -> None:
        nonlocal ended
        while time.perf_counter() < end_s:
            await call()
            ended += 1

    await call()
    started = time.perf_counter()
    await asyncio.gather(*(go_on(started + seconds) for _ in range(callers)))
    return measured(time.perf_counter() - started, ended)


def wait_satisfied(parameters: Parameters) -> Numbers:
    """`callers` that call `Wait` for a mark that has been passed, for `seconds`."""

    async def run() -> Numbers:
        async with open_channel(parameters.text("address")) as channel:
            stub = PurgatoryServiceStub(channel)
            topic = new_topic()
            await stub.Advance(mark_request(topic, 0, 1_000))
            request = wait_request(topic, 0, 1_000)
            return await repeat(lambda: stub.Wait(request), parameters.integer("callers"), parameters.number("seconds"))

    return uvloop.run(run())


def empty(parameters: Parameters) -> Numbers:
    """The same callers with a call that is empty both ways."""

    async def run() -> Numbers:
        async with open_channel(parameters.text("address")) as channel:
            stub = PurgatoryServiceStub(channel)
            request = wire.AcknowledgeRequest()
            return await repeat(
                lambda: stub.Acknowledge(request), parameters.integer("callers"), parameters.number("seconds")
            )

    return uvloop.run(run())


class UnaryLane:
    """Waits on one key, one call for each, completed `batch` at a time."""

    def __init__(self, stub: PurgatoryServiceStub, topic: str, partition: int, batch: int) -> None:
        self._stub: Final = stub
        self._topic: Final = topic
        self._partition: Final = partition
        self._batch: Final = batch
        self.ended = 0

    async def run(self, end_s: float) -> None:
        offset = 0
        before = self._register(offset)
        while time.perf_counter() < end_s:
            offset += self._batch
            after = self._register(offset)
            await asyncio.sleep(0)
            await self._stub.Advance(mark_request(self._topic, self._partition, offset))
            await asyncio.gather(*before)
            self.ended += self._batch
            before = after
        await self._stub.Advance(mark_request(self._topic, self._partition, offset + self._batch))
        await asyncio.gather(*before)

    def _register(self, offset: int) -> list[Awaitable[object]]:
        offsets = range(offset + 1, offset + self._batch + 1)
        return [self._stub.Wait(wait_request(self._topic, self._partition, required)) for required in offsets]


def conditions(parameters: Parameters) -> Numbers:
    """Unary waits on `lanes` keys, `batch` of them completed by each mark, for `seconds`."""
    return uvloop.run(_conditions(parameters))


async def _conditions(parameters: Parameters) -> Numbers:
    batch, lanes, seconds = parameters.integer("batch"), parameters.integer("lanes"), parameters.number("seconds")
    async with open_channel(parameters.text("address")) as channel:
        stub = PurgatoryServiceStub(channel)
        topic = new_topic()
        parts = [UnaryLane(stub, topic, place, batch) for place in range(lanes)]
        started = time.perf_counter()
        await asyncio.gather(*(lane.run(started + seconds) for lane in parts))
        return measured(time.perf_counter() - started, sum(lane.ended for lane in parts))


if __name__ == "__main__":
    serve({"wait-satisfied": wait_satisfied, "empty": empty, "conditions": conditions})
