"""A source of marks that a test plays: it answers where its topics end, and the test moves the marks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from purgatory_client import AsyncClient
from purgatory_client.sources.source_link import EndsWanted, MarkEnd, SourceLink, SourceState

from tests.kit.eventually import eventually


async def until_live(client: AsyncClient) -> None:
    """Wait until the daemon has read that a source is live: a report returns once it has been sent."""

    async def is_live() -> bool:
        return any(source.state == "live" for source in (await client.status()).sources)

    await eventually(is_live, "a source is live")


@contextlib.asynccontextmanager
async def played_source(address: str, end: int, partitions: int = 1) -> AsyncIterator[AsyncClient]:
    """A source for all names below kafka/, whose topics have these partitions and end at this offset."""

    async def answer(link: SourceLink) -> None:
        async for asked in link:
            if isinstance(asked, EndsWanted):
                await link.report(SourceState.LIVE)  # its reports must not be older than three seconds
                ends = [MarkEnd(name, number, end) for name in asked.topics for number in range(partitions)]
                await link.answer_ends(asked.ask_id, ends, as_of_ms=asked.as_of_ms)

    async with AsyncClient(address) as client, client.attach_source("played", ["kafka/"]) as link:
        answering = asyncio.create_task(answer(link))
        await link.report(SourceState.LIVE)
        await until_live(client)
        yield client
        answering.cancel()
