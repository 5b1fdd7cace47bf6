"""Fixtures for all command line tests: commands at a shared daemon, of which none outlives its test."""

from collections.abc import Iterator

import pytest

from tests.client.cli.test_commands import Answer, Background, Run, purgatory
from tests.kit.daemon import DaemonProcess


@pytest.fixture(autouse=True)
def kill_what_is_left() -> Iterator[None]:
    """Kill commands that a failing test left running, because warnings about them would appear in another test."""
    yield
    while Background.started:
        with Background.started.pop() as process:
            process.kill()


@pytest.fixture
def run(shared_daemon: DaemonProcess) -> Run:
    """Run `purgatory` with these arguments against the shared daemon."""

    def call(*arguments: str, address: str = shared_daemon.address) -> Answer:
        return purgatory(*arguments, address=address)

    return call
