"""A job that passes its result, or the reason of its failure, to every caller that waits for it, now or later.

The worker signals the key of its job, with a value or as failed. The first value is kept with the key, so a waiter may
come before or after the signal.

Prints:
    total: job done, 17 rows
    late: job done, 17 rows
    refund: failed, card 4711 was declined
"""

import asyncio
import json
import os

from purgatory_client import AsyncClient, Outcome

ADDRESS = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")


async def result_of(client: AsyncClient, job: str) -> str:
    """The value of a job, once it has ended."""
    result = await client.signal([job], timeout=30)
    text = result.partitions[job].signal_value.decode()
    if result.outcome is Outcome.FAILED:
        return f"failed, {text}"
    return f"job done, {json.loads(text)['rows']} rows"


async def main() -> None:
    """A worker and its waiters; in this example they are the same program."""
    async with AsyncClient(ADDRESS) as client:
        early = asyncio.create_task(result_of(client, "total"))
        await client.signal_key("total", value=json.dumps({"rows": 17}).encode())
        print("total:", await early)
        await client.signal_key("total", value=b"the first value wins, so this one is not seen")
        print("late:", await result_of(client, "total"))
        await client.signal_key("refund", value=b"card 4711 was declined", failed=True)
        print("refund:", await result_of(client, "refund"))


if __name__ == "__main__":
    asyncio.run(main())
