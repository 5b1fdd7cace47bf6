"""The page on performance: its table is that of the committed results, its plots and its commands are there."""

import re
from pathlib import Path

import pytest

from bench.measure.result_rows import Row, read_rows, table, write_rows
from bench.render.page import BEGIN, END, pictures_in, with_table, write_table

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "performance.md"
LATEST = ROOT / "bench" / "results" / "latest.json"


def test_only_the_table_is_replaced() -> None:
    """What stands before and after the markers stays, however often it is written."""
    row = Row("x", "engine", None, 1.0, "B", None, 1, 1.0, 1.0, "here")
    once = with_table(f"# Page\n{BEGIN}\nold\n{END}\nAfter.\n", [row])
    assert once == with_table(once, [row])
    assert once.startswith("# Page\n")
    assert once.endswith("After.\n")
    assert "old" not in once
    assert table([row]) in once
    assert "Measured on: here." in once


def test_a_page_without_markers_is_refused() -> None:
    """Nothing is written into a page that has no place for it."""
    with pytest.raises(ValueError, match="no place"):
        with_table("# Page\n", [])


def test_a_page_shows_what_its_file_says(tmp_path: Path) -> None:
    """A figure that writing rounds up to a half is shown as it reads in the file, not as it was measured."""
    results, page = tmp_path / "rows.json", tmp_path / "page.md"
    write_rows([Row("x", "engine", "kafka", 1.0, "B", 0.1544996, 2, 0.1544996, 9.0, "here")], results)
    page.write_text(f"{BEGIN}{END}", "utf-8")
    write_table(page, results)
    assert page.read_text("utf-8") == with_table(f"{BEGIN}{END}", read_rows(results))


def test_the_page_shows_the_committed_results() -> None:
    """Its table is the one that the committed rows make, with the plots that were drawn of them."""
    rows = read_rows(LATEST) if LATEST.exists() else []
    text = PAGE.read_text("utf-8")
    assert text == with_table(text, rows, pictures_in(LATEST.parent))


def test_the_pages_plots_are_there() -> None:
    """Every picture that the page shows was committed with the results."""
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PAGE.read_text("utf-8"))
    assert [name for name in pictures if not (PAGE.parent / name).exists()] == []
