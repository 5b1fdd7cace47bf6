"""The metrics that Prometheus scrapes, read at scrape time from the host and from `metrics`.

Operations are counted by the engine and read between two of its calls, so registered = the sum of all outcomes +
pending holds in every scrape by construction.

Names of Kafka's three purgatory metrics here: PurgatorySize is `purgatory_watched_entries`, NumDelayedOperations is
`purgatory_pending_operations`, and ExpiresPerSec is the rate of `purgatory_expired_partitions_total` (produce and
delete-records mark each pending partition) or, for fetch, of `purgatory_outcomes_total{outcome="expired"}` (one per
request).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory import __version__
from purgatory.engine import COMPILED
from purgatory.engine.codes import KIND_NAMES, KINDS, OUTCOME_NAMES
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.fair_queue import WORK_NAMES
from purgatory.service.histogram import Histogram
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import REASON_NAMES, Metrics
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


def make_registry(host: Host, metrics: Metrics, pauses: PauseWatch) -> CollectorRegistry:
    """Create a registry with all metrics of the daemon, separate from the library's global one."""
    # With `auto_describe`, registering a collector would collect from it at once, before the daemon is complete.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(host, metrics, pauses))
    registry.register(host.sessions.accounts.audit)
    registry.register(SourceMetrics(host.source_links, host.listening.now_ms))
    # Not the global registry of the library: a second daemon in one process, as in tests, would register everything
    # twice.
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class HostCollector(Collector):
    """Reads the host on the event loop. The cost of a scrape does not depend on the number of pending operations."""

    def __init__(self, host: Host, metrics: Metrics, pauses: PauseWatch) -> None:
        self._host: Final = host
        self._metrics: Final = metrics
        self._pauses: Final = pauses

    def collect(self) -> Iterator[Metric]:
        yield _build_info()
        yield from self._operations()
        yield from self._times()
        yield from self._events_and_refusals()
        yield from self._sessions()
        yield from self._loop_holds()
        yield from self._memory()
        yield from self._turns()
        yield self._limits()
        yield from self._host.listeners.metrics()
        yield self._listener_failures()  # last, so that it counts those of this scrape

    def _operations(self) -> Iterable[Metric]:
        registered = CounterMetricFamily(
            "purgatory_registered",
            "Operations registered; the sum of outcomes and pending operations.",
            labels=["kind"],
        )
        pending = GaugeMetricFamily(
            "purgatory_pending_operations", "Operations that wait (Kafka: NumDelayedOperations).", labels=["kind"]
        )
        watched = GaugeMetricFamily(
            "purgatory_watched_entries",
            "Entries of waiting operations under keys (Kafka: PurgatorySize).",
            labels=["kind"],
        )
        outcomes = CounterMetricFamily(
            "purgatory_outcomes", "Operations ended, by outcome.", labels=["kind", "outcome"]
        )
        evaluations = CounterMetricFamily("purgatory_evaluations", "Times a condition was tested.", labels=["kind"])
        for kind in KINDS:
            name = KIND_NAMES[kind]
            counts = self._host.engine.inspection.counts(kind)
            registered.add_metric([name], counts.registered)
            pending.add_metric([name], counts.pending)
            watched.add_metric([name], counts.watched)
            evaluations.add_metric([name], counts.evaluations)
            outcomes.add_metric([name, "satisfied"], counts.satisfied)
            outcomes.add_metric([name, "failed"], counts.failed)
            outcomes.add_metric([name, "expired"], counts.expired)
            outcomes.add_metric([name, "cancelled"], counts.cancelled)
            outcomes.add_metric([name, "shutting_down"], counts.shutting_down)
        return registered, pending, watched, outcomes, evaluations

    def _times(self) -> Iterator[Metric]:
        metrics = self._metrics
        waits = HistogramMetricFamily(
            "purgatory_wait_seconds",
            "Time from registration to end of operations whose owner still existed.",
            labels=["kind", "outcome"],
        )
        for (kind, outcome), histogram in sorted(metrics.waits.items()):
            waits.add_metric([KIND_NAMES[kind], OUTCOME_NAMES[outcome]], histogram.cumulative(), histogram.sum_seconds)
        yield waits
        lateness = HistogramMetricFamily(
            "purgatory_expiry_lateness_seconds", "Time from deadline to end of expired operations.", labels=["kind"]
        )
        for kind, histogram in metrics.lateness.items():
            lateness.add_metric([KIND_NAMES[kind]], histogram.cumulative(), histogram.sum_seconds)
        yield lateness
        expired = CounterMetricFamily(
            "purgatory_expired_partitions",
            "Partitions still waited for when their operation expired (Kafka: ExpiresPerSec is the rate).",
            labels=["kind"],
        )
        for kind, count in sorted(metrics.expired_partitions.items()):
            expired.add_metric([KIND_NAMES[kind]], count)
        yield expired
        yield _histogram("purgatory_loop_lag_seconds", "How late the event loop woke the reaper.", metrics.loop_lag)
        yield _histogram(
            "purgatory_gc_pause_seconds", "Collections of Python's garbage collector.", self._pauses.pauses
        )
        yield CounterMetricFamily(
            "purgatory_reaper_failures", "Reaper runs that raised an exception.", metrics.reaper_failures
        )

    def _listener_failures(self) -> Metric:
        failures = CounterMetricFamily(
            "purgatory_listener_failures",
            "Exceptions of a part that observes or annotates results; each was survived, the first is in the log.",
            labels=["listener"],
        )
        for name, count in sorted(self._host.listeners.failures.items()):
            failures.add_metric([name], count)
        return failures

    def _events_and_refusals(self) -> Iterator[Metric]:
        metrics = self._metrics
        events = CounterMetricFamily(
            "purgatory_events", "Events received; result is applied, stale or refused.", labels=["type", "result"]
        )
        for (name, result), count in sorted(metrics.event_results.items()):
            events.add_metric([name, result], count)
        yield events
        yield CounterMetricFamily(
            "purgatory_unchanged_events", "Events applied that did not advance a mark.", metrics.unchanged_events
        )
        rejected = CounterMetricFamily(
            "purgatory_rejected", "Registrations and events refused, by status code.", labels=["reason"]
        )
        for code, count in sorted(metrics.rejected.items()):
            rejected.add_metric([REASON_NAMES[code]], count)
        yield rejected
        refused_calls = CounterMetricFamily(
            "purgatory_refused_calls", "Calls refused before they were read, by the limit.", labels=["reason"]
        )
        for reason, count in sorted(metrics.refused_calls.items()):
            refused_calls.add_metric([reason], count)
        yield refused_calls
        repeated = CounterMetricFamily(
            "purgatory_repeated_registrations", "Registrations sent again after a reconnect.", labels=["kind"]
        )
        for kind in KINDS:
            repeated.add_metric([KIND_NAMES[kind]], metrics.repeated[kind])
        yield repeated

    def _loop_holds(self) -> Iterator[Metric]:
        holds = CounterMetricFamily(
            "purgatory_loop_holds",
            "Times one call held the event loop for over 10 ms of processor time.",
            labels=["call"],
        )
        longest = GaugeMetricFamily(
            "purgatory_longest_loop_hold_seconds",
            "Longest time that one call held the event loop, since the start.",
            labels=["call"],
        )
        for watched in self._host.holds:
            holds.add_metric([watched.call], watched.holds)
            longest.add_metric([watched.call], watched.longest_ns / 1e9)
        yield holds
        yield longest

    def _limits(self) -> Metric:
        # Without the memory budget, whose setting is 0 for a share of the machine: `_memory` has the actual one.
        limits = GaugeMetricFamily("purgatory_limit", "Limit set by a setting, in its own unit.", labels=["setting"])
        for name, value in self._host.settings.limits.model_dump(exclude={"memory_bytes_max"}).items():
            limits.add_metric([f"limits.{name}"], value)
        return limits

    def _turns(self) -> Iterator[Metric]:
        queue = self._host.fair_queue
        yield _gauge("purgatory_calls", "Calls in flight.", queue.calls)
        yield _gauge("purgatory_unary_waits", "Calls of Wait in flight.", len(self._host.unary_waits))
        waiting = GaugeMetricFamily(
            "purgatory_turns_waiting", "Calls and messages that wait for their turn.", labels=["work"]
        )
        waits = HistogramMetricFamily(
            "purgatory_turn_wait_seconds",
            "Waiting time of calls and messages that did not run at once.",
            labels=["work"],
        )
        for work, (name, histogram) in enumerate(zip(WORK_NAMES, self._metrics.turn_waits, strict=True)):
            waiting.add_metric([name], queue.waiting(work))
            waits.add_metric([name], histogram.cumulative(), histogram.sum_seconds)
        yield waiting
        yield waits

    def _sessions(self) -> Iterator[Metric]:
        host, metrics = self._host, self._metrics
        sessions = host.sessions
        yield _gauge("purgatory_partitions", "Partitions known.", host.engine.partition_count)
        yield _gauge("purgatory_signal_keys", "Signal keys remembered.", host.engine.inspection.signal_key_count)
        yield _gauge("purgatory_sessions", "Sessions known.", sessions.count)
        yield _gauge("purgatory_sessions_connected", "Sessions with a result stream.", sessions.connected)
        yield _gauge("purgatory_result_backlog", "Results kept until acknowledged.", sessions.unacknowledged_results)
        yield CounterMetricFamily("purgatory_sessions_opened", "Sessions made.", metrics.sessions_opened)
        yield CounterMetricFamily("purgatory_sessions_closed", "Sessions dropped.", metrics.sessions_closed)
        yield CounterMetricFamily("purgatory_streams_connected", "Result streams attached.", metrics.streams_connected)
        yield CounterMetricFamily(
            "purgatory_streams_disconnected", "Result streams ended.", metrics.streams_disconnected
        )
        yield _gauge("purgatory_draining", "1 while the daemon shuts down.", int(host.draining))

    def _memory(self) -> Iterator[Metric]:
        budget = self._host.shares.budget
        held = GaugeMetricFamily("purgatory_memory_held_bytes", "Memory in use, by part, as counted.", labels=["part"])
        for part, size in budget.parts().items():
            held.add_metric([part], size)
        yield held
        yield _gauge("purgatory_memory_budget_bytes", "Memory budget.", budget.bytes_max)
        yield _gauge(
            "purgatory_memory_short", "1 while the measured memory use exceeds the budget.", int(budget.is_short)
        )
        yield CounterMetricFamily(
            "purgatory_memory_refusals", "Batches and answers refused because they did not fit.", budget.refusals
        )


def _build_info() -> Metric:
    info = GaugeMetricFamily(
        "purgatory_build_info", "Always 1; the labels have the version and the engine.", labels=["version", "engine"]
    )
    info.add_metric([__version__, "compiled" if COMPILED else "uncompiled"], 1)
    return info


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value)


def _histogram(name: str, documentation: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, documentation)
    family.add_metric([], histogram.cumulative(), histogram.sum_seconds)
    return family
