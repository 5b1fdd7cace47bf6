"""Fixtures of the client tests: one daemon per test module, and a client that cleans it up."""

from collections.abc import AsyncIterator, Iterator

import pytest
from purgatory_client import AsyncClient

from tests.daemon_process import DaemonProcess
from tests.service.in_process import run_daemon

__all__ = ["run_daemon"]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon for tests that do not damage it."""
    process = DaemonProcess(tmp_path_factory.mktemp("daemon"))
    yield process
    process.kill()


@pytest.fixture
async def client(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A client of the shared daemon, which knows no partitions when the test begins."""
    async with AsyncClient(shared_daemon.address, name="test") as client:
        for name in [one.name async for one in client.partitions()]:
            await client.advance(name, removed=True)
        yield client
