"""Clients for the tests of clients."""

from collections.abc import AsyncIterator, Iterator

import pytest
from purgatory_client import AsyncClient, Client

from tests.kit.daemon import DaemonProcess


@pytest.fixture
async def client(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A client of the shared daemon, which knows no partitions when the test begins."""
    async with AsyncClient(shared_daemon.address, name="test") as client:
        for name in [one.name async for one in client.partitions()]:
            await client.advance(name, removed=True)
        yield client


@pytest.fixture
def looking(shared_daemon: DaemonProcess) -> Iterator[Client]:
    """A blocking client of the shared daemon."""
    with Client(shared_daemon.address) as client:
        yield client
