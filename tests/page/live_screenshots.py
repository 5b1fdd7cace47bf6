"""Screenshots of the live page for the documentation: `make screenshots`.

`python -m tests.page.live_screenshots docs/images`
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from purgatory_client.blocking import Client

from tests.kit.daemon import DaemonProcess
from tests.page.page_kit import register_waits, steady_load, tell_marks, watched_page
from tests.pipeline.page.browser import chromium_path, running_browser

BYTES_MAX = 200_000
PICTURES: tuple[tuple[str, str, int, int, Literal["light", "dark"], int], ...] = (
    ("page-partition", "partition?topic=orders&partition=2", 1200, 800, "light", 20),
    ("page-phone", "operation?session=checkout&id=60", 390, 780, "dark", 10),
    ("page-wheel", "wheel", 1160, 740, "light", 10),
    ("page-waits", "waits", 1160, 740, "light", 10),
    ("page-now", "now", 1200, 800, "light", 40),
)
"""Name, view, width, height, theme, and how often marks move while the page is open."""


def main(folder: Path) -> int:
    """Save each picture as FOLDER/NAME.png."""
    with tempfile.TemporaryDirectory() as scratch:
        daemon = DaemonProcess(Path(scratch))
        try:
            with (
                Client(daemon.address) as client,
                running_browser(chromium_path()) as browser,
                steady_load(daemon.address),
            ):
                tell_marks(client)
                register_waits(client)
                step = 0
                for name, view, width, height, scheme, steps in PICTURES:
                    with watched_page(
                        browser, daemon.http_address, width=width, height=height, scheme=scheme, address=f"#/{view}"
                    ) as seen:
                        for _ in range(steps):
                            step += 1
                            tell_marks(client, step)
                            time.sleep(0.4)  # let the marks move while the page is open
                        path = folder / f"{name}.png"
                        wide = seen.page.evaluate("() => document.body.clientWidth")  # without scrollbar
                        seen.page.screenshot(path=path, clip={"x": 0, "y": 0, "width": wide, "height": height})
                        assert path.stat().st_size < BYTES_MAX, f"{path} has {path.stat().st_size} bytes"
                        print(f"{path}  {path.stat().st_size / 1_000:,.0f} kB")
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
