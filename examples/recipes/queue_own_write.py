"""A queue job that reads its own write: the message carries a token, and the worker waits for it before it reads.

The handler that writes an order puts a token of its position into the message. The worker reads from a replica, which
lags: without the token it looks for an order that is not there yet. If the replica does not catch up in time, the job
is put back. Any queue can carry the token, as a header or a field of the message; docs/recipes.md has Celery's form.

Prints:
    without the token: order 17 is not there
    with the token: order 18 is there
"""

import asyncio
import json
import os

from purgatory_client import AsyncClient, Outcome

REPLICA = "shop/replica-0"


async def handle_request(client: AsyncClient, jobs: asyncio.Queue[bytes], log: list[int], order: int) -> None:
    """Write an order, and leave the rest to a worker."""
    log.append(order)
    token = await client.token({REPLICA: len(log)})
    jobs.put_nowait(json.dumps({"order": order, "token": token}).encode())


async def work(client: AsyncClient, jobs: asyncio.Queue[bytes], replica: list[int], *, with_token: bool) -> None:
    """Do one job."""
    message = await jobs.get()
    job = json.loads(message)
    if with_token and (await client.wait_for(job["token"], timeout=30)).outcome is not Outcome.SATISFIED:
        jobs.put_nowait(message)
        return
    found = "is there" if job["order"] in replica else "is not there"
    print(f"{'with' if with_token else 'without'} the token: order {job['order']} {found}")


async def main() -> None:
    jobs, log, replica = asyncio.Queue[bytes](), list[int](), list[int]()
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        await client.advance(REPLICA, high_watermark=0)
        await handle_request(client, jobs, log, 17)
        await work(client, jobs, replica, with_token=False)

        await handle_request(client, jobs, log, 18)
        working = asyncio.create_task(work(client, jobs, replica, with_token=True))
        replica.extend(log)  # the replica catches up, and its source reports it
        await client.advance(REPLICA, high_watermark=len(replica))
        await working


if __name__ == "__main__":
    asyncio.run(main())
