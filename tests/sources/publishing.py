"""A source that publishes to a daemon, and waits for its marks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from purgatory_client import AsyncClient
from purgatory_client.errors import NotFound
from purgatory_client.views import Partition
from purgatory_connectors.cli import open_source
from purgatory_connectors.publisher.publisher import Publisher

from purgatory.source_uri import SourceUri
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually


@asynccontextmanager
async def publishing(daemon: DaemonProcess, uri: str) -> AsyncIterator[AsyncClient]:
    """A client of the daemon, while the source of this address publishes to it."""
    publisher = Publisher(open_source(SourceUri.parse(uri)), {daemon.address: lambda: AsyncClient(daemon.address)})
    running = asyncio.create_task(publisher.run())
    try:
        async with AsyncClient(daemon.address) as client:
            yield client
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until_mark(client: AsyncClient, topic: str, fits: Callable[[Partition], object]) -> Partition:
    """Wait until partition 0 of the topic exists and fits, and return it."""

    async def found() -> Partition | None:
        mark = await client.partition((topic, 0))
        return mark if fits(mark) else None

    mark = await eventually(found, f"{topic} is as expected", but=NotFound)
    assert mark is not None
    return mark
