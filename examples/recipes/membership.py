"""Wait until one particular event has been applied, where events have ids but no order.

A worker that has applied an event signals the key `applied/ID`. Signals are latched: a reader that asks later is
answered at once, and it does not matter which events are done before or after. Compare `completed_prefix.py`, for
positions that can be counted: it needs one mark, however many events there are; here each event needs a key, and the
daemon forgets the oldest keys above `limits.signal_keys_max`.

Prints:
    applied/b7: satisfied
    applied/a2, asked for later: satisfied
    applied/c9: expired
"""

import asyncio
import os

from purgatory_client import AsyncClient


async def main() -> None:
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        reader = asyncio.create_task(client.signal(["applied/b7"], timeout=30))
        for event_id in ("a2", "b7"):
            # The worker would write to its read model here. It signals only after that write is visible.
            await client.signal_key(f"applied/{event_id}")
        print(f"applied/b7: {(await reader).outcome.name.lower()}")

        later = await client.signal(["applied/a2"], timeout=30)
        print(f"applied/a2, asked for later: {later.outcome.name.lower()}")

        never = await client.signal(["applied/c9"], timeout=0.1)
        print(f"applied/c9: {never.outcome.name.lower()}")


if __name__ == "__main__":
    asyncio.run(main())
