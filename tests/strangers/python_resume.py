"""The Python client as the program `resume` of the other languages. Every fifth wait is a unary call."""

import asyncio
import sys

from purgatory_client import AsyncClient, waits


async def print_end(client: AsyncClient, topic: str, offset: int) -> None:
    wanted = {(topic, 0): offset}
    if offset % 5:
        result = await client.produce(wanted, timeout=600)
    else:
        result = await client.wait_once(waits.produce(wanted, timeout=600))
    print(offset, result.outcome.name, result.items[0].required_offset, flush=True)


async def main(address: str, topic: str, count: str) -> None:
    async with AsyncClient(address) as client:
        await asyncio.gather(*(print_end(client, topic, offset) for offset in range(1, int(count) + 1)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
