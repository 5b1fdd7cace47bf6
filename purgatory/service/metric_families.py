"""Metric families with labels. A row has the values of its labels (a single one without a tuple), and a measurement."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from purgatory.service.histogram import Histogram

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
