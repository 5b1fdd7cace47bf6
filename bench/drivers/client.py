"""Loads a daemon or the echo server through our own client: batches as columns, and waits awaited one by one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from purgatory_client import AsyncClient, Outcome, events

from bench.drivers.messages import TIMEOUT_MS, new_topic
from bench.measure.worker import Numbers, measured, on_uvloop, serve
from purgatory.service.budget import garbage

MARKS_PER_STEP: Final = 10


class Lane:
    """Batches on one partition; one more batch is always registered than has been completed.

    `register` waits for some offsets and returns when all have been reached; `advance` raises the partition's mark.
    """

    def __init__(
        self, batch: int, register: Callable[[range], Awaitable[object]], advance: Callable[[int], Awaitable[object]]
    ) -> None:
        self._batch: Final = batch
        self._register: Final = register
        self._advance: Final = advance
        self.ended = 0

    async def run(self, end_s: float, interval_s: float = 0.0) -> None:
        """Register, advance and collect until `end_s`, with at most one batch per interval."""
        loop = asyncio.get_running_loop()
        offset = 0
        next_s = loop.time()
        before = self._registered(offset)
        while time.perf_counter() < end_s:
            offset += self._batch
            after = self._registered(offset)
            await asyncio.sleep(0)
            await self._advance(offset)
            await before
            self.ended += self._batch
            before = after
            if interval_s:
                next_s += interval_s
                await asyncio.sleep(max(0.0, next_s - loop.time()))
        await self._advance(offset + self._batch)
        await before

    def _registered(self, offset: int) -> Awaitable[object]:
        return asyncio.ensure_future(self._register(range(offset + 1, offset + self._batch + 1)))


async def run_lanes(lanes: Sequence[Lane], seconds: float, interval_s: float = 0.0) -> Numbers:
    """Run all lanes concurrently for a number of seconds."""
    started = time.perf_counter()
    await asyncio.gather(*(lane.run(started + seconds, interval_s) for lane in lanes))
    return measured(time.perf_counter() - started, sum(lane.ended for lane in lanes))


def lane_of(client: AsyncClient, partition: tuple[str, int], batch: int) -> Lane:
    async def register(offsets: range) -> None:
        result = await client.produce_many([partition], offsets=offsets, timeouts_ms=[TIMEOUT_MS])
        assert result.outcomes.count(Outcome.SATISFIED) == batch, "not all of a batch were satisfied"

    return Lane(batch, register, lambda offset: client.advance_many([events.high_watermark(partition, offset)]))


@on_uvloop
async def columns(address: str, batch: int, lanes: int, seconds: float, rate: float = 0.0) -> Numbers:
    """Batches of `batch` single-partition produce waits on `lanes` partitions, for `seconds`.

    `rate` limits the operations registered per second; 0: no limit.
    """
    garbage.tune()
    async with AsyncClient(address) as client:
        topic = new_topic()
        await lane_of(client, (topic, lanes), batch).run(time.perf_counter())  # connects
        interval_s = batch * lanes / rate if rate else 0.0
        return await run_lanes([lane_of(client, (topic, place), batch) for place in range(lanes)], seconds, interval_s)


class Waiters:
    """Waits on one partition that callers await one by one."""

    def __init__(self, client: AsyncClient, partition: tuple[str, int]) -> None:
        self._client: Final = client
        self._partition: Final = partition
        self.issued = 0
        self.ended = 0
        self.stopped = False

    async def wait_on(self) -> None:
        """One caller: waits for the next offset, repeatedly."""
        produce, partition = self._client.produce, self._partition
        while not self.stopped:
            self.issued += 1
            await produce({partition: self.issued}, timeout=TIMEOUT_MS / 1_000)
            self.ended += 1

    async def advance(self, in_flight: int) -> None:
        """Raise the mark by a tenth of `in_flight` whenever `in_flight` waits above the mark have been issued."""
        step = max(1, in_flight // MARKS_PER_STEP)
        mark = 0
        while not self.stopped:
            while self.issued - mark < in_flight and not self.stopped:  # noqa: ASYNC110 - a turn of the loop each
                await asyncio.sleep(0)
            mark += step
            await self._client.advance_many([events.high_watermark(self._partition, mark)])
        await self._client.advance_many([events.high_watermark(self._partition, self.issued + in_flight)])


@on_uvloop
async def individual(address: str, in_flight: int, seconds: float) -> Numbers:
    """`in_flight` concurrent callers, each awaiting one `client.produce` after another, for `seconds`."""
    garbage.tune()
    async with AsyncClient(address) as client:
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
