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
    """Waits at regular intervals. Each is answered by a mark that is reported right after it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Final = client
        self._topic: Final = f"outage-{time.monotonic_ns()}"
        self.taken: Final[list[tuple[float, float]]] = []
        """When each was requested, and answered."""
        self.is_ending = False

    async def run(self) -> None:
        """Request waits until `is_ending`, and await them."""
        offset = 0
        async with asyncio.TaskGroup() as requested:
            while not self.is_ending:
                offset += 1
                requested.create_task(self._one(offset))
                await asyncio.sleep(EVERY_S)

    async def _one(self, offset: int) -> None:
        began_s = time.monotonic()
        waiting = asyncio.create_task(self._client.produce({(self._topic, 0): offset}, timeout=TIMEOUT_S))
        while True:
            with suppress(errors.Unavailable):
                await self._client.advance((self._topic, 0), high_watermark=offset)
                break
            await asyncio.sleep(EVERY_S)
        result = await waiting
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
        first = (await client.status()).fleet.split(", ")[1]
        await asyncio.sleep(BEFORE_S)
        os.kill(leader, signal_number)
        began_s = time.monotonic()
        while True:
            with suppress(errors.Unavailable):
                if (await client.status()).fleet.split(", ")[1] != first:
                    break
            await asyncio.sleep(EVERY_S)
        led_s = time.monotonic()
        waits.is_ending = True
        await running
    return {"seconds": max(ended_s for asked_s, ended_s in waits.taken if asked_s < led_s) - began_s}


if __name__ == "__main__":
    serve({"outage": outage})
