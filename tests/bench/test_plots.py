"""The plots: files that can be opened, of whatever rows there are."""

from pathlib import Path

import pytest

from bench.measure.result_rows import Row

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
