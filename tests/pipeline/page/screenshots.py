"""Takes the pictures of the pages for the documentation. `make screenshots` first makes a history and its pages.

`python -m tests.pipeline.page.screenshots REPORT.html REPLAY.html docs/images`
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ViewportSize

from tests.pipeline.page.browser import chromium_path, opened, running_browser

BYTES_MAX = 300_000
DESK: ViewportSize = {"width": 1200, "height": 900}


@dataclass(frozen=True)
class Picture:
    """A part of a page: from the top of one element to the end of another."""

    name: str
    first: str
    last: str
    scheme: Literal["light", "dark"] = "light"


REPORT = (
    Picture("report", "body", "#findings"),
    Picture("report-load", "#load", "#load"),
    Picture("report-timeouts", "#timeouts", "#timeouts .grid"),
    Picture("report-stragglers", "#stragglers", "#stragglers figure.table"),
    Picture("report-dark", "#waits", "#waits .grid", scheme="dark"),
)
REPLAY = (Picture("replay", "body", "#outcomes .grid"),)
_MARGIN = 20


def take(browser: Browser, page: Path, pictures: tuple[Picture, ...], folder: Path) -> list[Path]:
    """Each picture of the page as FOLDER/NAME.png."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    for picture in pictures:
        path = folder / f"{picture.name}.png"
        with opened(browser, page, DESK, picture.scheme) as seen:
            top, bottom = (seen.page.locator(one).first.bounding_box() for one in (picture.first, picture.last))
            assert top is not None, f"{page} has no {picture.first}"
            assert bottom is not None, f"{page} has no {picture.last}"
            start = max(top["y"] - _MARGIN, 0)
            height = bottom["y"] + bottom["height"] + _MARGIN - start
            clip = {"x": 0.0, "y": start, "width": float(DESK["width"]), "height": height}
            seen.page.screenshot(path=path, full_page=True, clip=clip)  # type: ignore[arg-type]
        taken.append(path)
    return taken


def main(report: Path, replay: Path, folder: Path) -> int:
    """Takes all pictures; returns 1 if one is too large for the documentation."""
    with running_browser(chromium_path()) as browser:
        taken = [*take(browser, report, REPORT, folder), *take(browser, replay, REPLAY, folder)]
    for path in taken:
        size = path.stat().st_size
        print(f"{path}  {size / 1_000:,.0f} kB{'  too large' if size > BYTES_MAX else ''}")
    return int(any(path.stat().st_size > BYTES_MAX for path in taken))


if __name__ == "__main__":
    sys.exit(main(*(Path(name).absolute() for name in sys.argv[1:4])))
