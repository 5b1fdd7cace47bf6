"""Fixture of the tests of composites: a daemon of their own, because they count the operations that are pending."""

from collections.abc import Iterator

import pytest

from tests.daemon_process import DaemonProcess


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon for the tests of a module."""
    process = DaemonProcess(tmp_path_factory.mktemp("daemon"))
    yield process
    process.kill()
