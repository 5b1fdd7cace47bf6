"""A caller with an outbox that may be killed at any moment: it logs each step as one line, at once.

`python -m tests.client.outbox.outbox_child ADDRESS FOLDER LIFE COUNT`: submits COUNT waits (0: only collects, and exits
when nothing is left).
"""

import asyncio
import random
import sys
from pathlib import Path

from purgatory_client import AsyncClient, Ticket, waits
from purgatory_client.batches import partition_columns
from purgatory_client.outbox import outbox_file
from purgatory_client.results import OperationKind

PARTITIONS = 4
OFFSET_MAX = 1_000


class OutboxChild:
    def __init__(self, client: AsyncClient, folder: Path, life: int) -> None:
        self.client = client
        self.life = life
        self.random = random.Random(life)
        self.log = (folder / "caller.log").open("a", encoding="utf-8", buffering=1)

    async def live(self, count: int) -> None:
        """Collect recovered results while submitting new waits."""
        tasks: list[asyncio.Task[object]] = []
        for ticket in await self.client.recovered():
            self.log.write(f"recovered {name_of(ticket)}\n")
            tasks.append(asyncio.create_task(self.collect(ticket)))
        for number in range(count):
            ticket = await self.submit(f"{self.life}-{number}")
            self.log.write(f"submitted {name_of(ticket)}\n")
            tasks.append(asyncio.create_task(self.collect(ticket)))
            if not number % 3:
                # Its result is not requested again: this call is the only caller.
                tasks.append(asyncio.create_task(self.client.produce({"plain-0": 1}, timeout=0.05)))
        await asyncio.gather(*tasks)

    async def submit(self, tag: str) -> Ticket:
        """Submit one wait, or a small batch. Some are satisfied, and some are not."""
        timeout = self.random.choice([0.2, 60.0])
        offset = self.random.randint(1, OFFSET_MAX if timeout > 1 else OFFSET_MAX * 1_000)
        partition = f"p-{self.random.randrange(PARTITIONS)}"
        if self.random.random() < 0.7:
            return await self.client.submit(waits.produce({partition: offset}, timeout=timeout), tag)
        offsets = [offset, self.random.randint(1, OFFSET_MAX), offset]
        limits = [round(timeout * 1_000)]
        batch = partition_columns(OperationKind.PRODUCE, [partition], None, offsets, limits, None)
        return await self.client.submit_many(batch, tag)

    async def collect(self, ticket: Ticket) -> None:
        """Log the result before confirming it, and then log the confirmation."""
        if ticket.is_batch:
            outcomes = (await self.client.result_many(ticket)).outcomes
        else:
            outcomes = [(await self.client.result(ticket)).outcome.value]
        self.log.write(f"result {name_of(ticket)} {','.join(map(str, outcomes))}\n")
        await self.client.confirm(ticket)
        self.log.write(f"confirmed {name_of(ticket)}\n")


def name_of(ticket: Ticket) -> str:
    return ticket.tag or f"plain-{ticket.operation_id}"


async def main(address: str, folder: Path, life: int, count: int) -> None:
    async with AsyncClient(address, outbox=folder / "outbox.db") as client:
        await OutboxChild(client, folder, life).live(count)


if __name__ == "__main__":
    setattr(outbox_file, "IDS_SKIPPED_MAX", 1)  # noqa: B010 - Final; no ids are skipped, since the test counts them
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
