"""How measurements become rows, ratios and the table in docs/performance.md."""

import re
from pathlib import Path

import pytest

from bench.measure.pairing import Figure, in_turn, ratio
from bench.measure.result_rows import read_rows
from bench.render.page import with_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
LATEST = ROOT / "bench" / "results" / "latest.json"


def test_the_ratio_is_the_median_over_pairs() -> None:
    """Subject and peer alternate after a warm-up; a slow moment of the machine changes values but no ratio."""
    turns: list[str] = []

    def scripted(name: str, rates: list[float]) -> dict[str, float]:
        turns.append(name)
        return {"seconds": 2.0, "operations": 2.0 * rates.pop(0)}

    ours, theirs = [0.1, 10.0, 1.0, 10.0], [99.0, 5.0, 0.5, 2.5]
    [row] = in_turn(
        [Figure("x", "ops/s")],
        ("engine", lambda: scripted("ours", ours)),
        {"peer": lambda: scripted("peer", theirs)},
        3,
        "here",
    )
    assert turns == ["ours", "peer"] * 4
    assert (row.value, row.ratio, row.min, row.max, row.runs) == (10.0, 2.0, 2.0, 4.0, 3)


@pytest.mark.parametrize(
    ("ours", "theirs", "unit", "expected"),
    [(10, 5, "ops/s", 2.0), (10, 5, "us", 0.5), (5, 10, "B", 2.0), (0.0, 1.0, "ms", 1_000.0), (-1.0, 1.0, "ms", 1e3)],
)
def test_a_ratio_above_one_is_better_in_every_unit(ours: float, theirs: float, unit: str, expected: float) -> None:
    """For rates more is better, for all other units less; values below the resolution count as the resolution."""
    assert ratio(ours, theirs, unit) == pytest.approx(expected)


def test_the_page_shows_the_committed_results() -> None:
    """The table matches latest.json, and every picture on the page exists."""
    text = PAGE.read_text("utf-8")
    assert text == with_table(text, read_rows(LATEST))
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert [name for name in pictures if not (PAGE.parent / name).exists()] == []
