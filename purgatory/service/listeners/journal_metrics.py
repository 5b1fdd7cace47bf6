"""Metrics of the journal, apart from the journal itself."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from purgatory.service.histogram import Histogram, histograms

SYNC_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000)


class JournalStatistics(NamedTuple):
    """Counters of the journal, explained in `METRICS`."""

    groups: int
    errors: int
    bytes: int
    registrations: int
    results: int
    recovered: int


METRICS: Final = (
    (CounterMetricFamily, "purgatory_journal_groups", "Transactions of the journal."),
    (CounterMetricFamily, "purgatory_journal_errors", "Disk failures."),
    (GaugeMetricFamily, "purgatory_journal_bytes", "Size of the journal's files."),
    (GaugeMetricFamily, "purgatory_journal_registration_rows", "Rows of pending operations."),
    (GaugeMetricFamily, "purgatory_journal_result_rows", "Rows of unacknowledged results."),
    (GaugeMetricFamily, "purgatory_recovered_operations", "Waits restored from the journal so far."),
    (GaugeMetricFamily, "purgatory_journal_closed", "1: the disk fails, and new work is refused."),
    (GaugeMetricFamily, "purgatory_journal_lag_seconds", "Age of the oldest change that is not durable; 0: all are."),
)
"""Metrics, in this order: `JournalStatistics`, whether the journal is closed, and its lag."""


def journal_metrics(
    statistics: JournalStatistics, *, is_closed: bool, lag_s: float, syncs: Histogram
) -> Iterable[Metric]:
    """`lag_s`: age of the oldest change that is not durable. `syncs`: times from sealing a group to when it was."""
    for (family, name, text), value in zip(METRICS, (*statistics, int(is_closed), lag_s), strict=True):
        yield family(name, text, value)
    text = "Time from sealing a group until it was durable."
    yield histograms("purgatory_journal_sync_seconds", text, [], [((), syncs)])
