"""Waiting for a condition with a deadline, for what only a look from outside can tell."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from purgatory_client import AsyncClient

DEADLINE_S = 30.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when the condition holds; fails after a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < deadline, f"not so within {DEADLINE_S} s"
        await asyncio.sleep(0.01)


async def until_pending(client: AsyncClient, count: int) -> None:
    """Returns when so many operations are pending at the daemon."""

    async def reached() -> bool:
        return sum(kind.pending for kind in (await client.status()).kinds) == count

    await until(reached)
