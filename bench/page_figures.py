"""The costs of the live page with a million pending operations and a steady load, in Chromium: `make page-figures`.

`python -m bench.page_figures [PENDING] [SECONDS]`. CPU is CPU time of the processes, so that a busy machine
matters little; the cost of viewers is the daemon's CPU time with them minus that of as many operations without them.
"""

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser
from purgatory_client.blocking import Client

from tests.kit.daemon import DaemonProcess
from tests.page.page_kit import call, register_crowd, size_of, steady_load, watched_page
from tests.pipeline.page.browser import chromium_path, running_browser

VIEWS: Final = ("now", "wheel", "waits", "ends", "hour")
TAB_S: Final = 20.0
PAINT = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0].startTime,
  bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((sum, one) => sum + one.transferSize, 0),
  now: performance.now(),
})"""


def daemon_cpu_s(daemon: DaemonProcess) -> float:
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def browser_cpu_s(browser: Browser) -> float:
    """CPU time of all processes of the browser: of its tabs, of drawing, and of the network."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return sum(float(one["cpuTime"]) for one in processes)


class DaemonCost:
    """The daemon's CPU time and registered operations since this object was made."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        self._start = self._read()

    def _read(self) -> tuple[float, float, int]:
        registered = sum(int(kind.get("registered", 0)) for kind in call(self._daemon, "GetStatus", {})["kinds"])
        return time.monotonic(), daemon_cpu_s(self._daemon), registered

    def since(self) -> tuple[float, float, int]:
        """Seconds, CPU seconds, operations."""
        seconds, cpu_s, registered = (now - then for now, then in zip(self._read(), self._start, strict=True))
        return seconds, cpu_s, int(registered)


def first_paint(browser: Browser, address: str) -> None:
    for view, has_data in (("now", "#pending"), ("waits", "#operations tbody th")):
        with watched_page(browser, address, address=f"#/{view}") as seen:
            seen.page.wait_for_function(f"() => /\\d/.test(document.querySelector('{has_data}')?.textContent)")
            paint = seen.page.evaluate(PAINT)
            print(
                f"{view}: first paint after {paint['paint']:,.0f} ms, first data after {paint['now']:,.0f} ms, "
                f"{paint['bytes'] / 1_000:,.0f} kB transferred"
            )


def tabs(browser: Browser, address: str) -> None:
    for view in VIEWS:
        with watched_page(browser, address, address=f"#/{view}") as seen:
            seen.page.wait_for_timeout(3_000)  # loading is not counted
            start_s, cpu_s = time.monotonic(), browser_cpu_s(browser)
            seen.page.wait_for_timeout(TAB_S * 1_000)
            used = (browser_cpu_s(browser) - cpu_s) / (time.monotonic() - start_s)
            print(f"one tab on {view}: {used:.1%} of a core in all processes of the browser")


def viewers(browser: Browser, daemon: DaemonProcess, seconds: float) -> None:
    alone = DaemonCost(daemon)
    time.sleep(min(60.0, seconds))
    alone_s, alone_cpu_s, alone_operations = alone.since()
    with ExitStack() as stack:
        open_tabs = {
            view: stack.enter_context(watched_page(browser, daemon.http_address, address=f"#/{view}")).page
            for view in VIEWS
        }
        open_tabs["now"].wait_for_timeout(20_000)  # the charts of the first minutes are filled, code is compiled
        sizes = {view: [size_of(page)] for view, page in open_tabs.items()}
        watched = DaemonCost(daemon)
        for _ in range(5):
            open_tabs["now"].wait_for_timeout(seconds * 200)
            for view, page in open_tabs.items():
                sizes[view].append(size_of(page))
        watched_s, watched_cpu_s, operations = watched.since()
    extra = (watched_cpu_s - alone_cpu_s * operations / max(1, alone_operations)) / watched_s
    print(
        f"daemon without viewers: {alone_cpu_s / alone_s:.1%} of a core at {alone_operations / alone_s:,.0f} waits / s"
    )
    print(f"daemon with five viewers: {watched_cpu_s / watched_s:.1%} at {operations / watched_s:,.0f} waits / s")
    print(f"five viewers alone: {extra:.1%} of a core")
    for view, all_sizes in sizes.items():
        heap, nodes = zip(*all_sizes, strict=True)
        print(f"{view} over {watched_s:,.0f} s: heap {' '.join(map(str, heap))} kB, nodes {' '.join(map(str, nodes))}")


def main(pending: int = 1_000_000, seconds: float = 300.0) -> int:
    """Print all figures."""
    with tempfile.TemporaryDirectory() as scratch:
        daemon = DaemonProcess(Path(scratch))
        try:
            with Client(daemon.address) as client, running_browser(chromium_path()) as browser:
                register_crowd(client, pending)
                print(f"{pending:,} pending; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
                first_paint(browser, daemon.http_address)
                with steady_load(daemon.address):
                    tabs(browser, daemon.http_address)
                    viewers(browser, daemon, seconds)
                print(f"load average {os.getloadavg()[0]:.1f}")
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
