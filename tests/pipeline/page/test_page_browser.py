"""The pages in a real browser: everything is drawn, nothing is loaded, and hostile text is only text."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import Page
from purgatory_pipeline.replay.replay_page import replay_page
from purgatory_pipeline.report.report_page import report_page

from tests.pipeline.page import page_frames
from tests.pipeline.page.browser import PHONE, WIDE, chromium_path, opened, running_browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE_TOPICS = (
    page_frames.HOSTILE,
    '"><img src="http://nowhere.invalid/x.png" onerror="alert(2)"><!--\u202e\x00\ud800\n${alert(3)} {{7*7}}',
    "w" * 249,
)
PLOTS = (
    "Operations ended, by outcome",
    "The part that was not satisfied",
    "Waits of fetch operations",
    "Waits of produce operations",
)
"""The titles of all plots except the curves, which are named after their topics."""


def write(page: Page, path: Path) -> None:
    path.write_text(document.render(page), "utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser(chromium_path()) as browser:
        yield browser


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "report.html"
    write(report_page(page_frames.report_frames(), page_frames.report_info()), path)
    return path


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    info = page_frames.report_info(archive=page_frames.HOSTILE, notes=(page_frames.HOSTILE,))
    write(report_page(page_frames.report_frames(HOSTILE_TOPICS), info), path)
    return path


def test_every_plot_is_drawn_and_explained(browser: Browser, plain_page: Path) -> None:
    """All plots of a full report are drawn, offline, without console messages and requests.

    Each plot has a description, and its section a table with the figures. A bar under the pointer shows its window and
    outcome.
    """
    with opened(browser, plain_page) as seen:
        seen.check()
        titles = [plot.title for plot in seen.plots()]
        assert [title for title in PLOTS if title not in titles] == []
        curves = [f"{topic} · {kind}" for topic in page_frames.TOPICS for kind in page_frames.KINDS]
        assert [title for title in titles if title not in PLOTS] == curves
        descriptions = seen.page.locator(".drawing").evaluate_all("all => all.map((one) => one.ariaLabel)")
        assert len(descriptions) == len(titles)
        assert [text for text in descriptions if len(text or "") < 20] == []
        assert seen.page.locator("section:has(figure.plot):not(:has(table))").count() == 0
        seen.page.locator("figure.plot").first.locator("g.mark-rect path").nth(5).hover()
        tip = seen.page.locator("#vg-tooltip-element.visible")
        tip.wait_for()
        assert "1 Jul 05:00" in tip.inner_text()
        assert "satisfied" in tip.inner_text()


@pytest.mark.parametrize("page", ["plain_page", "hostile_page"])
def test_pages_fit_on_a_phone(browser: Browser, page: str, request: pytest.FixtureRequest) -> None:
    with opened(browser, request.getfixturevalue(page), PHONE) as seen:
        seen.check()


def test_hostile_text_is_only_text(browser: Browser, hostile_page: Path) -> None:
    with opened(browser, hostile_page) as seen:
        seen.check()
        cells = seen.page.locator("td").all_text_contents()
        for topic in HOSTILE_TOPICS:
            assert wording.text(topic) in cells
        assert page_frames.HOSTILE in (seen.page.locator(".subtitle").text_content() or "")
        assert page_frames.HOSTILE in seen.page.locator(".notice").all_text_contents()
        assert seen.page.locator("img").count() == 0
        assert seen.page.locator("script:not([type])").count() == 2


def test_a_replay_is_drawn(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    policies = (*page_frames.SWEEP, f"{page_frames.HOSTILE}:timeout_ms=5")
    frames = page_frames.replay_frames(policies, HOSTILE_TOPICS)
    write(replay_page(frames, page_frames.replay_info(policies=policies)), path)
    for viewport in (WIDE, PHONE):
        with opened(browser, path, viewport) as seen:
            seen.check()
            plots = seen.plots()
            assert len(plots) == 4
            assert any(text.startswith("</script>") for plot in plots for text in plot.texts)
            assert wording.text(HOSTILE_TOPICS[0]) in seen.page.locator("td").all_text_contents()


def test_dark_and_light_differ(browser: Browser, plain_page: Path) -> None:
    """Page and plots follow the reader's choice of light or dark; printed pages are always light."""
    colours = {}
    ink = "() => getComputedStyle(document.querySelector('svg .role-axis-label text')).fill"
    paper = "() => getComputedStyle(document.body).backgroundColor"
    for scheme in ("light", "dark"):
        with opened(browser, plain_page, scheme=scheme) as seen:
            colours[scheme] = (seen.page.evaluate(ink), seen.page.evaluate(paper))
            seen.page.emulate_media(media="print")
            colours[f"{scheme} print"] = (seen.page.evaluate(ink), "")
    assert len({colours["light"][0], colours["dark"][0]}) == 2
    assert len({colours["light"][1], colours["dark"][1]}) == 2
    assert colours["dark print"] == colours["light print"] == (colours["light"][0], "")
