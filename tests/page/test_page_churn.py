"""The live page of a daemon whose operations begin and end all the time, and of one that has just started."""

import json
import subprocess

import pytest
from playwright.sync_api import Browser

from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.page.watched_page import size_of, watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

PICTURES = 5
ROUNDS = 4
VIEWS = ("now", "hour", "wheel", "waits", "partitions", "sessions", "webhooks", "ends")
HAS_ROWS = "() => document.querySelector('.scroll:not([hidden]) tbody tr:not([hidden])') !== null"
EMPTY_PICTURES = """(pictures) => new Promise((done) => {
  let seen = 0, empty = 0;
  new MutationObserver(() => {
    const rows = [...document.querySelectorAll("#operations tbody tr:not([hidden])")];
    const found = document.querySelector("#found").textContent;
    empty += rows.some((row) => row.querySelector("td.empty")) || found.startsWith("0 ");
    if ((seen += 1) === pictures) done(empty);
  }).observe(document.querySelector("#operations tbody"), {subtree: true, childList: true, characterData: true});
})"""


def test_waits_are_never_shown_as_none(browser: Browser, churning: DaemonProcess) -> None:
    """While hundreds of operations are pending, each of five pictures in a row has some, and the layout holds."""
    with watched_page(browser, churning.http_address, address="#/waits") as seen:
        seen.page.wait_for_selector("#operations tbody th")
        assert seen.page.evaluate(EMPTY_PICTURES, PICTURES) == 0
        assert seen.sticking_out() == []
        seen.check()


def test_views_leave_nothing_behind(browser: Browser, churning: DaemonProcess) -> None:
    """Going through all views again and again under churn, neither the heap nor the number of nodes grows."""
    with watched_page(browser, churning.http_address) as seen:
        sizes = []
        for _ in range(ROUNDS):
            for view in VIEWS:
                seen.view(f"#/{view}")
                seen.page.wait_for_function(HAS_ROWS)  # a handle to an element would keep its view alive
                seen.wait_live()
            seen.view("#/nonsense")
            seen.wait_for_text("h1", "No such view")
            sizes.append(size_of(seen.page))
        heap, nodes = zip(*sizes[1:], strict=True)
        assert max(nodes) < nodes[0] + 300, sizes
        assert max(heap) < heap[0] + 1_000, sizes
        seen.check()


def test_an_empty_page_shows_a_first_wait_that_works(browser: Browser, start_daemon: StartDaemon) -> None:
    """Also on a phone, the wait that the page shows becomes visible on it, the second command ends the wait, and both
    can be copied. The commands disappear once anything has been registered.
    """
    with watched_page(browser, start_daemon().http_address, width=360) as seen:
        seen.page.wait_for_selector("#first")
        wait, advance = seen.page.locator("#first pre").all_inner_texts()
        seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        seen.page.locator("#first button").last.click()
        seen.wait_for_text("#first button", "Copied")
        assert seen.page.evaluate("navigator.clipboard.readText()") == advance
        assert seen.sticking_out() == []
        waiting = subprocess.Popen(["sh", "-c", wait], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            seen.page.wait_for_selector("#first", state="hidden")
            seen.view("#/waits")
            seen.wait_for_text("#operations tbody tr", "nothing has been reported for orders-3 yet")
            subprocess.run(["sh", "-c", advance], check=True, capture_output=True, timeout=60)
            answer, _ = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
        assert json.loads(answer)["result"]["outcome"] == "OUTCOME_SATISFIED"
        seen.check()
