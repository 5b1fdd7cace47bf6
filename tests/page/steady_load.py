"""A steady load of waits for screenshots of the page: most are satisfied, some expire, in a constant proportion."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from purgatory_client import AsyncClient, events

from tests.kit.daemon import daemon_environment

TOPIC: Final = "clicks"
PARTITIONS: Final = 12
STEP_S: Final = 0.04
WAITS_PER_STEP: Final = 12
MARK_PER_STEP: Final = 8
AHEAD_MAX: Final = 500
"""Maximum distance between a partition's mark and a required offset: 2.5 s at that pace."""
TIMEOUT_MS_MIN: Final = 300
TIMEOUT_MS_MAX: Final = 60_000


@contextmanager
def steady_load(address: str) -> Iterator[None]:
    """Load the daemon from a separate process until the block ends."""
    command = [sys.executable, "-m", "tests.page.steady_load", address]
    with subprocess.Popen(command, env=daemon_environment()) as process:
        try:
            yield
            assert process.poll() is None, f"the load ended by itself, with {process.returncode}"
        finally:
            process.terminate()


async def load(address: str) -> None:
    """Continue until the process ends."""
    chance, mark = random.Random(42), 10_000
    partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
    async with AsyncClient(address, name="storefront") as client:
        waits = set[asyncio.Task[object]]()
        while True:
            mark += MARK_PER_STEP
            places = [min(int(chance.expovariate(0.4)), PARTITIONS - 1) for _ in range(WAITS_PER_STEP)]
            offsets = [mark + chance.randint(1, AHEAD_MAX) for _ in places]
            span = TIMEOUT_MS_MAX / TIMEOUT_MS_MIN
            timeouts_ms = [round(TIMEOUT_MS_MIN * span ** chance.random()) for _ in places]
            batch = client.produce_many(partitions, indexes=places, offsets=offsets, timeouts_ms=timeouts_ms)
            wait: asyncio.Task[object] = asyncio.create_task(batch)
            waits.add(wait)
            wait.add_done_callback(waits.discard)
            await client.advance_many([events.high_watermark(partition, mark) for partition in partitions])
            await asyncio.sleep(STEP_S)


if __name__ == "__main__":
    asyncio.run(load(sys.argv[1]))
