"""The live page used by keyboard alone."""

import pytest
from playwright.sync_api import Browser

from tests.kit.daemon import DaemonProcess
from tests.page.page_calls import call, register_one
from tests.page.watched_page import watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

FOCUS = "() => document.activeElement.id || document.activeElement.textContent"


def test_keyboard_reaches_every_view(browser: Browser, daemon: DaemonProcess) -> None:
    """Tab visits the links in order, Enter follows one, and the focus is then on the content."""
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
