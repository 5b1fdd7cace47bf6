"""Subject and peers in turn, A B A B ..., and what is said of it: the median of the ratios of each pair.

A machine drifts and is shared; two measurements that follow each other share what it does just then. So no ratio is
ever taken of figures from different rounds.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.measure.result_rows import HIGHER_IS_BETTER, Row
from bench.measure.worker import Numbers

__all__ = ["Figure", "Measure", "in_turn"]

LEAST: Final = 1e-3
"""Of any unit: a thousandth of a millisecond, of a byte, of an operation a second."""

Measure = Callable[[], Numbers]
"""One measurement, by the names of its numbers."""


@dataclass(frozen=True)
class Figure:
    """A row that comes of a measurement: which of its numbers, and with which of the peer's it is compared.

    `metric` "rate" is operations divided by seconds where the measurement does not name it. `peers` are those that
    are compared with it; none named: all.
    """

    name: str
    unit: str
    metric: str = "rate"
    peer_metric: str = ""
    peers: tuple[str, ...] = ()


def in_turn(
    figures: Sequence[Figure],
    subject: tuple[str, Measure],
    peers: Mapping[str, Measure],
    runs: int,
    machine: str,
    *,
    warm_up: bool = True,
) -> list[Row]:
    """Measures subject and peers `runs` times in turn, after a round for warming up that is thrown away."""
    name, measure = subject
    if warm_up:
        for one in (measure, *peers.values()):
            one()
    rounds = [(measure(), {peer: one() for peer, one in peers.items()}) for _ in range(runs)]
    rows = []
    for figure in figures:
        ours = [metric(numbers, figure.metric) for numbers, _ in rounds]
        if not peers:
            rows.append(_row(figure, name, None, ours, [], machine))
        for peer in figure.peers or peers:
            if peer not in peers:
                continue
            theirs = [metric(numbers[peer], figure.peer_metric or figure.metric) for _, numbers in rounds]
            rows.append(_row(figure, name, peer, ours, theirs, machine))
    return rows


def metric(numbers: Numbers, name: str) -> float:
    """A number of a measurement. Raises KeyError when there is none of that name."""
    if name == "rate" and name not in numbers:
        return numbers["operations"] / numbers["seconds"]
    return numbers[name]


def ratio(ours: float, theirs: float, unit: str) -> float:
    """How many times better ours is. What is less than can be measured counts as the least that can."""
    better, worse = (ours, theirs) if unit in HIGHER_IS_BETTER else (theirs, ours)
    return max(better, LEAST) / max(worse, LEAST)


def _row(figure: Figure, subject: str, peer: str | None, ours: list[float], theirs: list[float], machine: str) -> Row:
    is_rate = figure.metric == "rate"
    assert not is_rate or figure.unit in HIGHER_IS_BETTER, f"{figure.name}: of {figure.unit} less would be better"
    ratios = [ratio(a, b, figure.unit) for a, b in zip(ours, theirs, strict=True)] if peer is not None else []
    spread = ratios or ours
    return Row(
        name=figure.name,
        subject=subject,
        peer=peer,
        value=statistics.median(ours),
        unit=figure.unit,
        ratio=statistics.median(ratios) if ratios else None,
        runs=len(ours),
        min=min(spread),
        max=max(spread),
        machine=machine,
    )
