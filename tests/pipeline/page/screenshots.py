"""Takes the pictures of the pages for the documentation. `make screenshots` first makes a history and its pages.

`python -m tests.pipeline.page.screenshots REPORT.html REPLAY.html docs/images`
"""

import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize

from tests.pipeline.page.browser import chromium_path, opened, running_browser

BYTES_MAX = 300_000
DESK: ViewportSize = {"width": 1200, "height": 900}
PICTURES: tuple[tuple[str, str, str, Literal["light", "dark"]], ...] = (
    ("report", "body", "#findings", "light"),
    ("report-load", "#load", "#load", "light"),
    ("report-timeouts", "#timeouts", "#timeouts .grid", "light"),
    ("report-stragglers", "#stragglers", "#stragglers figure.table", "light"),
    ("report-dark", "#waits", "#waits .grid", "dark"),
    ("replay", "body", "#outcomes .grid", "light"),
)
"""Name, from the top of which element to the end of which other one, and theme."""
_MARGIN = 20


def main(report: Path, replay: Path, folder: Path) -> None:
    """Save each picture as FOLDER/NAME.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with running_browser(chromium_path()) as browser:
        for name, first, last, scheme in PICTURES:
            with opened(browser, replay if name == "replay" else report, DESK, scheme) as seen:
                top, bottom = (seen.page.locator(one).first.bounding_box() for one in (first, last))
                assert top is not None, f"the page has no {first}"
                assert bottom is not None, f"the page has no {last}"
                start = max(top["y"] - _MARGIN, 0)
                height = bottom["y"] + bottom["height"] + _MARGIN - start
                path = folder / f"{name}.png"
                clip = {"x": 0.0, "y": start, "width": float(DESK["width"]), "height": height}
                seen.page.screenshot(path=path, full_page=True, clip=clip)  # type: ignore[arg-type]
            assert path.stat().st_size < BYTES_MAX, f"{path} has {path.stat().st_size} bytes"
            print(f"{path}  {path.stat().st_size / 1_000:,.0f} kB")


if __name__ == "__main__":
    main(*(Path(name).absolute() for name in sys.argv[1:4]))
