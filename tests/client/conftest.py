"""Fixtures of the client's tests: one daemon for the tests of a module, and a client that leaves it clean."""

from collections.abc import AsyncIterator, Iterator

import pytest
from purgatory_client import AsyncClient

from tests.daemon_process import DaemonProcess


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon for the tests that do not harm it."""
    process = DaemonProcess(tmp_path_factory.mktemp("daemon"))
    yield process
    process.kill()


@pytest.fixture
async def client(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A client of the shared daemon, which has no partition when the test begins."""
    async with AsyncClient(shared_daemon.address, name="test") as client:
        for name in [one.name async for one in client.partitions()]:
            await client.advance(name, removed=True)
        yield client
