"""Single latencies: from an event to the result at its caller, compared with a ping on a bidirectional stream."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from purgatory_client import AsyncClient, errors, events
from purgatory_client.session.channel import open_channel

from bench.drivers.messages import (
    TIMEOUT_MS,
    acknowledgement,
    mark_request,
    marks_of,
    new_topic,
    opening,
    produce_batch,
)
from bench.measure.worker import Numbers, on_uvloop, serve
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

WARM_UP: Final = 50
POLL_S: Final = 0.000_2
ROUND: Final = 250
"""Waits that are registered together before events end them one by one."""


def percentiles(seconds: Sequence[float]) -> Numbers:
    """Median and 99th percentile in microseconds, and the number of samples."""
    ordered = sorted(seconds)
    return {
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e6,
        "operations": float(len(ordered)),
    }


@on_uvloop
async def event_to_result(address: str, count: int) -> Numbers:
    """Measure `count` times: a wait is pending, an event is sent, the result arrives. Measured from sending to arrival.

    The waits of a round are registered beforehand, so a round contains only events and results, one after another, just
    as `ping` contains only pings.
    """
    partition = (new_topic(), 0)
    taken: list[float] = []
    async with AsyncClient(address) as client:
        while len(taken) < WARM_UP + count:
            offsets = range(len(taken) + 1, min(len(taken) + ROUND, WARM_UP + count) + 1)
            waits = [
                asyncio.create_task(client.produce({partition: offset}, timeout=TIMEOUT_MS / 1_000))
                for offset in offsets
            ]
            await until_watched(client, partition, len(waits))
            for offset, waiting in zip(offsets, waits, strict=True):
                started = time.perf_counter()
                sending = asyncio.create_task(client.advance_many([events.high_watermark(partition, offset)]))
                await waiting
                taken.append(time.perf_counter() - started)
                await sending
    return percentiles(taken[WARM_UP:])


async def until_watched(client: AsyncClient, partition: tuple[str, int], count: int) -> None:
    """Return when `count` waits watch the partition at the daemon."""
    while True:
        try:
            if (await client.partition(partition)).watched == count:
                return
        except errors.NotFound:
            pass  # the daemon does not know the partition yet
        await asyncio.sleep(POLL_S)


@on_uvloop
async def ping(address: str, count: int) -> Numbers:
    """Measure `count` times: an empty message on a bidirectional stream, and its answer."""
    taken: list[float] = []
    message = wire.SessionRequest(heartbeat=wire.Heartbeat())
    async with open_channel(address) as channel:
        call = PurgatoryServiceStub(channel).Session()
        for _ in range(WARM_UP + count):
            started = time.perf_counter()
            await call.write(message)
            await call.read()
            taken.append(time.perf_counter() - started)
        await call.done_writing()
    return percentiles(taken[WARM_UP:])


@on_uvloop
async def wire_to_wire(address: str, count: int) -> Numbers:
    """`event_to_result` without our client: the event is written to one bare stream, the result read from another."""
    topic, taken = new_topic(), list[float]()
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        session, sent = stub.Session(), stub.AdvanceStream()
        await session.write(opening(topic))
        await session.read()
        while len(taken) < WARM_UP + count:
            ids = range(len(taken) + 1, min(len(taken) + ROUND, WARM_UP + count) + 1)
            batch = produce_batch(topic, 1, ids, places=[0], offsets=ids)
            await session.write(wire.SessionRequest(register=batch))
            await session.read()  # the receipt
            for offset in ids:
                event = wire.AdvanceStreamRequest(columns=marks_of(topic, 1, offset))
                started = time.perf_counter()
                await sent.write(event)
                answer = await session.read()
                taken.append(time.perf_counter() - started)
                await sent.read()  # the receipt of the event
            await session.write(acknowledgement(answer.results))
        await sent.done_writing()
        await session.done_writing()
    return percentiles(taken[WARM_UP:])


@on_uvloop
async def relay(address: str, count: int) -> Numbers:
    """The floor for `wire_to_wire`: a message is written to one stream, and a bare server answers on another."""
    taken: list[float] = []
    opened = wire.SessionRequest(heartbeat=wire.Heartbeat())
    event = wire.AdvanceStreamRequest(columns=marks_of(new_topic(), 1, 1))
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        session, sent = stub.Session(), stub.AdvanceStream()
        await session.write(opened)
        await session.read()
        for _ in range(WARM_UP + count):
            started = time.perf_counter()
            await sent.write(event)
            await session.read()
            taken.append(time.perf_counter() - started)
        await sent.done_writing()
        await session.done_writing()
    return percentiles(taken[WARM_UP:])


@on_uvloop
async def advances(address: str, interval_ms: int, start_s: float, seconds: float) -> Numbers:
    """Call `Advance` with one mark every `interval_ms` for `seconds`, and measure the time to each answer.

    `start_s` is the start time on the machine's monotonic clock.
    """
    topic = new_topic()
    taken: list[float] = []
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        await stub.Advance(mark_request(topic, 0, 1))
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, start_s - time.monotonic()))
        next_s = loop.time()
        end_s = next_s + seconds
        while next_s < end_s:
            request = mark_request(topic, 0, len(taken) + 2)
            started = time.perf_counter()
            await stub.Advance(request)
            taken.append(time.perf_counter() - started)
            next_s += interval_ms / 1_000
            await asyncio.sleep(max(0.0, next_s - loop.time()))
    return percentiles(taken)


if __name__ == "__main__":
    serve(
        {
            "event-to-result": event_to_result,
            "wire-to-wire": wire_to_wire,
            "relay": relay,
            "ping": ping,
            "advances": advances,
        }
    )
