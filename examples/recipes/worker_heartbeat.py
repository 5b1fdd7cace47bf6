"""A wait that fails within a second after its worker has died, and one that is given more time.

A worker signals its key with a count of 0 while it works: a heartbeat, which does not end the wait. When the heartbeats
stop, the wait fails, long before its own timeout.

Prints:
    import: finished
    export: failed with error 1004, its worker is silent
    backup: has more time; not pending: [2]
"""

import asyncio
import os

from purgatory_client import AsyncClient, Result, batches

ADDRESS = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")


async def finished(client: AsyncClient, job: str) -> Result:
    """Wait up to ten minutes for a job, but not longer than a second for its worker's next sign of life."""
    return await client.signal([job], timeout=600, heartbeat_timeout=1)


async def main() -> None:
    """Three jobs, of which one is abandoned by its worker."""
    async with AsyncClient(ADDRESS) as client:
        jobs = [asyncio.create_task(finished(client, job)) for job in ("import", "export")]
        for _ in range(3):
            await client.signal_key("import", 0)
        await client.signal_key("import")
        good, bad = await asyncio.gather(*jobs)
        print("import:", "finished" if good.satisfied else "not finished")
        print(f"export: failed with error {bad.partitions['export'].error_code}, its worker is silent")

        # Waits of a session of their own have known ids, by which they can be extended.
        await client.register("backups", 1, batches.signal(["backup"], timeouts_ms=[60_000]))
        gone = await client.extend([1, 2], timeout=3_600, session_id="backups")
        print(f"backup: has more time; not pending: {gone}")
        await client.close_session("backups")


if __name__ == "__main__":
    asyncio.run(main())
