"""Rows of results: what is written is what was measured, and the table says what was reached."""

import json
from pathlib import Path

import pytest

from bench.measure.result_rows import Row, figure, read_rows, table, write_rows
from bench.reach import Reach, reach_of

FIELDS = ["name", "subject", "peer", "value", "unit", "ratio", "runs", "min", "max", "machine"]


def row(name: str, peer: str | None, value: float, unit: str, ratio: float | None) -> Row:
    return Row(name, "engine", peer, value, unit, ratio, 3, 1.0, 9.0, "here")


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A list of objects with exactly the fields that were promised, whatever is missing among them."""
    rows = [row("a", "kafka", 2.5, "ops/s", 1.25), row("b", None, 119.0, "B", None)]
    path = tmp_path / "new" / "rows.json"
    write_rows(rows, path)
    assert [list(one) for one in json.loads(path.read_text("utf-8"))] == [FIELDS, FIELDS]
    assert read_rows(path) == rows


def test_no_rows_are_a_list_too(tmp_path: Path) -> None:
    """A run in which nothing could be measured still writes valid JSON."""
    write_rows([], tmp_path / "rows.json")
    assert read_rows(tmp_path / "rows.json") == []


def test_other_json_is_refused(tmp_path: Path) -> None:
    """A file with other fields is no baseline, and the error says which file."""
    path = tmp_path / "other.json"
    path.write_text('[{"name": "a"}]', "utf-8")
    with pytest.raises(ValueError, match=r"other\.json"):
        read_rows(path)


@pytest.mark.parametrize(("unit", "expected"), [("ops/s", 2.0), ("us", 8.0)])
def test_the_peers_value_follows_from_the_ratio(unit: str, expected: float) -> None:
    """Twice as good: the peer does half of it in a second, or takes twice the time."""
    assert row("a", "kafka", 4.0, unit, 2.0).peer_value == expected
    assert row("a", None, 4.0, unit, None).peer_value is None


def test_the_table_says_what_is_reached() -> None:
    """Each row that is to reach something says what, and whether it does; the others say nothing."""
    name = "engine/register-complete/pending=10"
    text = table(
        [row(name, "kafka", 1.0, "ops/s", 2.5), row(name, "kafka", 1.0, "ops/s", 1.5), row("x", None, 1, "B", None)]
    )
    verdicts = [line.rsplit("|", 3)[1:3] for line in text.splitlines()[2:]]
    assert [[cell.strip() for cell in line] for line in verdicts] == [["≥ 2 x", "yes"], ["≥ 2 x", "**no**"], ["", ""]]


@pytest.mark.parametrize(
    ("reach", "value", "ratio", "met"),
    [
        (Reach(0.5, value_min=100), 100, 0.5, True),
        (Reach(0.5, value_min=100), 99, 0.5, False),
        (Reach(0.5, value_min=100), 100, 0.49, False),
        (Reach(0.5), 100, None, False),
        (Reach(value_max=120), 120, None, True),
        (Reach(value_max=120), 121, 9.0, False),
    ],
)
def test_reach(reach: Reach, value: float, ratio: float | None, met: bool) -> None:
    """All that is asked must be there; what was not measured does not reach a ratio."""
    assert reach.is_met(value, ratio) == met


def test_reach_without_a_peer_holds_beside_any() -> None:
    """What is asked of a value is asked whichever peers there are."""
    assert reach_of("memory/engine", "kafka") == reach_of("memory/engine", None) != None  # noqa: E711 - one chain
    assert reach_of("nothing like it", "kafka") is None


@pytest.mark.parametrize(
    ("value", "unit", "shown"), [(2_345_678, "ops/s", "2.35 M ops/s"), (1.234e9, "B", "1.23 GB"), (119.4, "B", "119 B")]
)
def test_figures_are_short(value: float, unit: str, shown: str) -> None:
    """Three digits and a unit."""
    assert figure(value, unit) == shown
