"""What the commands that inspect show: the answers of all shards as one, once or repeatedly (`--watch`)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar, Unpack, cast

import click
from purgatory_client import views
from purgatory_client.errors import Unavailable
from purgatory_client.results import OperationKind, Outcome
from purgatory_client.session.shards import shard_of
from purgatory_client.unary import Filters, SingleCalls, shards_of

from purgatory.cli import render
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import interval

View = TypeVar("View")

WATCH: Final = click.option(
    "--watch", "-w", type=interval, metavar="INTERVAL", help="Repeat at this interval until Ctrl-C: 500ms, 2s."
)

KEYS: Final[dict[views.OperationOrder, Callable[[views.PendingOperation], float]]] = {
    views.OperationOrder.LEAST_REMAINING: lambda one: one.remaining,
    views.OperationOrder.MOST_REMAINING: lambda one: -one.remaining,
    views.OperationOrder.LONGEST_WAITED: lambda one: -one.waited,
    views.OperationOrder.SHORTEST_WAITED: lambda one: one.waited,
}


class AllShards:
    """The calls of a client that list and count, over all shards; often there is one."""

    def __init__(self, shards: Sequence[SingleCalls]) -> None:
        self.shards: Final = shards

    async def statuses(self, *, remaining_time: bool = False) -> list[views.Status | Unavailable]:
        """The status of each shard, or why it is not available. Raises Unavailable if none of them is."""
        calls = (one.status(remaining_time=remaining_time) for one in self.shards)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        others = [answer for answer in answers if not isinstance(answer, Unavailable)]
        for error in others or answers:
            if isinstance(error, BaseException):
                raise error
        return cast("list[views.Status | Unavailable]", answers)

    async def status(self) -> views.Status:
        return merged(await self.statuses())

    def _having(self, filters: Filters) -> Sequence[SingleCalls]:
        """The shards that may have operations which match the filters."""
        session_id, several = filters.get("session_id"), len(self.shards) > 1
        return [self.shards[shard_of(session_id, len(self.shards))]] if session_id and several else self.shards

    async def operations(self, page_size: int, **filters: Unpack[Filters]) -> AsyncIterator[views.PendingOperation]:
        for shard in self._having(filters):
            async for one in shard.operations(page_size=page_size, **filters):
                yield one

    async def ranked_operations(
        self, order: views.OperationOrder, *, limit: int, search: str = "", **filters: Unpack[Filters]
    ) -> views.RankedOperations:
        calls = (one.ranked_operations(order, limit=limit, search=search, **filters) for one in self._having(filters))
        ranked = await asyncio.gather(*calls)
        found = sorted((one for part in ranked for one in part.operations), key=KEYS[order])
        return views.RankedOperations(found[:limit], sum(part.matching for part in ranked))

    async def partitions(self, prefix: str, page_size: int) -> AsyncIterator[views.Partition]:
        """Those that the first shard knows are one with those of others, which have the same marks."""
        others: dict[str, views.Partition] = {}
        for shard in self.shards[1:]:
            async for one in shard.partitions(prefix=prefix, page_size=page_size):
                watched = one.watched + (others[one.name].watched if one.name in others else 0)
                others[one.name] = replace(one, watched=watched)
        async for one in self.shards[0].partitions(prefix=prefix, page_size=page_size):
            other = others.pop(one.name, None)
            yield one if other is None else replace(one, watched=one.watched + other.watched)
        for one in others.values():
            yield one

    async def hot_names(self, limit: int) -> list[views.HotName]:
        watched: Counter[tuple[str, bool]] = Counter()
        for names in await asyncio.gather(*(one.hot_names(limit) for one in self.shards)):
            watched.update({(one.name, one.is_key): one.watched for one in names})
        return [views.HotName(name, is_key, count) for (name, is_key), count in watched.most_common(limit)]

    async def tail(
        self, outcomes: Collection[Outcome], kind: OperationKind | None
    ) -> AsyncGenerator[views.EndedTogether]:
        """What ends at any shard, as it arrives."""
        streams = [aiter(one.tail(outcomes=outcomes, kind=kind)) for one in self.shards]
        reading = {_next(stream): stream for stream in streams}
        try:
            while reading:
                done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    stream, ended = reading.pop(task), task.result()
                    if ended is not None:
                        yield ended
                        reading[_next(stream)] = stream
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


async def over_shards(client: SingleCalls) -> AllShards:
    """The calls over all shards of the fleet to which the client's daemon belongs."""
    return AllShards(await shards_of(client))


async def shown(watch: float | None, show: Callable[[], Awaitable[None]]) -> Exit:
    """Call `show` once, or every `watch` seconds until interrupted. While the daemon is unavailable, keep trying."""
    if watch is None:
        await show()
        return Exit.OK
    while True:
        render.clear()
        try:
            await show()
        except Unavailable as error:
            render.error_line(str(error))
        await asyncio.sleep(watch)


def _next(stream: AsyncIterator[views.EndedTogether]) -> asyncio.Future[views.EndedTogether | None]:
    """The next item of a stream; None at its end."""
    return asyncio.ensure_future(anext(stream, None))


def merged(found: Sequence[views.Status | Unavailable]) -> views.Status:
    """One status of all shards that are available. Each knows the same partitions and keys."""
    statuses = [one for one in found if isinstance(one, views.Status)]
    webhooks = [one.webhooks for one in statuses if one.webhooks is not None]
    oldest = [one.oldest for one in webhooks if one.oldest is not None]
    left = [one.remaining_time for one in statuses if one.remaining_time is not None]
    return _added(
        statuses,
        draining=any(one.draining for one in statuses),
        kinds=[_added(same) for same in zip(*(one.kinds for one in statuses), strict=True)],
        partitions=max(one.partitions for one in statuses),
        signal_keys=max(one.signal_keys for one in statuses),
        sources=[source for one in statuses for source in one.sources],
        webhooks=_added(webhooks, oldest=max(oldest, default=None)) if webhooks else None,
        remaining_time=_remaining(left) if left else None,
        fleet=statuses[0].fleet if len(statuses) == 1 else "",  # each has its own
    )


def _added(answers: Sequence[View], **given: Any) -> View:  # noqa: ANN401 - values of fields
    """The first view with the sums of all counts, and the `given` fields."""
    first: Any = answers[0]
    counts = [one.name for one in fields(first) if type(getattr(first, one.name)) is int and one.name not in given]
    sums = {name: sum(getattr(one, name) for one in answers) for name in counts}
    return replace(first, **sums, **given)  # type: ignore[no-any-return]


def _remaining(all_of: Sequence[views.RemainingTime]) -> views.RemainingTime:
    return views.RemainingTime(
        min((one.soonest for one in all_of if one.soonest is not None), default=None),
        max((one.latest for one in all_of if one.latest is not None), default=None),
        all_of[0].bounds,
        [sum(counts) for counts in zip(*(one.operations for one in all_of), strict=True)],
    )
