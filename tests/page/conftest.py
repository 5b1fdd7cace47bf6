"""Fixtures for the tests of the live page: one browser, and daemons with no wait, a thousand and 200,000 waits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from purgatory_client.blocking import Client

from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import wait_until
from tests.page.page_kit import register_crowd, register_waits, steady_load, tell_marks
from tests.pipeline.page.browser import chromium_path, running_browser
from tests.webhooks.receiver import CallbackCaller, WebhookReceiver, webhook_flags


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser, closed after the last test of this folder. While it runs, no test may be async."""
    with running_browser(chromium_path()) as browser:
        yield browser


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with a thousand pending operations."""
    with DaemonProcess(tmp_path_factory.mktemp("daemon")) as daemon, Client(daemon.address) as client:
        tell_marks(client)
        register_waits(client)
        yield daemon


@pytest.fixture(scope="package")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with 200,000 pending operations, and five among them that expire first."""
    with DaemonProcess(tmp_path_factory.mktemp("crowded")) as daemon:
        with Client(daemon.address) as client:
            register_crowd(client)
        yield daemon


@pytest.fixture(scope="package")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon without operations."""
    with DaemonProcess(tmp_path_factory.mktemp("idle")) as daemon:
        yield daemon


@pytest.fixture
def churning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with hundreds of operations that begin and end each second."""
    with DaemonProcess(tmp_path_factory.mktemp("churning")) as daemon, steady_load(daemon.address):
        yield daemon


@pytest.fixture
def undelivered(start_daemon: StartDaemon, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with two dead letters, whose receiver now accepts everything."""
    with WebhookReceiver(lambda _received: 410) as receiver:
        daemon = start_daemon(*webhook_flags(tmp_path))
        with CallbackCaller(daemon.address) as caller:
            caller.register("undelivered", receiver.url(), ["letter-1", "letter-2", "letter-3"])
            caller.signal("letter-1", "letter-2")
            wait_until(lambda: len(caller.dead_letters()) == 2)
            receiver.answer = lambda _received: 200
            yield daemon
