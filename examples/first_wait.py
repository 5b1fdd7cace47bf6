"""The smallest use: wait for an offset, let somebody else reach it. Needs a daemon (`make run`) on its default port.

python examples/first_wait.py [ADDRESS]
"""

import asyncio
import sys

from purgatory_client import AsyncClient


async def main(address: str) -> None:
    """Register one wait, end it from elsewhere, print the result."""
    async with AsyncClient(address) as client:
        wait = asyncio.create_task(client.produce({"orders-3": 42}, timeout=5))

        # Somebody reports how far orders-3 has got: a broker, a replica, a job. Here it is this program.
        await client.advance("orders-3", high_watermark=42)

        result = await wait
        reached = result.partitions["orders-3"].reached_offset
        print(f"{result.outcome.name.lower()} after {result.waited:.3f} s: orders-3 has reached {reached}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7440"))
