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


alt = pytest.importorskip("altair")
plots = pytest.importorskip("bench.render.plots")

PREFIX = "engine/register-complete/pending="


def row(name: str, peer: str | None, ratio: float | None, unit: str = "ops/s") -> Row:
    return Row(name, "engine", peer, 1_000.0, unit, ratio, 1, 1.0, 1.0, "here")


def test_ours_is_drawn_once_and_each_peer_beside_it() -> None:
    """Ours stands in the row of each peer; the plot has it once. Peers' values follow from the ratios."""
    rows = [row("timer/add-cancel", "kafka", 2.0), row("timer/add-cancel", "netty", 4.0), row("x", "kafka", 1.0)]
    found = plots.unique(plots.points(rows, {"timer/add-cancel": "both"}))
    assert [(point["who"], point["value"]) for point in found] == [("purgatory", 1_000), ("kafka", 500), ("netty", 250)]


def test_what_was_not_measured_is_not_drawn() -> None:
    """A run with some of the rows has some of the plots; one with none has none."""
    drawn = {name for name, chart in plots.all_charts([row(f"{PREFIX}10", "kafka", 2.0)]).items() if chart is not None}
    assert drawn == {"throughput"}
    assert not any(plots.all_charts([]).values())


@pytest.mark.slow  # draws
def test_pictures_and_page_are_written(tmp_path: Path) -> None:
    """A PNG for each plot, and one page that needs no network."""
    rows = [row(f"{PREFIX}{pending}", "kafka", 2.0) for pending in (10, 100)] + [row("memory/daemon", None, None, "B")]
    written = plots.write_plots(rows, tmp_path)
    assert [path.name for path in written] == ["throughput.png", "memory.png", "latest.html"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written[:-1])
    page = written[-1].read_text("utf-8")
    assert "<script src=" not in page
    assert "operations pending on each key" in page
