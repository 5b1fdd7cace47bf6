"""Views for operators in a real browser: the last hour, sessions, webhooks, the wheel, errors, and verdicts in time."""

import re
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from purgatory_client import events
from purgatory_client.blocking import Client

from purgatory.extensions.page.daemon_views import documentation_url
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import wait_until
from tests.page.page_kit import (
    CROWD,
    SESSION,
    TOPIC_OF_ITS_OWN,
    URGENT,
    WatchedPage,
    call,
    register,
    register_one,
    signal_key,
    watched_page,
)
from tests.webhooks.callbacks import CallbackCaller, webhook_flags
from tests.webhooks.receiver import WebhookReceiver

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

LONG_ID = "0123456789abcdef0123456789abcdef"


def figure(seen: WatchedPage, name: str, value: str) -> None:
    """Wait until the figure with this name has this value."""
    seen.page.wait_for_function(
        """([name, value]) => [...document.querySelectorAll(".figure")].some((one) =>
          one.querySelector("dt").textContent === name && one.querySelector("dd span").textContent === value)""",
        arg=[name, value],
    )


def test_the_last_hour_has_time_axes(browser: Browser, daemon: DaemonProcess) -> None:
    """Five charts are drawn without another host, follow the theme, and their figures are in a table too."""
    with watched_page(browser, daemon.http_address, address="#/hour") as seen:
        seen.wait_for_text("#hour-lead", "A point every ten seconds")
        assert seen.page.locator(".plot canvas").count() == 5
        seen.wait_for_text("tbody th", "Pending operations")
        seen.wait_for_text("tbody th", "Operations per second: registered")
        light = seen.page.locator(".plot .u-marker").nth(1).evaluate("(one) => one.style.border")
        seen.page.emulate_media(color_scheme="dark")
        seen.page.wait_for_function(
            "(light) => document.querySelectorAll('.plot .u-marker')[1].style.border !== light", arg=light
        )
        assert seen.page.locator(".plot canvas").count() == 5
        assert seen.sticking_out() == []
        seen.view("#/now")
        seen.page.wait_for_selector("#pending")
        seen.check()


def test_charts_are_loaded_again_if_that_failed(browser: Browser, daemon: DaemonProcess) -> None:
    with watched_page(browser, daemon.http_address, address=f"#/operation?session={SESSION}&id=999999") as seen:
        seen.wait_for_text(".lead", "It is not pending")
        assert seen.page.locator(".figures").is_hidden()
        seen.page.route("**/uPlot.iife.min.js", lambda route: route.abort(), times=1)
        with seen.page.expect_event("requestfailed"):
            seen.view("#/hour")
        seen.view("#/now")
        seen.wait_for_text("h1", "Now")
        seen.view("#/hour")
        seen.wait_for_text("#hour-lead", "A point every ten seconds")
        seen.check("404", "net::ERR_FAILED", "error: ")


def test_ended_rows_are_not_drawn_again(browser: Browser, daemon: DaemonProcess) -> None:
    with watched_page(browser, daemon.http_address, address="#/ends") as seen:
        register_one(daemon, "ended-first", 1_000_000, timeout_ms=5)
        seen.wait_for_text("tbody th", "ended-first / 1")
        ended = seen.page.evaluate("""() => {
          const rows = [...document.querySelectorAll("tbody tr")];
          const row = rows.find((one) => one.textContent.includes("ended-first"));
          window.touched = 0;
          new MutationObserver((all) => { window.touched += all.length; })
            .observe(row, {subtree: true, childList: true, characterData: true, attributes: true});
          return row.lastElementChild.textContent;
        }""")
        assert re.search(r"\d\d:\d\d:\d\d$", ended), ended
        register_one(daemon, "ended-second", 1_000_000, timeout_ms=5)
        seen.wait_for_text("tbody th", "ended-second / 1")
        assert seen.page.evaluate("() => window.touched") == 0
        seen.check()


def test_session_is_found_shown_and_closed_after_a_confirmation(browser: Browser, daemon: DaemonProcess) -> None:
    register_one(daemon, LONG_ID, 50, topic="closing")
    register(daemon, LONG_ID, "SIGNAL", (2,), keys=["closing/done"])
    signal_key(daemon, "closing/done")
    with watched_page(browser, daemon.http_address, address="#/sessions") as seen:
        seen.page.fill("#search", LONG_ID[5:20].upper())
        seen.wait_for_text(".lead", "1 shown of")
        seen.page.get_by_role("link", name="01234567…cdef", exact=True).click()
        seen.wait_for_text("h1", LONG_ID)
        figure(seen, "pending", "1")
        figure(seen, "unacknowledged", "1")
        seen.wait_for_text("#session-waits tbody", "closing-0")
        seen.wait_for_text("#session-results tbody", "satisfied")
        seen.wait_for_text("#session-results tbody", "closing/done")
        close = seen.page.get_by_role("button", name="Close the session …")
        close.click()
        seen.wait_for_text("dialog[open]", "Pending operations that are cancelled: 1.")
        seen.page.get_by_role("button", name="Keep it").click()
        assert call(daemon, "GetOperation", {"sessionId": LONG_ID, "operationId": 1})
        close.click()
        seen.page.get_by_role("button", name="Close it").click()
        seen.wait_for_text(".notice", "Operations cancelled: 1. Results dropped: 1.")
        seen.wait_for_text("#session-lead", "does not exist")
        seen.view(f"#/operation?session={SESSION}&id=1000")
        seen.page.get_by_role("link", name="Its session").click()
        seen.wait_for_text("#session-lead", "away")
        # The browser reports the response 404 to the stream of the closed session.
        seen.check("404")


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


def test_dead_letters_are_resent_and_deleted_after_a_confirmation(browser: Browser, undelivered: DaemonProcess) -> None:
    with watched_page(browser, undelivered.http_address, address="#/webhooks") as seen:
        seen.wait_for_text("#letters tbody", "HTTP 410")
        figure(seen, "dead letters", "2")
        figure(seen, "refused", "2")
        seen.wait_for_text("#callbacks tbody", "undelivered")
        seen.page.get_by_role("button", name="Resend", exact=True).first.click()
        seen.wait_for_text(".notice", "being sent again: 1")
        figure(seen, "dead letters", "1")
        figure(seen, "delivered", "1")
        delete = seen.page.get_by_role("button", name="Delete …").last  # the list is a second older than the figures
        delete.click()
        seen.page.get_by_role("button", name="Keep it").click()
        figure(seen, "dead letters", "1")
        delete.click()
        seen.page.get_by_role("button", name="Delete it").click()
        seen.wait_for_text(".notice", "Letters deleted: 1")
        figure(seen, "dead letters", "0")
        seen.wait_for_text("#letters td.empty", "There are no dead letters.")
        assert seen.sticking_out() == []
        seen.page.get_by_role("link", name="undelivered", exact=True).click()
        seen.wait_for_text("#session-lead", "Its results are POSTed to http://127.0.0.1")
        seen.check()


def test_view_says_that_webhooks_are_not_loaded(browser: Browser, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--extensions", "page")
    with watched_page(browser, daemon.http_address, address="#/webhooks") as seen:
        seen.wait_for_text("#webhooks-lead", "not loaded")
        seen.check()


def test_the_wheel_stays_readable_with_many_operations(browser: Browser, crowded: DaemonProcess) -> None:
    with watched_page(browser, crowded.http_address, address="#/wheel") as seen:
        seen.page.wait_for_function(
            """(many) => {
              const rows = [...document.querySelectorAll("tbody tr:not([hidden])")];
              const texts = rows.map((row) => row.cells[3].textContent);
              const total = texts.reduce((sum, text) => sum + Number(text.replace(/[^0-9]/g, "")), 0);
              return total === many && !texts.some((text) => text.includes("≥"));
            }""",
            arg=CROWD + URGENT,
        )
        rings = seen.page.locator("tbody tr:visible").count()
        assert (rings >= 5, seen.page.locator("path.sector").count()) == (True, 20 * rings)
        colours = seen.page.evaluate(
            "() => [...new Set([...document.querySelectorAll('path.sector')].map((one) => one.style.fill))]"
        )
        assert len(colours) >= 8, colours
        assert seen.page.locator("#scale > span").all_text_contents()[-1] in {"10,000", "100,000"}
        assert "17 h a turn" in seen.page.locator(".ring-name").all_text_contents()
        seen.check()


NAME = (TOPIC_OF_ITS_OWN, 0)


def test_ended_operations_have_the_error_that_the_command_line_prints(
    browser: Browser, start_daemon: StartDaemon
) -> None:
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


def test_estimate_says_whether_a_wait_ends_in_time(browser: Browser, start_daemon: StartDaemon) -> None:
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


def test_footer_links_to_the_documentation_of_the_package(browser: Browser, daemon: DaemonProcess) -> None:
    named = [url for url in metadata("purgatory-waits").get_all("Project-URL", []) if url.startswith("Documentation")]
    with watched_page(browser, daemon.http_address) as seen:
        seen.wait_for_text("#about", "Purgatory")
        link = seen.page.locator("#docs")
        assert (link.get_attribute("href") or "") == documentation_url()
        assert link.is_visible() == bool(named)
        seen.check()
