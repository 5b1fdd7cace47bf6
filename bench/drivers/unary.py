"""Unary calls through the bare stub: a wait that is already satisfied, an empty call, and the condition-based
service.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from purgatory_client.session.channel import open_channel

from bench.drivers.client import Lane, run_lanes
from bench.drivers.messages import mark_request, new_topic, wait_request
from bench.measure.worker import Numbers, measured, on_uvloop, serve
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub


async def repeat(call: Callable[[], Awaitable[object]], callers: int, seconds: float) -> Numbers:
    """Run `callers` concurrent loops, each making one call after another, for a number of seconds."""
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


@on_uvloop
async def wait_satisfied(address: str, callers: int, seconds: float) -> Numbers:
    """`callers` that call `Wait` for a mark that has been passed, for `seconds`."""
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        topic = new_topic()
        await stub.Advance(mark_request(topic, 0, 1_000))
        request = wait_request(topic, 0, 1_000)
        return await repeat(lambda: stub.Wait(request), callers, seconds)


@on_uvloop
async def empty(address: str, callers: int, seconds: float) -> Numbers:
    """The same callers with an empty request and response."""
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        request = wire.AcknowledgeRequest()
        return await repeat(lambda: stub.Acknowledge(request), callers, seconds)


def unary_lane(stub: PurgatoryServiceStub, topic: str, partition: int, batch: int) -> Lane:
    """A lane with one call per wait."""
    return Lane(
        batch,
        lambda offsets: asyncio.gather(*(stub.Wait(wait_request(topic, partition, offset)) for offset in offsets)),
        lambda offset: stub.Advance(mark_request(topic, partition, offset)),
    )


@on_uvloop
async def conditions(address: str, batch: int, lanes: int, seconds: float) -> Numbers:
    """Unary waits on `lanes` keys, `batch` of them completed by each mark, for `seconds`."""
    async with open_channel(address) as channel:
        stub, topic = PurgatoryServiceStub(channel), new_topic()
        return await run_lanes([unary_lane(stub, topic, place, batch) for place in range(lanes)], seconds)


if __name__ == "__main__":
    serve({"wait-satisfied": wait_satisfied, "empty": empty, "conditions": conditions})
