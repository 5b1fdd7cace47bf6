"""Waits that outlive the program. Kill it at any moment and restart it: each order is shipped when its wait has ended.

python examples/order_desk.py [ADDRESS] [OUTBOX]
"""

import asyncio
import os
import sys

from purgatory_client import AsyncClient, Ticket, waits

ORDERS = 3


async def ship(client: AsyncClient, ticket: Ticket) -> None:
    """Ship an order when its wait has ended. The confirmation must come last: after a crash before it, the order is
    shipped again under the same tag, by which a real desk would recognise it.
    """
    result = await client.result(ticket)
    print(f"{ticket.tag}: {result.outcome.name.lower()}", flush=True)
    await client.confirm(ticket)


async def main(address: str, outbox: str) -> None:
    """Resume the waits of an earlier run, or take new orders."""
    async with AsyncClient(address, outbox=outbox) as client:
        tickets = await client.recovered()
        print(f"{len(tickets)} orders of an earlier run")
        for number in range(0 if tickets else ORDERS):
            wait = waits.produce({"orders-3": number + 1}, timeout=60)
            tickets.append(await client.submit(wait, tag=f"order-{number}"))

        # Normally another program reports the progress of orders-3. Here this program does.
        await client.advance("orders-3", high_watermark=ORDERS)

        await asyncio.gather(*(ship(client, ticket) for ticket in tickets))


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    asyncio.run(
        main(arguments.get(1, os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")), arguments.get(2, "order_desk.db"))
    )
