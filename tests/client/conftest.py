"""Fixtures of the client tests."""

from collections.abc import AsyncIterator

import pytest
from purgatory_client import AsyncClient, Client

from tests.daemon_process import DaemonProcess
from tests.service.in_process import run_daemon

__all__ = ["run_daemon"]


@pytest.fixture
def shared_daemon(shared_daemon: DaemonProcess) -> DaemonProcess:
    """The daemon of the run, which knows no partitions when the test begins."""
    with Client(shared_daemon.address) as client:
        for name in [one.name for one in client.partitions()]:
            client.advance(name, removed=True)
    return shared_daemon


@pytest.fixture
async def client(shared_daemon: DaemonProcess) -> AsyncIterator[AsyncClient]:
    """A client of the shared daemon."""
    async with AsyncClient(shared_daemon.address, name="test") as client:
        yield client
