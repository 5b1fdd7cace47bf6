"""Loses a leader as its callers see it: waits that are requested meanwhile, and when the last of them is answered."""

import asyncio
import os
import time
from contextlib import suppress
from typing import Final

from purgatory_client import AsyncClient, errors

from bench.measure.worker import Numbers, on_uvloop, serve

EVERY_S: Final = 0.02
"""Time between two waits."""
BEFORE_S: Final = 0.5
"""How long there are waits before the fault."""
TIMEOUT_S: Final = 300


class Waits:
    """Waits at regular intervals, and reports of the mark that ends them."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Final = client
        self._topic: Final = f"outage-{time.monotonic_ns()}"
        self.taken: Final[list[tuple[float, float]]] = []
        """When each was requested, and answered."""
        self.is_ending = False
        self._offset = 0

    async def run(self) -> None:
        """Request waits until `is_ending`, and await them."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report())
            while not self.is_ending:
                self._offset += 1
                tasks.create_task(self._wait(self._offset))
                await asyncio.sleep(EVERY_S)

    async def _report(self) -> None:
        """One call at a time: those that are refused meanwhile must not keep the processor busy."""
        while not self.is_ending or len(self.taken) < self._offset:
            with suppress(errors.Unavailable):
                await self._client.advance((self._topic, 0), high_watermark=self._offset)
            await asyncio.sleep(EVERY_S)

    async def _wait(self, offset: int) -> None:
        began_s = time.monotonic()
        result = await self._client.produce({(self._topic, 0): offset}, timeout=TIMEOUT_S)
        assert result.satisfied, result
        self.taken.append((began_s, time.monotonic()))


@on_uvloop
async def outage(addresses: str, leader: int, signal_number: int) -> Numbers:
    """Send a signal to the leader. "seconds": until all waits are answered that were requested before the first answer
    of the next leader.
    """
    async with AsyncClient(addresses, give_up_after=None) as client:
        waits = Waits(client)
        running = asyncio.create_task(waits.run())
        first = await epoch(client)
        await asyncio.sleep(BEFORE_S)
        os.kill(leader, signal_number)
        began_s = time.monotonic()
        while await epoch(client) in {first, ""}:  # noqa: ASYNC110 - the daemon cannot set an event
            await asyncio.sleep(EVERY_S)
        led_s = time.monotonic()
        waits.is_ending = True
        await running
    return {"seconds": max(ended_s for asked_s, ended_s in waits.taken if asked_s < led_s) - began_s}


async def epoch(client: AsyncClient) -> str:
    """The epoch of the daemon that answers; empty: none does."""
    with suppress(errors.Unavailable):
        return (await client.status()).fleet.split(", ")[1]
    return ""


if __name__ == "__main__":
    serve({"outage": outage})
