"""The metrics that Prometheus scrapes, read at scrape time from the host and from `metrics`.

Operations are counted by the engine and read between two of its calls, so registered = the sum of all outcomes +
pending holds in every scrape by construction.

Names of Kafka's three purgatory metrics here: PurgatorySize is `purgatory_watched_entries`, NumDelayedOperations is
`purgatory_pending_operations`, and ExpiresPerSec is the rate of `purgatory_expired_partitions_total` (produce and
delete-records mark each pending partition) or, for fetch, of `purgatory_outcomes_total{outcome="expired"}` (one per
request).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory import __version__
from purgatory.engine import COMPILED
from purgatory.engine.codes import KIND_NAMES, KINDS, OUTCOME_NAMES, OUTCOMES
from purgatory.service.budget.garbage import PauseWatch
from purgatory.service.fair_queue import WORK_NAMES
from purgatory.service.histogram import counters, gauges, histograms
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import REASON_NAMES, Metrics
from purgatory.service.sources.source_links import SourceLinks
from purgatory.service.sources.source_table import SEEING, SourceStream

T = TypeVar("T")

LABELS: Final = ["source", "principal"]
"""`principal` is empty on a daemon without a policy, which for Prometheus equals a missing label."""


class SourceMetrics(Collector):
    """Exports metrics for each source that is or was attached. Their number is bounded."""

    def __init__(self, links: SourceLinks, now_ms: Callable[[], int]) -> None:
        self._links: Final = links
        self._now_ms: Final = now_ms

    def collect(self) -> Iterator[Metric]:
        table, now_ms = self._links.table, self._now_ms()
        known = [((source.name, source.principal), source.leading(now_ms)) for source in table]

        def staleness_s(stream: SourceStream) -> float:
            since_ms = stream.stale_since_ms(now_ms)
            return 0 if since_ms is None else max(0, now_ms - since_ms) / 1_000

        yield GaugeMetricFamily("purgatory_sources", "Sources of marks attached.", table.attached)
        yield gauges(
            "purgatory_source_up", "1 while the source is attached, reports, and is not stale.", LABELS,
            [(labels, int(stream.state_at(now_ms) in SEEING)) for labels, stream in known],
        )  # fmt: skip
        yield gauges(
            "purgatory_source_staleness_seconds", "Time since the oldest stale mark became stale; 0: none is stale.",
            LABELS, [(labels, staleness_s(stream)) for labels, stream in known],
        )  # fmt: skip
        yield gauges(
            "purgatory_source_lag_seconds", "Delay of the published marks behind the system that the source reads.",
            LABELS, [(labels, stream.lag_ms / 1_000) for labels, stream in known],
        )  # fmt: skip
        restarts = self._links.restarts
        names = sorted({source.name for source in table}.union(restarts))
        yield counters(
            "purgatory_source_restarts", "Restarts of a source that the daemon runs.", ["source"],
            [(name, restarts.get(name, 0)) for name in names],
        )  # fmt: skip


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

    def _operations(self) -> Iterator[Metric]:
        counts = {KIND_NAMES[kind]: self._host.engine.inspection.counts(kind) for kind in KINDS}
        ended = [(name, OUTCOME_NAMES[outcome]) for name in counts for outcome in OUTCOMES]

        def of_kinds(count: str) -> list[tuple[str, int]]:
            return [(name, getattr(one, count)) for name, one in counts.items()]

        text = "Operations registered; the sum of outcomes and pending operations."
        yield counters("purgatory_registered", text, ["kind"], of_kinds("registered"))
        text = "Operations that wait (Kafka: NumDelayedOperations)."
        yield gauges("purgatory_pending_operations", text, ["kind"], of_kinds("pending"))
        text = "Entries of waiting operations under keys (Kafka: PurgatorySize)."
        yield gauges("purgatory_watched_entries", text, ["kind"], of_kinds("watched"))
        rows = [((name, outcome), getattr(counts[name], outcome)) for name, outcome in ended]
        yield counters("purgatory_outcomes", "Operations ended, by outcome.", ["kind", "outcome"], rows)
        yield counters("purgatory_evaluations", "Times a condition was tested.", ["kind"], of_kinds("evaluations"))

    def _times(self) -> Iterator[Metric]:
        metrics = self._metrics
        text = "Time from registration to end of operations whose owner still existed."
        waits = [((KIND_NAMES[kind], OUTCOME_NAMES[outcome]), one) for (kind, outcome), one in metrics.waits.items()]
        yield histograms("purgatory_wait_seconds", text, ["kind", "outcome"], waits)
        text = "Time from deadline to end of expired operations."
        yield histograms("purgatory_expiry_lateness_seconds", text, ["kind"], _by_kind(metrics.lateness))
        text = "Partitions still waited for when their operation expired (Kafka: ExpiresPerSec is the rate)."
        yield counters("purgatory_expired_partitions", text, ["kind"], _by_kind(metrics.expired_partitions))
        text = "How late the event loop woke the reaper."
        yield histograms("purgatory_loop_lag_seconds", text, [], [((), metrics.loop_lag)])
        text = "Collections of Python's garbage collector."
        yield histograms("purgatory_gc_pause_seconds", text, [], [((), self._pauses.pauses)])
        text = "Reaper runs that raised an exception."
        yield CounterMetricFamily("purgatory_reaper_failures", text, metrics.reaper_failures)

    def _listener_failures(self) -> Metric:
        text = "Exceptions of a part that observes or annotates results; each was survived, the first is in the log."
        failures = sorted(self._host.listeners.failures.items())
        return counters("purgatory_listener_failures", text, ["listener"], failures)

    def _events_and_refusals(self) -> Iterator[Metric]:
        metrics = self._metrics
        text = "Events received; result is applied, stale or refused."
        yield counters("purgatory_events", text, ["type", "result"], sorted(metrics.event_results.items()))
        text = "Events applied that did not advance a mark."
        yield CounterMetricFamily("purgatory_unchanged_events", text, metrics.unchanged_events)
        text = "Registrations and events refused, by status code."
        rejected = [(REASON_NAMES[code], count) for code, count in metrics.rejected.items()]
        yield counters("purgatory_rejected", text, ["reason"], rejected)
        text = "Calls refused before they were read, by the limit."
        yield counters("purgatory_refused_calls", text, ["reason"], sorted(metrics.refused_calls.items()))
        text = "Registrations sent again after a reconnect."
        yield counters("purgatory_repeated_registrations", text, ["kind"], _by_kind(metrics.repeated))

    def _loop_holds(self) -> Iterator[Metric]:
        text = "Times one call held the event loop for over 10 ms of processor time."
        yield counters("purgatory_loop_holds", text, ["call"], [(one.call, one.holds) for one in self._host.holds])
        text = "Longest time that one call held the event loop, since the start."
        longest = [(one.call, one.longest_ns / 1e9) for one in self._host.holds]
        yield gauges("purgatory_longest_loop_hold_seconds", text, ["call"], longest)

    def _limits(self) -> Metric:
        # Without the memory budget, whose setting is 0 for a share of the machine: `_memory` has the actual one.
        limits = self._host.settings.limits.model_dump(exclude={"memory_bytes_max"})
        rows = [(f"limits.{name}", value) for name, value in limits.items()]
        return gauges("purgatory_limit", "Limit set by a setting, in its own unit.", ["setting"], rows)

    def _turns(self) -> Iterator[Metric]:
        queue = self._host.fair_queue
        yield GaugeMetricFamily("purgatory_calls", "Calls in flight.", queue.calls)
        yield GaugeMetricFamily("purgatory_unary_waits", "Calls of Wait in flight.", len(self._host.unary_waits))
        text = "Calls and messages that wait for their turn."
        waiting = [(name, queue.waiting(work)) for work, name in enumerate(WORK_NAMES)]
        yield gauges("purgatory_turns_waiting", text, ["work"], waiting)
        text = "Waiting time of calls and messages that did not run at once."
        waits = zip(WORK_NAMES, self._metrics.turn_waits, strict=True)
        yield histograms("purgatory_turn_wait_seconds", text, ["work"], waits)

    def _sessions(self) -> Iterator[Metric]:
        host, metrics = self._host, self._metrics
        sessions = host.sessions
        yield GaugeMetricFamily("purgatory_partitions", "Partitions known.", host.engine.partition_count)
        yield GaugeMetricFamily(
            "purgatory_signal_keys", "Signal keys remembered.", host.engine.inspection.signal_key_count
        )
        yield GaugeMetricFamily("purgatory_sessions", "Sessions known.", sessions.count)
        yield GaugeMetricFamily("purgatory_sessions_connected", "Sessions with a result stream.", sessions.connected)
        yield GaugeMetricFamily(
            "purgatory_result_backlog", "Results kept until acknowledged.", sessions.unacknowledged_results
        )
        yield CounterMetricFamily("purgatory_sessions_opened", "Sessions made.", metrics.sessions_opened)
        yield CounterMetricFamily("purgatory_sessions_closed", "Sessions dropped.", metrics.sessions_closed)
        yield CounterMetricFamily("purgatory_streams_connected", "Result streams attached.", metrics.streams_connected)
        yield CounterMetricFamily(
            "purgatory_streams_disconnected", "Result streams ended.", metrics.streams_disconnected
        )
        yield GaugeMetricFamily("purgatory_draining", "1 while the daemon shuts down.", int(host.draining))

    def _memory(self) -> Iterator[Metric]:
        budget = self._host.shares.budget
        parts = budget.parts().items()
        yield gauges("purgatory_memory_held_bytes", "Memory in use, by part, as counted.", ["part"], parts)
        yield GaugeMetricFamily("purgatory_memory_budget_bytes", "Memory budget.", budget.bytes_max)
        yield GaugeMetricFamily(
            "purgatory_memory_short", "1 while the measured memory use exceeds the budget.", int(budget.is_short)
        )
        yield CounterMetricFamily(
            "purgatory_memory_refusals", "Batches and answers refused because they did not fit.", budget.refusals
        )


def _build_info() -> Metric:
    text = "Always 1; the labels have the version and the engine."
    build = __version__, "compiled" if COMPILED else "uncompiled"
    return gauges("purgatory_build_info", text, ["version", "engine"], [(build, 1)])


def _by_kind(values: Mapping[int, T]) -> list[tuple[str, T]]:
    return [(KIND_NAMES[kind], value) for kind, value in sorted(values.items())]
