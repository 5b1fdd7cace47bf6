"""The client that judges a daemon under attack: 200 waits per second, each satisfied by an event of its own.

`python -m tests.abuse.honest ADDRESS` runs until its standard input closes. Then it prints a line of JSON: for each
wait its start (seconds on the monotonic clock, which all processes share) and its latency or error.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from purgatory_client import AsyncClient, Outcome

WAITS_PER_SECOND: Final = 200
PARTITIONS: Final = 10
TIMEOUT_S: Final = 20.0
"""A wait that is not satisfied by then is lost: its event was pushed immediately."""

Seen = tuple[float, float | str]


async def wait_once(client: AsyncClient, number: int, seen: list[Seen]) -> None:
    """Register one wait, and push the event that satisfies it."""
    partition, offset = f"honest-{number % PARTITIONS}", number // PARTITIONS + 1
    began_s = time.monotonic()
    try:
        wait = asyncio.ensure_future(client.produce({partition: offset}, timeout=TIMEOUT_S))
        await asyncio.sleep(0)  # let the wait be sent first
        await client.advance(partition, high_watermark=offset)
        result = await wait
        assert result.outcome is Outcome.SATISFIED, f"the wait ended as {result.outcome.name}"
    except Exception as error:  # noqa: BLE001 - any error is a result of the honest caller
        seen.append((began_s, f"{type(error).__name__}: {error}"[:200]))
    else:
        seen.append((began_s, (time.monotonic() - began_s) * 1_000))


async def judge(address: str, ready: Callable[[], object], ended: asyncio.Future[Any]) -> list[Seen]:
    """Call `ready` once connected, then wait at a steady rate, whatever the latency, until `ended` is done."""
    seen: list[Seen] = []
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    async with AsyncClient(address, name="honest") as client:
        await client.status()
        ready()
        start_s, number = loop.time(), 0
        while not ended.done():
            task = asyncio.create_task(wait_once(client, number, seen))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
            await asyncio.sleep(max(0.0, start_s + number / WAITS_PER_SECOND - loop.time()))
        await asyncio.gather(*tasks)
    return seen


def percentile(latencies_ms: list[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(latencies_ms)[int(len(latencies_ms) * share)] if latencies_ms else 0.0


async def main(address: str) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps(await judge(address, lambda: print("ready", flush=True), ended)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
