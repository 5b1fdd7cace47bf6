"""Cut over from blue to green: pause writes, wait until green has all of them, and switch; or stay on blue.

The wait is short, because writes are paused while it lasts. It fails at once if green reports that it is unhealthy. In
this recipe the program reports green's position itself; a source reports that of a consumer group or a database.

Prints:
    green is unhealthy: staying on blue
    green is 3 short of 42: staying on blue
    green has everything up to 42: switched
"""

import asyncio
import os

from purgatory_client import AsyncClient, Outcome, mark, signal

GREEN = "shop/green-0"


async def cut_over(client: AsyncClient, written: int, attempt: str, pause: float) -> bool:
    """Switch if green reaches what is written within `pause` seconds. Writes are paused from here..."""
    healthy = signal(f"shop/green/unhealthy/{attempt}")
    result = await client.wait(mark(GREEN, written), unless=healthy, timeout=pause)
    if result.outcome is Outcome.SATISFIED:
        print(f"green has everything up to {written}: switched")
    elif result.outcome is Outcome.FAILED:
        print("green is unhealthy: staying on blue")
    else:
        print(f"green is {written - result.partitions[GREEN].reached_offset} short of {written}: staying on blue")
    return result.outcome is Outcome.SATISFIED  # ... to here


async def main() -> None:
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        await client.advance(GREEN, high_watermark=39)
        await client.signal_key("shop/green/unhealthy/monday")
        await cut_over(client, 42, "monday", pause=5)
        await cut_over(client, 42, "tuesday", pause=0.2)
        switching = asyncio.create_task(cut_over(client, 42, "wednesday", pause=30))
        await client.advance(GREEN, high_watermark=42)
        await switching


if __name__ == "__main__":
    asyncio.run(main())
