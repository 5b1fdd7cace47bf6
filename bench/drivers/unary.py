"""Unary calls through the bare stub: a wait that is already satisfied, the same over HTTP/JSON, an empty call, and the
condition-based service.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from google.protobuf import json_format
from purgatory_client.session.channel import open_channel

from bench.drivers.client import Lane, run_lanes
from bench.drivers.messages import mark_request, new_topic, wait_request
from bench.measure.worker import Numbers, measured, on_uvloop, serve
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

SERVICE: Final = wire.DESCRIPTOR.services_by_name["PurgatoryService"].full_name


async def repeat(calls: list[Callable[[], Awaitable[object]]], seconds: float) -> Numbers:
    """Run a loop for each of `calls`, which makes one call after another, for a number of seconds."""
    ended = 0

    async def go_on(call: Callable[[], Awaitable[object]], end_s: float) -> None:
        nonlocal ended
        while time.perf_counter() < end_s:
            await call()
            ended += 1

    await calls[0]()
    started = time.perf_counter()
    await asyncio.gather(*(go_on(call, started + seconds) for call in calls))
    return measured(time.perf_counter() - started, ended)


@on_uvloop
async def wait_satisfied(address: str, callers: int, seconds: float) -> Numbers:
    """`callers` that call `Wait` for a mark that has been passed, for `seconds`."""
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        topic = new_topic()
        await stub.Advance(mark_request(topic, 0, 1_000))
        request = wait_request(topic, 0, 1_000)
        return await repeat([lambda: stub.Wait(request)] * callers, seconds)


@on_uvloop
async def wait_satisfied_json(address: str, http: str, callers: int, seconds: float) -> Numbers:
    """The same over HTTP/1.1 and JSON at `http`, with a connection for each caller."""
    topic = new_topic()
    async with open_channel(address) as channel:
        await PurgatoryServiceStub(channel).Advance(mark_request(topic, 0, 1_000))
    body = json_format.MessageToJson(wait_request(topic, 0, 1_000), indent=None).encode()
    head = f"POST /{SERVICE}/Wait HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    host, _, port = http.rpartition(":")
    connections = [await asyncio.open_connection(host, int(port)) for _ in range(callers)]

    def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Callable[[], Awaitable[object]]:
        async def call() -> None:
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))

        return call

    try:
        return await repeat([caller(*connection) for connection in connections], seconds)
    finally:
        for _, writer in connections:
            writer.close()


@on_uvloop
async def empty(address: str, callers: int, seconds: float) -> Numbers:
    """The same callers with an empty request and response."""
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        request = wire.AcknowledgeRequest()
        return await repeat([lambda: stub.Acknowledge(request)] * callers, seconds)


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
    serve(
        {
            "wait-satisfied": wait_satisfied,
            "wait-satisfied-json": wait_satisfied_json,
            "empty": empty,
            "conditions": conditions,
        }
    )
