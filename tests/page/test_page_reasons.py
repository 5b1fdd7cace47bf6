"""Reasons and verdicts on the page: errors as the command line prints them, and whether a wait will end in time."""

import re
from importlib.metadata import metadata

import pytest
from playwright.sync_api import Browser
from purgatory_client import events
from purgatory_client.blocking import Client

from purgatory.extensions.page.daemon_views import documentation_url
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.page.page_calls import TOPIC_OF_ITS_OWN, register_one
from tests.page.watched_page import watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

NAME = (TOPIC_OF_ITS_OWN, 0)


def test_ended_operations_have_the_error_that_the_command_line_prints(
    browser: Browser, start_daemon: StartDaemon
) -> None:
    """A failed and an expired operation name their errors, here and on their own views; failures have a tile on Now."""
    daemon = start_daemon()
    with watched_page(browser, daemon.http_address, address="#/ends") as seen, Client(daemon.address) as client:
        client.advance_many([events.high_watermark(NAME, 1)]).raise_for_refusals()
        register_one(daemon, "late", 900, timeout_ms=5)
        seen.wait_for_text("tbody tr", "error 7 REQUEST_TIMED_OUT")
        register_one(daemon, "removed", 900)
        client.advance_many([events.removed(NAME)]).raise_for_refusals()
        seen.wait_for_text("tbody tr", "error 3 UNKNOWN_TOPIC_OR_PARTITION")
        assert re.fullmatch(
            r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", seen.page.locator("tbody tr td:last-child").last.inner_text()
        )
        seen.page.get_by_role("link", name="removed / 1").click()
        seen.wait_for_text("#outcome", f"failed: {TOPIC_OF_ITS_OWN}-0: error 3 UNKNOWN_TOPIC_OR_PARTITION.")
        seen.view("#/now")
        seen.wait_for_text(".figure", "failed / s")
        seen.wait_for_text(".figure", "1 in all")
        seen.check()


def test_an_estimate_has_a_verdict(browser: Browser, start_daemon: StartDaemon) -> None:
    """A moving mark reaches one wait in time, and another one too late: in the list and on the view of an operation."""
    daemon = start_daemon()
    register_one(daemon, "soon", 10_000)
    register_one(daemon, "never", 1 << 40)
    with (
        watched_page(browser, daemon.http_address, address="#/waits") as waits,
        watched_page(browser, daemon.http_address, address="#/operation?session=never&id=1") as never,
        Client(daemon.address) as client,
    ):
        has_both = """() => {
          const rows = [...document.querySelectorAll("#operations tbody tr")].map((row) => row.textContent);
          return rows.some((row) => /soon.*in time/.test(row)) && rows.some((row) => /never.*too late/.test(row));
        }"""
        for mark in range(100, 9_000, 100):
            client.advance_many([events.high_watermark(NAME, mark)]).raise_for_refusals()
            waits.page.wait_for_timeout(100)  # the marks of the page's next pictures
            if waits.page.evaluate(has_both) and "too late" in str(never.page.text_content("main")):
                break
        assert waits.page.evaluate(has_both)
        never.wait_for_text("main td", "too late")
        title = str(waits.page.locator("#operations td span[title]").first.get_attribute("title"))
        assert re.fullmatch(r"expires .*\d\d:\d\d:\d\d", title)
        for seen in (waits, never):
            seen.check()


def test_the_documentation_is_linked(browser: Browser, daemon: DaemonProcess) -> None:
    """The footer links to the documentation that the package's metadata names, and to nothing if it names none."""
    named = [url for url in metadata("purgatory-waits").get_all("Project-URL", []) if url.startswith("Documentation")]
    with watched_page(browser, daemon.http_address) as seen:
        seen.wait_for_text("#about", "Purgatory")
        link = seen.page.locator("#docs")
        assert (link.get_attribute("href") or "") == documentation_url()
        assert link.is_visible() == bool(named)
        seen.check()
