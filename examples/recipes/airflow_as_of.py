"""A nightly batch that starts once everything written before midnight is processed; later records do not delay it.

`examples/airflow_caught_up.py` is the Airflow operator for it. This recipe plays Airflow's triggerer: it recreates the
trigger from what the scheduler stored, and runs it. A source takes the place of Kafka's: it reports that the log of
`orders` ended at 2 at midnight, and ends at 99 now.

Prints:
    1 of 2 orders of before midnight is processed: the batch waits in no worker
    2 of 2: SATISFIED
"""

import asyncio
import os

from purgatory_client import AsyncClient
from purgatory_client.sources.source_link import EndsWanted, MarkEnd

from examples.airflow_caught_up import CaughtUpTrigger

ORDERS = "recipe-as-of/billing/orders"
WAIT = {"label": "recipe-as-of", "group": "billing", "topics": ["orders"], "as_of": "2025-03-01T00:00:00+00:00"}


async def main() -> None:
    address = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")
    async with AsyncClient(address) as client, client.attach_source("recipe", ["recipe-as-of/"]) as link:
        await client.advance((ORDERS, 0), high_watermark=1)
        _, stored = CaughtUpTrigger(WAIT).serialize()
        fired = asyncio.ensure_future(anext(CaughtUpTrigger(**stored).run()))
        async for message in link:
            if isinstance(message, EndsWanted):
                ends = [MarkEnd(ORDERS, 0, 99 if message.as_of_ms is None else 2)]
                await link.answer_ends(message.ask_id, ends, as_of_ms=message.as_of_ms)
            elif message.gained:
                print("1 of 2 orders of before midnight is processed: the batch waits in no worker")
                await client.advance((ORDERS, 0), high_watermark=2)
                break
        print(f"2 of 2: {await fired}")


if __name__ == "__main__":
    asyncio.run(main())
