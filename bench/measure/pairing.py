"""Measures subject and peers alternately (A B A B ...) and computes the median of the ratios of the pairs.

Machines are shared and their speed drifts, but two consecutive measurements see the same conditions. So no ratio is
computed from figures of different rounds.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.measure.result_rows import HIGHER_IS_BETTER, Row
from bench.measure.worker import Numbers

__all__ = ["Figure", "Measure", "in_turn"]

LEAST: Final = 1e-3
"""The smallest value that counts as measured, in any unit."""

Measure = Callable[[], Numbers]
"""Runs one measurement; returns its numbers by name."""


@dataclass(frozen=True)
class Figure:
    """A row of a measurement: which of its numbers is compared with which number of the peers.

    The `metric` "rate" is operations per second if the measurement has no number of that name. `peers` limits the peers
    that are compared; empty: all.
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
    """Measure subject and peers alternately, `runs` times, after a warm-up round whose figures are dropped."""
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
    """A number of a measurement, by name. Raises KeyError."""
    if name == "rate" and name not in numbers:
        return numbers["operations"] / numbers["seconds"]
    return numbers[name]


def ratio(ours: float, theirs: float, unit: str) -> float:
    """How many times better ours is, whatever the unit. Values below `LEAST` count as `LEAST`."""
    better, worse = (ours, theirs) if unit in HIGHER_IS_BETTER else (theirs, ours)
    return max(better, LEAST) / max(worse, LEAST)


def _row(figure: Figure, subject: str, peer: str | None, ours: list[float], theirs: list[float], machine: str) -> Row:
    is_rate = figure.metric == "rate"
    assert not is_rate or figure.unit in HIGHER_IS_BETTER, (
        f"{figure.name}: a rate needs a unit of which more is better, not {figure.unit}"
    )
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
