"""The live page of a real daemon in a real browser, with a record of its console messages and requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from playwright.sync_api import Browser, Page, ViewportSize

TIMEOUT_MS = 30_000
STICKING_OUT = """() => {
  const wide = document.documentElement.clientWidth;
  const out = document.documentElement.scrollWidth > wide ? ["the page itself"] : [];
  for (const one of document.querySelectorAll(".scroll")) {
    if (one.scrollWidth > one.clientWidth + 1) out.push("columns of " + one.ariaLabel);
  }
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest(".scroll table, .skip, .unseen, dialog, svg")) continue;
    const box = one.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1)) out.push(one.tagName + " " + one.className);
  }
  return out;
}"""


@dataclass
class WatchedPage:
    """A page, its console messages, and the hosts that it contacted."""

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def view(self, address: str) -> None:
        """Go to a view, as following a link does."""
        self.page.evaluate("(address) => { location.hash = address }", address)

    def wait_for_text(self, selector: str, text: str) -> None:
        """Wait until an element shows this text."""
        self.page.wait_for_function(
            """([selector, text]) =>
              [...document.querySelectorAll(selector)].some((one) => one.textContent.includes(text))""",
            arg=[selector, text],
        )

    def wait_live(self) -> None:
        self.page.wait_for_selector('#state[data-state="live"]')

    def sticking_out(self) -> list[str]:
        out: list[str] = self.page.evaluate(STICKING_OUT)
        return out

    def check(self, *expected: str) -> None:
        """Check that each console message contains an `expected` text, and that no other host was contacted."""
        unexpected = [said for said in self.complaints if not any(one in said for one in expected)]
        assert unexpected == []
        assert [request for request in self.requests if not request.startswith(self.origin + "/")] == []


def size_of(page: Page) -> tuple[int, int]:
    """The heap in kB after a collection, and the number of nodes, including those that are only referenced."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return round(metrics["JSHeapUsedSize"] / 1_000), round(metrics["Nodes"])


@contextmanager
def watched_page(
    browser: Browser,
    http_address: str,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    address: str = "#/now",
    is_let_in: bool = True,
) -> Iterator[WatchedPage]:
    """Open the page in its own window. Returns once it is live, or earlier if it is expected to be refused at first."""
    viewport: ViewportSize = {"width": width, "height": height}
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    try:
        page = context.new_page()
        origin = f"http://{http_address}"
        seen = WatchedPage(page, origin)
        page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"{origin}/{address}")
        if is_let_in:
            seen.wait_live()
        yield seen
    finally:
        context.close()
