"""Read the row of a change event from a PostgreSQL replica: wait for more than the LSN in the event.

The event contains the start of the transaction's commit record. A replica whose position equals it is about to replay
the commit, and does not have the row yet. docs/lsn.md explains the other positions. In this recipe two calls of
`advance` take the place of the replica; `purgatory serve --source postgres://...` reports those of real ones.

Prints:
    the event has LSN 0/16B3748
    replayed up to 0/16B3748: a wait for the LSN is satisfied, one for the commit is still pending
    replayed up to 0/16B3778: the wait for the commit is satisfied
"""

import asyncio
import os

from purgatory_client import AsyncClient
from purgatory_client.sources.log_positions import committed, offset_of_lsn

REPLICA = "pg/main/r1"


async def main() -> None:
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        event = {"table": "orders", "id": 17, "commit_lsn": "0/16B3748"}
        lsn = str(event["commit_lsn"])
        print(f"the event has LSN {lsn}")
        row_is_there = asyncio.create_task(client.produce({REPLICA: committed(lsn)}, timeout=30))

        await client.advance(REPLICA, high_watermark=offset_of_lsn(lsn))
        too_early = await client.produce({REPLICA: offset_of_lsn(lsn)}, timeout=30)
        second = "satisfied" if row_is_there.done() else "still pending"
        first = too_early.outcome.name.lower()
        print(f"replayed up to {lsn}: a wait for the LSN is {first}, one for the commit is {second}")

        await client.advance(REPLICA, high_watermark=offset_of_lsn("0/16B3778"))
        result = await row_is_there
        print(f"replayed up to 0/16B3778: the wait for the commit is {result.outcome.name.lower()}")


if __name__ == "__main__":
    asyncio.run(main())
