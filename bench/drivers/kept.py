"""Loads a daemon with a journal: receipt times of batches at a steady rate; and filling a session and emptying it
again, possibly at another daemon on the same folder.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Final, cast

import grpc
from purgatory_client.session.channel import OPTIONS, open_channel
from purgatory_client.session.session_driver import Call

from bench.drivers.latency import WARM_UP, percentiles
from bench.drivers.messages import HOUR_MS, acknowledgement, marks_of, new_topic, opening, produce_batch
from bench.measure.worker import Numbers, measured, on_uvloop, serve
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub

PARTITIONS: Final = 10
"""Number of partitions over which a batch at a steady rate is spread."""

FILLING: Final = 5_000
"""Operations per message while a session is filled."""

OFFSET_MAX: Final = 1_000_000


class Steady:
    """Batches at a steady rate. Events end each batch half an interval after it was sent; results are acknowledged
    at once.
    """

    def __init__(self, stub: PurgatoryServiceStub, batch: int, turns: int, interval_s: float) -> None:
        self.taken: Final[list[float]] = []
        """Seconds from writing each batch to its receipt."""
        self._topic: Final = new_topic()
        self._session: Final = cast("Call", stub.Session())
        self._events: Final = stub.AdvanceStream()
        self._batch: Final = batch
        self._turns: Final = turns
        self._interval_s: Final = interval_s
        self._sent: Final[list[float]] = []
        self._writing: Final = asyncio.Lock()

    async def run(self) -> None:
        """Send all batches and wait for the last result."""
        await self._session.write(opening(self._topic))
        await self._session.read()
        reading = asyncio.create_task(self._read())
        answers = asyncio.create_task(self._read_answers())
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        for turn in range(self._turns):
            batch = produce_batch(
                self._topic,
                PARTITIONS,
                range(turn * self._batch + 1, (turn + 1) * self._batch + 1),
                places=[number % PARTITIONS for number in range(self._batch)],
                offsets=[turn + 1] * self._batch,
                batch_id=turn + 1,
            )
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            self._sent.append(time.perf_counter())
            await self._write(wire.SessionRequest(register=batch))
            marks = marks_of(self._topic, PARTITIONS, turn + 1)
            await asyncio.sleep(max(0.0, next_s + self._interval_s / 2 - loop.time()))
            await self._events.write(wire.AdvanceStreamRequest(columns=marks))
            next_s += self._interval_s
        await reading
        await self._events.done_writing()
        await self._session.done_writing()
        await answers

    async def _write(self, message: wire.SessionRequest) -> None:
        """Write one message at a time, as gRPC requires."""
        async with self._writing:
            await self._session.write(message)

    async def _read(self) -> None:
        """Read receipts and results until all operations have ended."""
        ended = 0
        while ended < self._turns * self._batch:
            message = cast("wire.SessionResponse", await self._session.read())
            if message.HasField("receipt"):
                self.taken.append(time.perf_counter() - self._sent[message.receipt.batch_id - 1])
                assert message.receipt.accepted == self._batch, f"refused: {message.receipt.refusals[:1]}"
            elif message.HasField("results"):
                ended += len(message.results.columns.operation_id)
                await self._write(acknowledgement(message.results))

    async def _read_answers(self) -> None:
        async for _ in self._events:
            pass


@on_uvloop
async def receipts(address: str, batch: int, turns: int, rate: float) -> Numbers:
    """Percentiles of receipt times for `turns` batches of `batch` at `rate` operations per second, after a warm-up."""
    async with open_channel(address) as channel:
        steady = Steady(PurgatoryServiceStub(channel), batch, WARM_UP + turns, batch / rate)
        await steady.run()
    return percentiles(steady.taken[WARM_UP:])


def fill(address: str, count: int, keys: int, name: str) -> Numbers:
    """Register `count` produce waits with random offsets and deadlines on `keys` partitions in the session `name`."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        stub = PurgatoryServiceStub(channel)
        requests = list(filling(name, count, keys))
        started = time.perf_counter()
        accepted = sum(stub.Register(request).receipt.accepted for request in requests)
        seconds = time.perf_counter() - started
    assert accepted == count, f"{accepted} of {count} were accepted"
    return measured(seconds, count)


def filling(name: str, count: int, keys: int) -> Iterator[wire.RegisterRequest]:
    drawn = random.Random(count)
    for first in range(0, count, FILLING):
        numbers = range(first + 1, min(first + FILLING, count) + 1)
        batch = produce_batch(
            name,
            keys,
            numbers,
            places=[drawn.randrange(keys) for _ in numbers],
            offsets=[drawn.randint(1, OFFSET_MAX) for _ in numbers],
            timeouts_ms=[drawn.randint(HOUR_MS, 2 * HOUR_MS) for _ in numbers],
        )
        yield wire.RegisterRequest(session_id=name, batch=batch)


@on_uvloop
async def empty(address: str, count: int, keys: int, name: str) -> Numbers:
    """End all `count` waits that `fill` registered, and acknowledge their results."""
    started = time.perf_counter()
    async with open_channel(address) as channel:
        stub = PurgatoryServiceStub(channel)
        call = cast("Call", stub.Session())
        await call.write(opening(name))
        await stub.Advance(wire.AdvanceRequest(columns=marks_of(name, keys, OFFSET_MAX)))
        ended = 0
        while ended < count:
            message = cast("wire.SessionResponse", await call.read())
            if message.HasField("results"):
                ended += len(message.results.columns.operation_id)
                await call.write(acknowledgement(message.results))
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    return measured(time.perf_counter() - started, ended)


if __name__ == "__main__":
    serve({"receipts": receipts, "fill": fill, "empty": empty})
