"""Histograms that take whole columns, and metric families with labels, for Prometheus.

The library's own histogram would need one call for each of millions of values. A row of a family has the values of its
labels (a single one without a tuple), and a measurement.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PARTS: Final = 4


def finer(bounds_ms: Sequence[int]) -> tuple[int, ...]:
    """The bounds, and up to three whole numbers between two of them, of two digits and in about equal ratios."""
    steps = [(low, high / low) for low, high in pairwise(bounds_ms) if low]
    between = [round(float(f"{low * ratio ** (part / PARTS):.2g}")) for low, ratio in steps for part in range(PARTS)]
    return tuple(sorted({*bounds_ms, *between}))


class Histogram:
    """Counts of values in milliseconds by inclusive upper bound; exported in seconds, as Prometheus expects.

    Counted by `finer` bounds, from which the page takes its percentiles. More series would cost Prometheus more.
    """

    def __init__(self, bounds_ms: Sequence[int]) -> None:
        assert list(bounds_ms) == sorted(set(bounds_ms)), f"bounds should rise: {bounds_ms}"
        self.bounds_ms: Final = tuple(bounds_ms)
        self.finer_ms: Final = finer(bounds_ms)
        self.sum_ms = 0.0
        self._counts: Final = [0] * (len(self.finer_ms) + 1)

    def observe(self, value_ms: float, times: int = 1) -> None:
        # Bounds are inclusive, as those of Prometheus: a value equal to a bound belongs to that bucket.
        self._counts[bisect_left(self.finer_ms, value_ms)] += times
        self.sum_ms += value_ms * times

    def observe_all(self, values_ms: Iterable[int]) -> None:
        """Add a column of values. Each value costs one count; only distinct values are sorted into buckets."""
        for value_ms, times in Counter(values_ms).items():
            self.observe(value_ms, times)

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum_seconds(self) -> float:
        return self.sum_ms / 1_000

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound in seconds, number of values up to it) for each bound; the last bound is '+Inf'."""
        totals = self.totals()
        rows = [(str(bound_ms / 1_000), totals[bisect_left(self.finer_ms, bound_ms)]) for bound_ms in self.bounds_ms]
        return [*rows, ("+Inf", totals[-1])]

    def totals(self) -> list[float]:
        """Return the number of values up to each of the `finer_ms`, and of all values."""
        return list(accumulate(self._counts))


T = TypeVar("T")
Rows = Iterable[tuple[str | Sequence[str], T]]


def counters(name: str, text: str, labels: Sequence[str], rows: Rows[float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), rows)


def gauges(name: str, text: str, labels: Sequence[str], rows: Rows[float]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), rows)


def histograms(name: str, text: str, labels: Sequence[str], rows: Rows[Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, one in rows:
        family.add_metric(_list(values), one.cumulative(), one.sum_seconds)
    return family


def _filled(family: CounterMetricFamily | GaugeMetricFamily, rows: Rows[float]) -> Metric:
    for values, value in rows:
        family.add_metric(_list(values), value)
    return family


def _list(values: str | Sequence[str]) -> Sequence[str]:
    return [values] if isinstance(values, str) else values
