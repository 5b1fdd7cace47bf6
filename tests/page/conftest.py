"""Fixtures for the tests of the live page: one browser, and one daemon with a thousand waits of every kind."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from purgatory_client.blocking import Client

from tests.daemon_process import DaemonProcess
from tests.page.many_waits import register_waits, tell_marks
from tests.pipeline.page.browser import chromium_path, running_browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser, closed after the last test of this folder. While it runs, no test may be async."""
    with running_browser(chromium_path()) as browser:
        yield browser


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with a thousand pending operations."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("daemon"))
    try:
        with Client(daemon.address) as client:
            tell_marks(client)
            register_waits(client)
            yield daemon
    finally:
        daemon.kill()
