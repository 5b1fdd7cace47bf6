"""From a history to the pages in a browser: what the commands write is drawn, whatever topics are called."""

from dataclasses import replace
from pathlib import Path

import pytest
from purgatory_pipeline.cli import main
from pyspark.sql import SparkSession

from tests.pipeline.history.make import make_history
from tests.pipeline.history.plan import PROFILES, Plan
from tests.pipeline.page.browser import PHONE, chromium_path, opened, running_browser
from tests.pipeline.report.report_frames import HOSTILE


@pytest.mark.slow  # asks Spark, and looks at the pages in a browser
def test_commands_leave_pages_that_are_drawn(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report and replay of a history in which a topic has a hostile name: all is drawn, nothing is loaded."""
    path = chromium_path()
    archive = str(tmp_path / "archive")
    first, second = PROFILES[:2]
    make_history(Plan(4_000, runs=2, seed=5, topics=(first, replace(second, name=HOSTILE))), tmp_path / "archive")
    assert main(["report", archive, "--out", str(tmp_path / "report")]) == 0
    words = ["--sweep", "produce:timeout_ms=100,400"]
    assert main(["replay", archive, "--out", str(tmp_path / "replay"), *words]) == 0
    pages = [tmp_path / "report" / "report.html", tmp_path / "replay" / "replay.html"]
    told = capsys.readouterr().out
    assert [str(page) for page in pages if str(page) not in told] == []
    with running_browser(path) as browser:
        for page in pages:
            with opened(browser, page, PHONE) as seen:
                seen.check()
                assert len(seen.plots()) >= 3
                assert HOSTILE in seen.page.locator("td").all_text_contents()
