"""Taking turns and taking ratios: what the harness says of what it measured."""

import pytest

from bench.measure.pairing import Figure, in_turn, metric, ratio
from bench.measure.worker import Numbers


class Scripted:
    """Measurements that were written down before; notes whose turn it was."""

    def __init__(self, name: str, turns: list[str], measurements: list[Numbers]) -> None:
        self.name = name
        self.turns = turns
        self.measurements = measurements

    def __call__(self) -> Numbers:
        self.turns.append(self.name)
        return self.measurements.pop(0)


def rates(*values: float) -> list[Numbers]:
    return [{"seconds": 2.0, "operations": 2.0 * value} for value in values]


def test_subject_and_peers_take_turns() -> None:
    """A B C A B C, after a round for warming up that leaves no trace in the figures."""
    turns: list[str] = []
    ours = Scripted("ours", turns, rates(1, 10, 20))
    peers = {name: Scripted(name, turns, rates(99, 5, 5)) for name in ("one", "other")}
    rows = in_turn([Figure("x", "ops/s")], ("engine", ours), peers, 2, "here")
    assert turns == ["ours", "one", "other"] * 3
    assert [(row.peer, row.value, row.ratio, row.min, row.max, row.runs) for row in rows] == [
        ("one", 15.0, 3.0, 2.0, 4.0, 2),
        ("other", 15.0, 3.0, 2.0, 4.0, 2),
    ]


def test_the_median_is_that_of_the_pairs_ratios() -> None:
    """A pair that was measured on a slow moment of the machine moves no ratio, though it moves both its values."""
    turns: list[str] = []
    ours = Scripted("ours", turns, rates(10, 1, 10))
    peer = Scripted("peer", turns, rates(5, 0.5, 2.5))
    [row] = in_turn([Figure("x", "ops/s")], ("engine", ours), {"peer": peer}, 3, "here", warm_up=False)
    assert (row.ratio, row.value) == (2.0, 10.0)


def test_a_rate_has_the_unit_of_a_rate() -> None:
    """A rate in a unit of which less would be better would turn its ratio upside down: it is not measured."""
    ours = Scripted("ours", [], rates(1))
    with pytest.raises(AssertionError, match="less would be better"):
        in_turn([Figure("x", "s/op")], ("engine", ours), {}, 1, "here", warm_up=False)


@pytest.mark.parametrize(
    ("ours", "theirs", "unit", "expected"),
    [
        (10, 5, "ops/s", 2.0),
        (10, 5, "calls/CPU s", 2.0),
        (10, 5, "us", 0.5),
        (5, 10, "B", 2.0),
        (0.0, 1.0, "ms", 1_000.0),
        (-1.0, 1.0, "ms", 1_000.0),
    ],
)
def test_more_than_one_is_better_whatever_the_unit(ours: float, theirs: float, unit: str, expected: float) -> None:
    """Of rates more is better, of all else less; nothing is divided by what is too little to measure."""
    assert ratio(ours, theirs, unit) == pytest.approx(expected)


def test_a_figure_may_be_compared_with_another_number_of_some_peers() -> None:
    """A 99th percentile beside the peer's median, and no row for peers that the figure does not name."""
    measured = {"p50": 2.0, "p99": 8.0}
    peers = {"echo": lambda: {"p50": 4.0}, "redis": lambda: {"p50": 1.0}}
    figures = [Figure("x/p99", "us", "p99", "p50", ("echo", "absent"))]
    [row] = in_turn(figures, ("daemon", lambda: measured), peers, 1, "here")
    assert (row.peer, row.ratio) == ("echo", 0.5)


def test_without_a_peer_the_row_has_no_ratio() -> None:
    """Its spread is that of the values."""
    ours = Scripted("ours", [], [{"bytes": 3.0}, {"bytes": 1.0}, {"bytes": 2.0}])
    [row] = in_turn([Figure("memory", "B", "bytes")], ("engine", ours), {}, 3, "here", warm_up=False)
    assert (row.peer, row.ratio, row.value, row.min, row.max) == (None, None, 2.0, 1.0, 3.0)


def test_a_number_that_was_not_measured_is_an_error() -> None:
    """Only a rate is worked out; any other number must be there by its name."""
    assert metric({"seconds": 2.0, "operations": 8.0}, "rate") == 4.0
    with pytest.raises(KeyError):
        metric({"seconds": 2.0, "operations": 8.0}, "p50_us")
