"""A real browser for tests of pages: opens a file and reports errors, requests and plots.

The browser is Debian's Chromium, or the one in PURGATORY_CHROMIUM. Without a browser the tests are skipped with a
message; with PURGATORY_REQUIRE_BROWSER=1 they fail.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Dialog, Page, ViewportSize, sync_playwright

from tests.kit.programs import skip_unless_required

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb", "--hide-scrollbars",
)  # fmt: skip
WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
LOAD_MS_MAX = 120_000
"""A page loads in a second; generous for a busy machine."""

_ALL_TRIED = "() => !document.querySelector('figure.plot:not([data-drawn])')"
_PLOTS = Path(__file__).with_name("plots.js").read_text("utf-8")
_STICKING_OUT = Path(__file__).with_name("sticking_out.js").read_text("utf-8")
"""Elements that reach over the left or right edge of the window, except tables that scroll in their own box."""


@dataclass(frozen=True)
class Drawn:
    title: str
    drawn: bool
    marks: int
    nonsense: bool
    texts: list[str]


@dataclass
class Opened:
    """A page in the browser, with its console messages and requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def refuse(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(self) -> None:
        """Assert that the console is empty, that only the file was requested, and that the plots are visible and within
        the window.
        """
        assert self.complaints == []
        assert self.requests == [self.page.url]
        assert self.page.evaluate(_STICKING_OUT) == []
        assert [plot.title for plot in self.plots() if not plot.drawn or plot.marks == 0 or plot.nonsense] == []

    def plots(self) -> list[Drawn]:
        return [Drawn(**plot) for plot in self.page.evaluate(_PLOTS)]


def chromium_path() -> str:
    """The path of the browser. Without one the test is skipped, or fails where a browser is required."""
    path = os.environ.get("PURGATORY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        skip_unless_required(
            "BROWSER", "no Chromium found: pages are not tested (Debian, Ubuntu: apt install chromium)"
        )
    return path


@contextmanager
def running_browser(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, file: Path, viewport: ViewportSize = WIDE, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Opened]:
    """The file in a new window without a network, once every plot is drawn or has failed."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
    try:
        page = context.new_page()
        seen = Opened(page)
        page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        page.on("dialog", seen.refuse)
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("requestfailed", lambda request: seen.complaints.append(f"failed: {request.url}"))
        page.set_default_timeout(LOAD_MS_MAX)
        page.goto(file.as_uri())
        page.wait_for_function(_ALL_TRIED)
        yield seen
    finally:
        context.close()
