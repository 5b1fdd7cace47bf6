"""The smallest example: wait for an offset that another program reaches. Needs a daemon (`make run`).

python examples/first_wait.py [ADDRESS]; without an argument, the address is PURGATORY_ADDRESS or 127.0.0.1:7440.
"""

import asyncio
import os
import sys

from purgatory_client import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import Unavailable


async def main(address: str) -> None:
    """Register one wait, satisfy it from another client, and print the result."""
    async with AsyncClient(address) as client:
        wait = asyncio.create_task(client.produce({"orders-3": 42}, timeout=5))

        # Normally a broker, a replica or a job reports the progress of orders-3. Here this program does.
        await client.advance("orders-3", high_watermark=42)

        result = await wait
        reached = result.partitions["orders-3"].reached_offset
        print(f"{result.outcome.name.lower()} after {result.waited:.3f} s: orders-3 has reached {reached}")


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PURGATORY_ADDRESS", DEFAULT_ADDRESS)
    try:
        asyncio.run(main(where))
    except Unavailable as error:
        sys.exit(f"no daemon at {where} (start one with `make run`): {error}")
