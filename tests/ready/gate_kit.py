"""A source that says where a log ends and moves a group's mark, and requests to a daemon's ready gates."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from purgatory_client.aio import AsyncClient
from purgatory_client.events import high_watermark, truncation
from purgatory_client.sources.source_link import EndsWanted, MarkEnd, SourceLink, SourceState, StaleMarks

from tests.kit.eventually import eventually
from tests.played_source import until_live

TOPIC = "kafka/billing/orders"
QUERY = "group=billing&topics=orders"


class LogSource:
    """An attached source of one topic."""

    def __init__(self, client: AsyncClient, link: SourceLink, ends: Mapping[int, int], epoch: int | None) -> None:
        self.ends = dict(ends)
        """The ends of the log, by partition."""
        self.asked = 0
        """How often it was asked for them."""
        self.epoch = epoch
        self.stale: list[StaleMarks] = []
        self.answers = asyncio.Event()
        """Set: it answers questions."""
        self.answers.set()
        self._client = client
        self._link = link

    async def processed(self, *offsets: int) -> None:
        """Set the group's marks of the first partitions."""
        await self._client.advance_many([
            high_watermark((TOPIC, number), offset, leader_epoch=self.epoch) for number, offset in enumerate(offsets)
        ])  # fmt: skip

    async def break_off(self, offset: int) -> None:
        """The group was reset to this offset: a new history begins."""
        assert self.epoch is not None
        self.epoch += 1
        await self._client.advance_many([truncation((TOPIC, 0), offset, leader_epoch=self.epoch)])

    async def report(self) -> None:
        await self._link.report(SourceState.STALE if self.stale else SourceState.LIVE, "", self.stale)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_on())
            async for message in self._link:
                if isinstance(message, EndsWanted):
                    self.asked += 1
                    tasks.create_task(self._answer(message))

    async def _report_on(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(1.0)

    async def _answer(self, wanted: EndsWanted) -> None:
        await self.answers.wait()
        ends = [MarkEnd(TOPIC, number, end, self.epoch) for number, end in self.ends.items()]
        await self._link.answer_ends(wanted.ask_id, ends)


@asynccontextmanager
async def log_source(address: str, *ends: int, epoch: int | None = None, token: str = "") -> AsyncIterator[LogSource]:
    """A source of `TOPIC` whose partitions end there."""
    async with AsyncClient(address, token=token or None) as client, client.attach_source("broker", ["kafka/"]) as link:
        source = LogSource(client, link, dict(enumerate(ends)), epoch)
        running = asyncio.create_task(source.run())
        try:
            await until_live(client)
            yield source
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)  # it has failed if the daemon was killed


async def until(http_address: str, condition: Callable[[int, Any], bool], query: str = QUERY, name: str = "web") -> Any:  # noqa: ANN401 - JSON
    """Ask until an answer meets the condition, and return that answer."""

    async def answer() -> tuple[Any] | None:
        status, gate = await ask(http_address, query, name=name)
        return (gate,) if condition(status, gate) else None

    return (await eventually(answer))[0]


async def ask(
    http_address: str, query: str = QUERY, headers: Mapping[str, str] | None = None, **parameters: str
) -> tuple[int, Any]:
    """Status and JSON of one request; `name` is web unless it is given."""
    given = {} if "names" in parameters else {"name": "web"}
    more = "&".join(f"{name}={value}" for name, value in {**given, **parameters}.items())
    return await send("GET", http_address, f"{query}&{more}", headers)


async def send(
    method: str, http_address: str, query: str, headers: Mapping[str, str] | None = None, page: str = "ready"
) -> tuple[int, Any]:
    """Status and JSON of a request with exactly this query."""
    url = f"http://{http_address}/v1/{page}?{query}"
    async with aiohttp.ClientSession(headers=headers) as client, client.request(method, url) as answer:
        return answer.status, await answer.json()
