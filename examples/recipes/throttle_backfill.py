"""A backfill that is throttled by the lag of the replicas: it never runs more than two batches ahead of the slowest.

After each batch it waits until all replicas have the batch before the last but one. If they stall, the wait expires and
says how far they are. In this recipe a coroutine takes the place of the replicas; `purgatory serve --source
postgres://...` reports `pg/main/all` of real ones, and the positions are those of `SELECT pg_current_wal_lsn()`.

Prints:
    after batch 6: the replicas stall at 12288 of 16384, pausing
    8 batches written and replicated
"""

import asyncio
import os

from purgatory_client import AsyncClient, Outcome

REPLICAS = "pg/main/all"
BATCHES, BATCH_BYTES, AHEAD = 8, 4_096, 2
STALL_AT = 3 * BATCH_BYTES


async def backfill(client: AsyncClient, written: asyncio.Queue[int], repaired: asyncio.Event) -> None:
    for batch in range(1, BATCHES + 1):
        written.put_nowait(batch * BATCH_BYTES)  # a real one writes a batch, and asks for the position after it
        needed = max(0, batch - AHEAD) * BATCH_BYTES
        while (result := await client.produce({REPLICAS: needed}, timeout=1)).outcome is Outcome.EXPIRED:
            reached = result.partitions[REPLICAS].reached_offset
            print(f"after batch {batch}: the replicas stall at {reached} of {needed}, pausing")
            repaired.set()


async def replay(client: AsyncClient, written: asyncio.Queue[int], repaired: asyncio.Event) -> None:
    """Replay what has been written, and stall once."""
    while True:
        position = await written.get()
        if position > STALL_AT:
            await repaired.wait()
        await client.advance(REPLICAS, high_watermark=position)


async def main() -> None:
    written, repaired = asyncio.Queue[int](), asyncio.Event()
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        await client.advance(REPLICAS, high_watermark=0)
        replaying = asyncio.create_task(replay(client, written, repaired))
        await backfill(client, written, repaired)
        result = await client.produce({REPLICAS: BATCHES * BATCH_BYTES}, timeout=30)
        print(f"{BATCHES} batches written and {'replicated' if result.outcome is Outcome.SATISFIED else 'in doubt'}")
        replaying.cancel()


if __name__ == "__main__":
    asyncio.run(main())
