"""An approval with a value, a reminder, and an end if there is no answer.

The approver signals the key of the request, with a value or as failed. The requester waits for a while, sends a
reminder and waits for the rest of the time. The answer is kept with the key, so it may come at any time, also from a
shell: `purgatory signal order-17/approval --value '{"by": "eva"}'`.

Prints:
    order-17: reminder sent
    order-17: approved, {"by": "eva", "up to": 500}
    order-18: rejected, over budget
    order-19: reminder sent
    order-19: no answer
"""

import asyncio
import os
from collections.abc import Callable

from purgatory_client import AsyncClient, Outcome


async def approved(client: AsyncClient, order: str, deadline: float, remind: Callable[[str], None]) -> str:
    """Return how the request ended."""
    key = f"{order}/approval"
    result = await client.signal([key], timeout=deadline / 10)
    if result.outcome is Outcome.EXPIRED:
        remind(order)
        result = await client.signal([key], timeout=deadline * 9 / 10)
    answer = result.partitions[key].signal_value.decode()
    if result.outcome is Outcome.SATISFIED:
        return f"approved, {answer}"
    return f"rejected, {answer}" if result.outcome is Outcome.FAILED else "no answer"


async def main() -> None:
    async with AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")) as client:
        reminded = asyncio.Event()

        def remind(order: str) -> None:
            print(f"{order}: reminder sent")
            reminded.set()

        asked = asyncio.create_task(approved(client, "order-17", 10, remind))
        await reminded.wait()
        await client.signal_key("order-17/approval", value=b'{"by": "eva", "up to": 500}')
        print("order-17:", await asked)
        await client.signal_key("order-18/approval", value=b"over budget", failed=True)
        print("order-18:", await approved(client, "order-18", 60, remind))
        print("order-19:", await approved(client, "order-19", 0.5, remind))


if __name__ == "__main__":
    asyncio.run(main())
