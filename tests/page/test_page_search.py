"""The search and the tables of pending operations, which the daemon answers over all of them; use by keyboard alone."""

import pytest
from playwright.sync_api import Browser
from purgatory_client import events
from purgatory_client.blocking import Client

from tests.kit.daemon import DaemonProcess
from tests.page.page_kit import CROWD, HOUR_MS, URGENT, URGENT_SESSION, WatchedPage, call, register_one, watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

ROWS = "#operations tbody tr:not([hidden])"


def operations(seen: WatchedPage) -> list[str]:
    """The titles (or, if short, the names) of the operations in the table."""
    links = seen.page.locator(f"{ROWS} th a")
    return [str(one.get_attribute("title") or one.text_content()) for one in links.all()]


URGENT_ONES = {f"{URGENT_SESSION} / {number}" for number in range(1, URGENT + 1)}


def test_the_first_to_expire_are_found_among_all(browser: Browser, crowded: DaemonProcess) -> None:
    """By the order, five of five come first; by the search, in any case, there are no others. Long ids are short."""
    with watched_page(browser, crowded.http_address, address="#/waits") as seen:
        seen.wait_for_text("#found", f"{CROWD + URGENT:,} operations wait on 101 names")
        assert set(operations(seen)[:URGENT]) == URGENT_ONES
        assert str(seen.page.locator(f"{ROWS} th a").first.text_content()).startswith("3f2a90cc…d8f0 / ")
        assert seen.page.locator("#hot progress").first.get_attribute("aria-label") == "1 % of these operations"
        for text in ("URGENT-refunds-0", "urgent", URGENT_SESSION[5:20].upper()):
            seen.page.fill("#find", text)
            seen.wait_for_text("#found", f"“{text}” matches {URGENT} operations")
            assert set(operations(seen)) == URGENT_ONES
        seen.page.fill("#find", f"{URGENT_SESSION} / 3")
        seen.wait_for_text("#found", "matches 1 operation,")
        assert operations(seen) == [f"{URGENT_SESSION} / 3"]
        seen.page.locator(f"{ROWS} th a").click()
        seen.wait_for_text("h1", f"{URGENT_SESSION} / 3")
        seen.check()


def test_columns_sort_and_the_kind_filters(browser: Browser, crowded: DaemonProcess) -> None:
    register_one(crowded, "sorted-last", 7, timeout_ms=100 * HOUR_MS)
    with watched_page(browser, crowded.http_address, address="#/waits") as seen:
        left = seen.page.get_by_role("button", name="Left")
        seen.page.wait_for_selector(ROWS)
        left.click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "sorted-last / 1")
        assert seen.page.get_attribute("#operations th[aria-sort]", "aria-sort") == "descending"
        assert not URGENT_ONES & set(operations(seen))
        left.click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "3f2a90cc…d8f0")
        seen.page.get_by_role("button", name="Waited").click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "crowd")
        seen.page.get_by_role("button", name="Waited").click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "sorted-last / 1")
        assert seen.page.url.endswith("#/waits?order=waited")
        seen.page.reload()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "sorted-last / 1")
        seen.page.select_option("#kind", "signal")
        seen.wait_for_text("#found", "0 operations")
        seen.wait_for_text("#operations td.empty", "No pending operation matches.")
        seen.page.get_by_role("button", name="Topic and partition, or key").click()
        seen.page.select_option("#kind", "")
        seen.wait_for_text("#hot tbody tr:nth-child(2) th", "Urgent-Refunds-0")
        seen.check()
    call(crowded, "Cancel", {"sessionId": "sorted-last"})


def test_the_dialog_says_how_many_would_be_cancelled(browser: Browser, crowded: DaemonProcess) -> None:
    with watched_page(browser, crowded.http_address, address="#/partition?topic=orders&partition=7") as seen:
        seen.wait_for_text("#held", "Nothing has been reported for orders-7 yet.")
        seen.wait_for_text(ROWS, "nothing has been reported for orders-7 yet")
        seen.page.get_by_role("button", name="Cancel 2,000 operations …").click()
        seen.wait_for_text("#confirm-what", "Cancel 2,000 operations waiting on orders-7?")
        seen.page.get_by_role("button", name="Keep waiting").click()
        seen.check()


def test_search_without_results_and_unknown_views_lead_on(browser: Browser, daemon: DaemonProcess) -> None:
    with Client(daemon.address) as client:
        client.advance_many([events.high_watermark(("idle", 4), 9)]).raise_for_refusals()
    with watched_page(browser, daemon.http_address) as seen:
        seen.page.keyboard.press("/")
        seen.page.keyboard.type("no/such thing")
        seen.wait_for_text("#nothing", "Nothing that is pending matches “no/such thing”.")
        seen.page.get_by_role("link", name="look among all partitions").click()
        seen.wait_for_text("td.empty", "No topic begins with “no/such thing”.")
        seen.page.fill("#find", "idle-4")
        seen.wait_for_text("#hot tbody th", "idle-4")
        seen.view("#/nonsense/here")
        seen.wait_for_text("h1", "No such view")
        assert seen.page.locator("nav a[aria-current]").count() == 0
        seen.page.get_by_role("link", name="Go to Now").click()
        seen.wait_for_text("h1", "Now")
        seen.check()


FOCUS = "() => document.activeElement.id || document.activeElement.textContent"


def test_keyboard_reaches_every_view(browser: Browser, daemon: DaemonProcess) -> None:
    with watched_page(browser, daemon.http_address) as seen:
        reached = []
        names = ["Now", "Last hour", "Wheel", "Waits", "Partitions", "Sessions", "Webhooks", "Ended"]
        for _ in range(2 + len(names)):
            seen.page.keyboard.press("Tab")
            reached.append(seen.page.evaluate("() => document.activeElement.textContent"))
        assert reached == ["Skip to content", "Purgatory", *names]
        seen.page.keyboard.press("Enter")
        seen.wait_for_text("h1", "Recently ended")
        assert seen.page.evaluate("() => document.activeElement.id") == "view"
        assert seen.page.get_attribute("nav a[aria-current]", "href") == "#/ends"
        seen.check()


def test_an_operation_is_found_and_cancelled_by_keyboard(browser: Browser, daemon: DaemonProcess) -> None:
    """Tab leads from the search to a name, its view and its button. Escape closes the dialog and restores the focus."""
    register_one(daemon, "by keyboard", 4_000, topic="typed")
    with watched_page(browser, daemon.http_address, address="#/waits") as seen:
        press = seen.page.keyboard.press

        def tab_to(name: str) -> None:
            for _ in range(40):
                if seen.page.evaluate(FOCUS) == name:
                    return
                press("Tab")
            raise AssertionError(f"Tab does not reach {name!r}, but {seen.page.evaluate(FOCUS)!r}")

        press("/")
        assert seen.page.evaluate(FOCUS) == "find"
        seen.page.keyboard.type("Typed-0")
        seen.wait_for_text("#found", " 1 name and")
        tab_to("hot")  # a scrollable table can be scrolled by keyboard
        tab_to("typed-0")
        press("Enter")
        seen.wait_for_text("h1", "typed-0")
        seen.wait_for_text("tbody", "by keyboard / 1")
        tab_to("Cancel 1 operation …")
        press("Enter")
        seen.page.wait_for_selector("#confirm[open]")
        assert seen.page.evaluate(FOCUS) == "Keep waiting"
        press("Escape")
        seen.page.wait_for_selector("#confirm", state="hidden")
        assert seen.page.evaluate(FOCUS) == "Cancel 1 operation …"
        assert call(daemon, "GetOperation", {"sessionId": "by keyboard", "operationId": 1})
        press("Enter")
        seen.page.wait_for_selector("#confirm[open]")
        tab_to("confirm-yes")
        assert seen.page.inner_text("#confirm-yes") == "Cancel 1 operation"
        with seen.page.expect_request("**/Cancel"):
            press("Enter")
        seen.wait_for_text("tbody", "Nothing is pending here that you may see.")
        assert len([address for address in seen.requests if address.endswith("/Cancel")]) == 1, (
            "only what was confirmed"
        )
        seen.check()
