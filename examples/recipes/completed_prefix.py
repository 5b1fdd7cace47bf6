"""Report progress of a projection that applies events in any order: the mark is the lowest position that is not done.

Four events are applied at once, and the slow one is the first. A reader that waits for "everything up to event 3" is
answered when event 0 is done as well, not when event 3 is. Event 4 never comes, because its transaction was rolled
back: the gap holds the mark back until it is released.

Prints:
    events 1, 2 and 3 are done: the mark is 0
    event 0 is done: the mark is 4; the reader is satisfied
    event 5 is done: the mark is 4, missing [range(4, 5)]
    event 4 is released: the mark is 6
"""

import asyncio
import os

from purgatory_client import AsyncClient
from purgatory_client.prefix import Prefix


async def main() -> None:
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        prefix = Prefix("projection/orders", first=0)  # after a restart: the stored checkpoint
        reader = asyncio.create_task(client.produce({"projection/orders-0": 4}, timeout=30))
        async with prefix.publishing(client):
            for position in range(4):
                prefix.started(position)
            # An event is done once its effects can be read, here in this order.
            for position in (3, 1, 2):
                prefix.done(position)
            print(f"events 1, 2 and 3 are done: the mark is {prefix.mark}")
            prefix.done(0)
            result = await reader
            print(f"event 0 is done: the mark is {prefix.mark}; the reader is {result.outcome.name.lower()}")

            prefix.started(5)
            prefix.done(5)
            print(f"event 5 is done: the mark is {prefix.mark}, missing {prefix.missing}")
            prefix.release(4)
            print(f"event 4 is released: the mark is {prefix.mark}")


if __name__ == "__main__":
    asyncio.run(main())
