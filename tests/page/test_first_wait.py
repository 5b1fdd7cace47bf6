"""The page of a daemon where nothing has been registered: the commands that it shows are what a newcomer types."""

import json
import subprocess

import pytest
from playwright.sync_api import Browser

from tests.conftest import StartDaemon
from tests.page.watched_page import watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.mark.parametrize("width", [360, 1280])
def test_an_empty_page_shows_a_first_wait_that_works(browser: Browser, start_daemon: StartDaemon, width: int) -> None:
    """The wait that the page shows becomes visible on it, the second command ends the wait, and both can be copied. The
    commands disappear once anything has been registered.
    """
    daemon = start_daemon()
    with watched_page(browser, daemon.http_address, width=width) as seen:
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
