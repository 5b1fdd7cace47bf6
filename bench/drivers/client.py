"""Loads a daemon through our own client: batches as columns, and waits awaited one by one. The echo server too."""

import asyncio
import itertools
import time
from typing import Final

import uvloop
from purgatory_client import AsyncClient, Outcome, events

from bench.measure.worker import Numbers, Parameters, measured, serve
from purgatory.service import garbage
from purgatory.service.settings import GcSettings

TIMEOUT_S: Final = 600.0
TIMEOUT_MS: Final = 600_000
MARKS_PER_STEP: Final = 10
TOPIC_NUMBERS: Final = itertools.count(time.monotonic_ns())
"""A topic for each run: the marks of the run before are still known to the daemon."""


def new_topic() -> str:
    return f"run-{next(TOPIC_NUMBERS)}"


class Lane:
    """Batches on one partition, always one more registered than has been completed."""

    def __init__(self, client: AsyncClient, partition: tuple[str, int], batch: int) -> None:
        self._client: Final = client
        self._partition: Final = partition
        self._batch: Final = batch
        self.ended = 0

    async def run(self, end_s: float, interval_s: float = 0.0) -> None:
        """Registers, advances and collects until `end_s`; at most one batch in each interval."""
        loop = asyncio.get_running_loop()
        client, batch, offset = self._client, self._batch, 0
        next_s = loop.time()
        before = self._register(offset)
        while time.perf_counter() < end_s:
            offset += batch
            after = self._register(offset)
            await asyncio.sleep(0)
            await client.advance_many([events.high_watermark(self._partition, offset)])
            result = await before
            assert result.outcomes.count(Outcome.SATISFIED) == batch, "not all of a batch were satisfied"
            self.ended += batch
            before = after
            if interval_s:
                next_s += interval_s
                await asyncio.sleep(max(0.0, next_s - loop.time()))
        await client.advance_many([events.high_watermark(self._partition, offset + batch)])
        await before

    def _register(self, offset: int) -> asyncio.Task:  # type: ignore[type-arg]
        offsets = range(offset + 1, offset + self._batch + 1)
        call = self._client.produce_many([self._partition], offsets=offsets, timeouts_ms=[TIMEOUT_MS])
        return asyncio.create_task(call)


def columns(parameters: Parameters) -> Numbers:
    """Batches of `batch` single-partition produce waits on `lanes` partitions, for `seconds`.

    With `rate` (operations a second) no more than that are registered.
    """
    return uvloop.run(_columns(parameters))


async def _columns(parameters: Parameters) -> Numbers:
    batch, lanes, seconds = parameters.integer("batch"), parameters.integer("lanes"), parameters.number("seconds")
    rate = parameters.number("rate", 0.0)
    interval_s = batch * lanes / rate if rate else 0.0
    garbage.tune(GcSettings())
    async with AsyncClient(parameters.text("address")) as client:
        topic = new_topic()
        await Lane(client, (topic, lanes), batch).run(time.perf_counter())  # connects
        parts = [Lane(client, (topic, place), batch) for place in range(lanes)]
        started = time.perf_counter()
        await asyncio.gather(*(lane.run(started + seconds, interval_s) for lane in parts))
        return measured(time.perf_counter() - started, sum(lane.ended for lane in parts))


class Waiters:
    """Waits on one partition that callers await one by one."""

    def __init__(self, client: AsyncClient, partition: tuple[str, int]) -> None:
        self._client: Final = client
        self._partition: Final = partition
        self.issued = 0
        self.ended = 0
        self.stopped = False

    async def wait_on(self) -> None:
        """One caller: waits for the next offset, again and again."""
        produce, partition = self._client.produce, self._partition
        while not self.stopped:
            self.issued += 1
            await produce({partition: self.issued}, timeout=TIMEOUT_S)
            self.ended += 1

    async def advance(self, in_flight: int) -> None:
        """Raises the mark by a tenth of what is in flight as soon as that many have been issued again."""
        step = max(1, in_flight // MARKS_PER_STEP)
        mark = 0
        while not self.stopped:
            while self.issued - mark < in_flight and not self.stopped:  # noqa: ASYNC110 - a turn of the loop each
                await asyncio.sleep(0)
            mark += step
            await self._client.advance_many([events.high_watermark(self._partition, mark)])
        await self._client.advance_many([events.high_watermark(self._partition, self.issued + in_flight)])


def individual(parameters: Parameters) -> Numbers:
    """`in_flight` callers, each awaiting one `client.produce` after the other, for `seconds`."""
    return uvloop.run(_individual(parameters))


async def _individual(parameters: Parameters) -> Numbers:
    in_flight, seconds = parameters.integer("in_flight"), parameters.number("seconds")
    garbage.tune(GcSettings())
    async with AsyncClient(parameters.text("address")) as client:
        waiters = Waiters(client, (new_topic(), 0))
        callers = [asyncio.create_task(waiters.wait_on()) for _ in range(in_flight)]
        advancing = asyncio.create_task(waiters.advance(in_flight))
        while waiters.ended < in_flight:  # noqa: ASYNC110 - once, before the clock starts
            await asyncio.sleep(0.001)
        before, started = waiters.ended, time.perf_counter()
        await asyncio.sleep(seconds)
        numbers = measured(time.perf_counter() - started, waiters.ended - before)
        waiters.stopped = True
        await asyncio.gather(advancing, *callers)
        return numbers


if __name__ == "__main__":
    serve({"columns": columns, "individual": individual})
