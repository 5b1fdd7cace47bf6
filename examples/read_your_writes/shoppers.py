"""Shoppers: each places an order, and reads it back at once."""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import aiohttp

from examples.read_your_writes.shop import TOKEN

SHOPPERS: Final = 8
PAUSE_S: Final = 0.02


@dataclass
class Shopped:
    """Counts of the shoppers' reads."""

    reads: int = 0
    stale: int = 0
    """Reads that did not find the order."""
    refused: int = 0
    """Reads that were answered with "not yet"."""
    read_ms: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        """One row of the table."""
        late = statistics.quantiles(self.read_ms, n=100)[98]
        return f"{name:<14}{self.reads:>8}{self.stale:>8}{statistics.median(self.read_ms):>10.1f}{late:>10.1f}"


HEADING: Final = f"{'':<14}{'reads':>8}{'stale':>8}{'p50 ms':>10}{'p99 ms':>10}"


async def shop_for(seconds: float, url: str, *, waits: bool) -> Shopped:
    """Write and read for a number of seconds. `waits`: whether the read sends the token of the write."""
    seen, until = Shopped(), time.monotonic() + seconds
    async with aiohttp.ClientSession(url) as session, asyncio.TaskGroup() as group:
        for _ in range(SHOPPERS):
            group.create_task(_shopper(session, until, seen, waits=waits))
    return seen


async def _shopper(session: aiohttp.ClientSession, until: float, seen: Shopped, *, waits: bool) -> None:
    while time.monotonic() < until:
        path = f"/orders/{uuid4().hex}"
        async with session.post(path) as placed:
            placed.raise_for_status()
            headers = {TOKEN: placed.headers[TOKEN]} if waits else {}
        began = time.perf_counter()
        async with session.get(path, headers=headers) as answer:
            seen.read_ms.append((time.perf_counter() - began) * 1_000)
            seen.reads += 1
            seen.stale += answer.status == 404
            seen.refused += answer.status == 503
        await asyncio.sleep(PAUSE_S)
