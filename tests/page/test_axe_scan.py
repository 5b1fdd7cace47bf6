"""The live page, scanned for accessibility problems by axe-core: every view and dialog, in both themes."""

from typing import Literal

import pytest
from playwright.sync_api import Browser

from tests.daemon_process import DaemonProcess
from tests.page.axe import axe_source, violations
from tests.page.many_waits import SESSION
from tests.page.watched_page import watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

VIEWS = (
    "now",
    "wheel",
    "waits",
    f"operation?session={SESSION}&id=2",
    "partitions",
    "partition?topic=orders&partition=2",
    "key?key=nightly-3",
    "sessions",
    f"session?session={SESSION}",
    "hour",
    "webhooks",
    "ends",
)


@pytest.fixture(scope="module")
def source() -> str:
    return axe_source()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    browser: Browser, daemon: DaemonProcess, source: str, scheme: Literal["light", "dark"]
) -> None:
    """No view breaks a rule of axe, and neither do the dialogs, the banner and the results of a search."""
    with watched_page(browser, daemon.http_address, scheme=scheme) as seen:
        for view in VIEWS:
            seen.view(f"#/{view}")
            seen.page.wait_for_selector(f"main tbody tr:not([hidden]) {'td' if view in ('ends', 'webhooks') else 'th'}")
            assert (view, violations(seen.page, source)) == (view, [])
        seen.view(f"#/operation?session={SESSION}&id=2")
        seen.page.get_by_role("button", name="Cancel this operation …").click()
        assert violations(seen.page, source) == []
        seen.page.get_by_role("button", name="Keep waiting").click()
        seen.page.evaluate("() => document.querySelector('#token').showModal()")
        assert violations(seen.page, source) == []
        seen.page.keyboard.press("Escape")
        seen.page.evaluate("""() => {
          for (const id of ["#banner", "#sign-in"]) document.querySelector(id).hidden = false;
          document.querySelector("#banner-text").textContent = "Not signed in.";
        }""")
        assert violations(seen.page, source) == []
        seen.view("#/waits?q=checkout")
        seen.page.wait_for_selector("#found-sessions tbody th")
        assert violations(seen.page, source) == []
        seen.check()


def test_a_planted_fault_is_found(browser: Browser, daemon: DaemonProcess, source: str) -> None:
    """The scan finds a picture without alternative text, and text with too little contrast."""
    with watched_page(browser, daemon.http_address) as seen:
        seen.page.evaluate("""() => {
          const pale = Object.assign(document.createElement("p"), {textContent: "hardly to be read"});
          pale.style.color = "#cccccc";
          document.querySelector("main").append(document.createElement("img"), pale);
        }""")
        rules = [found.partition(":")[0] for found in violations(seen.page, source)]
        assert sorted(rules) == ["color-contrast", "image-alt"]
