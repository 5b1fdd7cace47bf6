"""The live page in Chromium, as somebody opens it who has never seen it: nothing is cached."""

import os
import shutil
from typing import Final

from playwright.sync_api import sync_playwright

from bench.measure.worker import Numbers, serve

FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
FIGURES: Final = {"now": "#pending", "waits": "#found"}
"""By view: what shows a number once the daemon's first picture is there."""
HAS_NUMBER: Final = "(place) => /[0-9]/.test(document.querySelector(place)?.textContent ?? '')"
PAINTED_MS: Final = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
NOW_MS: Final = "() => performance.now()"


def browser_path() -> str:
    """Raises FileNotFoundError where there is none."""
    path = os.environ.get("PURGATORY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise FileNotFoundError("no Chromium: apt install chromium, or name it in PURGATORY_CHROMIUM")
    return path


def open_view(http_address: str, view: str) -> Numbers:
    """Opens it once: milliseconds from the navigation's start, and the bytes that have come by then."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        try:
            page = browser.new_page()
            network, received = page.context.new_cdp_session(page), [0]

            def add(count: int) -> None:
                received[0] += count

            network.on("Network.responseReceived", lambda event: add(event["response"]["encodedDataLength"]))
            network.on("Network.dataReceived", lambda event: add(event["encodedDataLength"]))
            network.send("Network.enable")
            page.goto(f"http://{http_address}/#/{view}", wait_until="commit")
            page.wait_for_function(HAS_NUMBER, arg=FIGURES[view], polling="raf")
            shown_ms = float(page.evaluate(NOW_MS))
            return {"painted_ms": float(page.evaluate(PAINTED_MS)), "shown_ms": shown_ms, "bytes": float(received[0])}
        finally:
            browser.close()


if __name__ == "__main__":
    serve({"open": open_view})
