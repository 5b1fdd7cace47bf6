"""What `status`, `ls` and `top` show of several shards: their answers as one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Unpack

from purgatory_client.unary import Filters, SingleCalls, shards_of
from purgatory_client.views import (
    EndedTogether,
    HotName,
    KindStatus,
    OperationOrder,
    Partition,
    PendingOperation,
    RankedOperations,
    RemainingTime,
    Status,
    WebhookStatus,
)

KEYS: Final[dict[OperationOrder, Callable[[PendingOperation], float]]] = {
    OperationOrder.LEAST_REMAINING: lambda one: one.remaining,
    OperationOrder.MOST_REMAINING: lambda one: -one.remaining,
    OperationOrder.LONGEST_WAITED: lambda one: -one.waited,
    OperationOrder.SHORTEST_WAITED: lambda one: one.waited,
}


class AllShards:
    """Has the calls of a client that list and count, over all shards. Each shard knows the same partitions and keys."""

    def __init__(self, shards: Sequence[SingleCalls]) -> None:
        self.shards: Final = shards

    async def statuses(self, *, remaining_time: bool = False) -> list[Status]:
        return await asyncio.gather(*(one.status(remaining_time=remaining_time) for one in self.shards))

    async def status(self, *, remaining_time: bool = False) -> Status:
        return merged(await self.statuses(remaining_time=remaining_time))

    async def operations(
        self, *, page_size: int = 1_000, **filters: Unpack[Filters]
    ) -> AsyncIterator[PendingOperation]:
        for shard in self.shards:
            async for one in shard.operations(page_size=page_size, **filters):
                yield one

    async def ranked_operations(
        self, order: OperationOrder, *, limit: int = 100, search: str = "", **filters: Unpack[Filters]
    ) -> RankedOperations:
        calls = (one.ranked_operations(order, limit=limit, search=search, **filters) for one in self.shards)
        ranked = await asyncio.gather(*calls)
        found = sorted((one for of_shard in ranked for one in of_shard.operations), key=KEYS[order])
        return RankedOperations(found[:limit], sum(of_shard.matching for of_shard in ranked))

    async def partitions(self, *, prefix: str = "", page_size: int = 1_000) -> AsyncIterator[Partition]:
        found: dict[tuple[str, int], Partition] = {}
        for shard in self.shards:
            async for one in shard.partitions(prefix=prefix, page_size=page_size):
                other = found.setdefault((one.topic, one.partition), one)
                if other is not one:
                    found[one.topic, one.partition] = replace(other, watched=other.watched + one.watched)
        for _, one in sorted(found.items()):
            yield one

    async def hot_names(self, limit: int = 20) -> list[HotName]:
        watched: Counter[tuple[str, bool]] = Counter()
        for names in await asyncio.gather(*(one.hot_names(limit) for one in self.shards)):
            watched.update({(one.name, one.is_key): one.watched for one in names})
        return [HotName(name, is_key, count) for (name, is_key), count in watched.most_common(limit)]

    async def tail(self) -> AsyncIterator[EndedTogether]:
        arrived: asyncio.Queue[EndedTogether] = asyncio.Queue(1)

        async def follow(shard: SingleCalls) -> None:
            async for ended in shard.tail():
                await arrived.put(ended)

        tasks = [asyncio.create_task(follow(one)) for one in self.shards]
        try:
            while not any(task.done() for task in tasks):
                taken = asyncio.create_task(arrived.get())
                await asyncio.wait([taken, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if taken.done():
                    yield taken.result()
                else:
                    taken.cancel()
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def over_shards(client: SingleCalls) -> SingleCalls | AllShards:
    """The calls over all shards; of the client itself where there is one."""
    shards = await shards_of(client)
    return client if len(shards) == 1 else AllShards(shards)


def merged(statuses: Sequence[Status]) -> Status:
    """One status of all shards."""

    def total(name: str, of: Sequence[Any] = statuses) -> Any:  # noqa: ANN401 - of several types
        return sum(getattr(one, name) for one in of)

    counts = KindStatus.__dataclass_fields__.keys() - {"kind"}
    kinds = [
        replace(same[0], **{name: total(name, same) for name in counts})
        for same in zip(*(one.kinds for one in statuses), strict=True)
    ]
    first = statuses[0]
    webhooks = [one.webhooks for one in statuses if one.webhooks is not None]
    left = [one.remaining_time for one in statuses if one.remaining_time is not None]
    return replace(
        first,
        started_time=max(one.started_time for one in statuses),
        draining=any(one.draining for one in statuses),
        kinds=kinds,
        partitions=max(one.partitions for one in statuses),
        signal_keys=max(one.signal_keys for one in statuses),
        sessions=total("sessions"),
        sessions_connected=total("sessions_connected"),
        unacknowledged_results=total("unacknowledged_results"),
        sources=[source for one in statuses for source in one.sources],
        webhooks=_webhooks(webhooks) if webhooks else None,
        remaining_time=_remaining(left) if left else None,
    )


def _webhooks(all_of: Sequence[WebhookStatus]) -> WebhookStatus:
    return WebhookStatus(
        sum(one.undelivered for one in all_of),
        sum(one.paused for one in all_of),
        sum(one.dead_letters for one in all_of),
        max((one.oldest for one in all_of if one.oldest is not None), default=None),
    )


def _remaining(all_of: Sequence[RemainingTime]) -> RemainingTime:
    return RemainingTime(
        min((one.soonest for one in all_of if one.soonest is not None), default=None),
        max((one.latest for one in all_of if one.latest is not None), default=None),
        all_of[0].bounds,
        [sum(counts) for counts in zip(*(one.operations for one in all_of), strict=True)],
    )
