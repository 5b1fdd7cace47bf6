"""A light load for the live page, once the demonstration is over: a shop that waits for its own orders.

Partitions of `orders` have three replicas, one of which is slow on orders-2. Jobs succeed, fail, or fall silent. The
results of the session `warehouse` stay unacknowledged, because nothing collects them.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Final

from purgatory_client import AsyncClient, all_of, batches, events, mark, signal
from purgatory_client.terms import Term

TOPIC: Final = "orders"
PARTITIONS: Final = 4
SLOW: Final = 2
LEADER, *FOLLOWERS = REPLICAS = (1, 2, 3)
EPOCH: Final = 1
STEP_S: Final = 0.25
RECORD_BYTES: Final = 200
STEPS_PER_JOB: Final = 8
STEPS_PER_SHIPMENT: Final = 80


class ShopLoad:
    """Reports progress and registers waits until `run` is cancelled."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Final = client
        self._chance: Final = random.Random()
        self._ends: Final = [1_000 * (partition + 1) for partition in range(PARTITIONS)]
        self._jobs = 0
        self._shipments = 0

    async def run(self) -> None:
        await self._client.advance_many([event for partition in range(PARTITIONS) for event in self._begin(partition)])
        async with asyncio.TaskGroup() as group:
            step = 0
            while True:
                await self._client.advance_many(self._progress())
                for wait in self._waits(step):
                    group.create_task(wait)
                step += 1
                await asyncio.sleep(STEP_S)

    def _begin(self, partition: int) -> list[events.Event]:
        name = f"{TOPIC}-{partition}"
        return [
            events.leadership(name, is_leader=True, leader_id=LEADER, replica_ids=REPLICAS, leader_epoch=EPOCH),
            events.in_sync_replicas(
                name, REPLICAS, leader_id=LEADER, min_in_sync_replicas=len(FOLLOWERS), leader_epoch=EPOCH
            ),
        ]

    def _progress(self) -> list[events.Event]:
        """Each partition grows at its own pace; the last replica of one is far behind."""
        reported = []
        for partition in range(PARTITIONS):
            name, grown = f"{TOPIC}-{partition}", self._chance.randint(0, 2 * (PARTITIONS - partition))
            end = self._ends[partition] = self._ends[partition] + grown
            reported.append(events.log_end_offset(name, end, byte_position=end * RECORD_BYTES, leader_epoch=EPOCH))
            for replica in FOLLOWERS:
                is_slow = partition == SLOW and replica == FOLLOWERS[-1]
                stored = end - (150 if is_slow else self._chance.randint(0, 4))
                reported.append(events.follower_progress(name, replica, stored, leader_epoch=EPOCH))
        return reported

    def _waits(self, step: int) -> list[Coroutine[object, None, object]]:
        """Waits that begin in this step: the writer of a record, and less often a reader, a job and a shipment."""
        partition = self._chance.randrange(PARTITIONS)
        name, end = f"{TOPIC}-{partition}", self._ends[partition]
        timeout = self._chance.choice([2.0, 10.0, 30.0, 120.0])
        waits: list[Coroutine[object, None, object]] = [
            self._client.produce({name: end + self._chance.randint(1, 200)}, timeout=timeout)
        ]
        if step % 4 == 0:
            far = self._chance.randint(2, 50) * RECORD_BYTES
            waits.append(self._client.fetch({name: end}, min_bytes=far, timeout=5))
        if step % STEPS_PER_JOB == 0:
            self._jobs += 1
            waits.append(self._job(f"invoice-{self._jobs}", mark(name, end + 40)))
        if step % STEPS_PER_SHIPMENT == 0:
            self._shipments += 1
            waits.append(self._ship(self._shipments))
        return waits

    async def _job(self, job: str, orders: Term) -> None:
        """A report needs its job and its orders, unless the job fails; a watcher expects a heartbeat. Some jobs fail,
        and some are never heard of again.
        """
        report = self._client.wait(all_of(orders, signal(job)), unless=signal(f"{job}/failed"), timeout=60)
        async with asyncio.TaskGroup() as group:
            group.create_task(report)
            group.create_task(self._client.signal([job], heartbeat_timeout=20, timeout=60))
            await asyncio.sleep(self._chance.uniform(1, 15))
            fate = self._chance.random()
            if fate < 0.6:
                await self._client.signal_key(job, value=b'{"invoices": 17}')
            elif fate < 0.8:
                await self._client.advance_many([events.signalled(job, failed=True), events.signalled(f"{job}/failed")])

    async def _ship(self, number: int) -> None:
        """Five parcels in a session of their own: some are due within seconds, the others in ten minutes."""
        offsets = [end + 5_000 for end in self._ends]
        names = [f"{TOPIC}-{partition}" for partition in range(PARTITIONS)]
        batch = batches.produce(
            names, offsets=offsets, indexes=list(range(PARTITIONS)), timeouts_ms=[5_000, 30_000, 600_000, 600_000]
        )
        await self._client.register("warehouse", number * PARTITIONS, batch)
