"""Prometheus metrics of sources, read at scrape time."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory.service.sources.source_links import SourceLinks
from purgatory.service.sources.source_table import SEEING

LABELS: Final = ["source", "principal"]
"""`principal` is empty on a daemon without a policy, which for Prometheus equals a missing label."""


class SourceMetrics(Collector):
    """Exports metrics for each source that is or was attached. Their number is bounded."""

    def __init__(self, links: SourceLinks, now_ms: Callable[[], int]) -> None:
        self._links: Final = links
        self._now_ms: Final = now_ms

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(
            "purgatory_source_up", "1 while the source is attached, reports, and is not stale.", labels=LABELS
        )
        staleness = GaugeMetricFamily(
            "purgatory_source_staleness_seconds",
            "Time since the oldest stale mark became stale; 0: none is stale.",
            labels=LABELS,
        )
        lag = GaugeMetricFamily(
            "purgatory_source_lag_seconds",
            "Delay of the published marks behind the system that the source reads.",
            labels=LABELS,
        )
        restarts = CounterMetricFamily(
            "purgatory_source_restarts", "Restarts of a source that the daemon runs.", labels=["source"]
        )
        attached = GaugeMetricFamily("purgatory_sources", "Sources of marks attached.", self._links.table.attached)
        now_ms = self._now_ms()
        for source in self._links.table:
            stream, labels = source.leading(now_ms), [source.name, source.principal]
            since_ms = stream.stale_since_ms(now_ms)
            up.add_metric(labels, int(stream.state_at(now_ms) in SEEING))
            staleness.add_metric(labels, 0 if since_ms is None else max(0, now_ms - since_ms) / 1_000)
            lag.add_metric(labels, stream.lag_ms / 1_000)
        for name in sorted({source.name for source in self._links.table}.union(self._links.restarts)):
            restarts.add_metric([name], self._links.restarts.get(name, 0))
        return attached, up, staleness, lag, restarts
