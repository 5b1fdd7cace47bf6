"""Views of the daemon as a whole: current figures, timing wheel, sessions. Computed only for viewers."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from itertools import islice
from typing import Any, Final

from prometheus_client import Metric

from purgatory import __version__
from purgatory.engine import COMPILED
from purgatory.engine.codes import KIND_NAMES, KINDS, OUTCOME_NAMES
from purgatory.engine.engine import Engine
from purgatory.engine.ranking import WheelRing
from purgatory.extensions.page.last_hour import RecentTimes
from purgatory.extensions.page.page_fields import session_fields
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.histogram import Histogram
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import Metrics

COUNTED_AT_ONCE: Final = 100
"""Smaller buckets are counted in every picture; larger ones take turns."""
COUNT_S: Final = 0.0015
"""Time per picture for larger buckets: with a million pending, their counts are a few seconds old."""
COUNTED_MAX: Final = 100_000
"""Operations counted in one bucket. Counting that number takes one to three milliseconds."""


class BucketCounts:
    """The counts of large buckets from earlier pictures."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._large: dict[tuple[int, int], int] = {}
        """By level and index, the one counted longest ago first. 0: not counted yet."""

    def count(self) -> list[WheelRing]:
        """The rings of the wheel with the best known counts; those for which `is_cut` holds are lower bounds."""
        rings = self._engine.inspection.wheel_rings(COUNTED_AT_ONCE)
        large = {
            (ring.level, place) for ring in rings for place, count in enumerate(ring.counts) if count == COUNTED_AT_ONCE
        }
        known = {key: count for key, count in self._large.items() if key in large}
        # Those that have never been counted come first.
        self._large = dict.fromkeys(sorted(large - known.keys()), 0) | known
        stop_s = time.perf_counter() + COUNT_S
        for key in list(self._large):
            if time.perf_counter() >= stop_s:
                break
            del self._large[key]
            self._large[key] = self._engine.inspection.wheel_bucket_count(*key, COUNTED_MAX)
        for ring in rings:
            for place, count in enumerate(ring.counts):
                ring.counts[place] = max(count, self._large.get((ring.level, place), 0))
        return rings

    def is_cut(self, ring: WheelRing, place: int) -> bool:
        """Whether a bucket holds more than its count says, or may."""
        return ring.counts[place] == COUNTED_MAX or self._large.get((ring.level, place)) == 0


SECTORS_MAX: Final = 60
"""Maximum of sectors drawn per ring. In a larger wheel, several buckets share a sector."""
COUNTS_SHOWN: Final = ("pending", "registered", "satisfied", "failed", "expired", "cancelled", "shutting_down")
SESSIONS_SHOWN: Final = 100
SESSIONS_LOOKED_AT: Final = 20_000


class DaemonViews:
    def __init__(self, host: Host, metrics: Metrics, status_line: Callable[[], str] = lambda: "") -> None:
        self._host: Final = host
        self._status_line: Final = status_line
        self._metrics: Final = metrics
        self._docs: Final = documentation_url()
        self._times: Final = RecentTimes()
        self._buckets: Final = BucketCounts(host.engine)

    def forget(self) -> None:
        """Forget the recorded times; call this when the last viewer has left."""
        self._times.forget()

    def now(self) -> dict[str, Any]:
        host, metrics = self._host, self._metrics
        histograms: dict[str, Histogram] = {"lag": metrics.loop_lag}
        waits = {f"{KIND_NAMES[kind]} {OUTCOME_NAMES[outcome]}": one for (kind, outcome), one in metrics.waits.items()}
        late = {f"lateness {KIND_NAMES[kind]}": one for kind, one in metrics.lateness.items()}
        times = self._times.percentiles({**histograms, **waits, **late}, time.monotonic())
        return {
            "version": __version__,
            "compiled": COMPILED,
            "docs": self._docs,
            "up_ms": round((time.time() - host.started_time) * 1_000),
            "now_ms": host.time.now_ms(),
            "draining": host.draining,
            "fleet": self._status_line(),
            "pending": host.engine.pending,
            "partitions": host.engine.partition_count,
            "keys": host.engine.inspection.signal_key_count,
            "sessions": host.sessions.count,
            "connected": host.sessions.connected,
            "unacknowledged": host.sessions.unacknowledged_results,
            "kinds": [self._kind(kind) for kind in KINDS],
            "times": times,
            "events": sum(count for (_, result), count in metrics.event_results.items() if result == "applied"),
            "longest_hold_ms": max((one.longest_ns for one in host.holds), default=0) / 1e6,
            "files": dict(
                _figure(metric)
                for metric in host.listeners.metrics()
                if not metric.name.startswith("purgatory_webhook")  # they have a view of their own
            ),
        }

    def wheel(self) -> dict[str, Any]:
        engine, buckets = self._host.engine, self._buckets
        rings = buckets.count()
        size = len(rings[0].counts)
        folded = -(-size // SECTORS_MAX)
        ranges = [range(place, min(size, place + folded)) for place in range(0, size, folded)]
        return {
            "now_ms": self._host.time.now_ms(),
            "pending": engine.pending,
            "moved": engine.inspection.wheel_moves,
            "expired": sum(engine.inspection.counts(kind).expired for kind in KINDS),
            "size": size,
            "rings": [
                {
                    "tick_ms": ring.tick_ms,
                    "counts": [sum(ring.counts[place] for place in places) for places in ranges],
                    "cut": [any(buckets.is_cut(ring, place) for place in places) for places in ranges],
                }
                for ring in rings
            ],
        }

    def sessions(self, account: Account, asked: Mapping[str, str]) -> dict[str, Any]:
        """The most recent matching sessions of an account; with the role admin on everything, of all accounts."""
        host, sees_all = self._host, ADMIN in account.grants.everywhere
        search = asked.get("search", "").lower()
        rows: list[dict[str, Any]] = []
        looked_at = 0
        for session in islice(host.sessions, SESSIONS_LOOKED_AT):
            looked_at += 1
            if len(rows) == SESSIONS_SHOWN:
                break
            if (sees_all or session.account is account) and search in session.session_id.lower():
                rows.append(session_fields(host, session))
        return {
            "sessions": rows,
            "of": host.sessions.count if sees_all else account.sessions,
            "is_cut": looked_at < host.sessions.count,
        }

    def webhooks(self, account: Account) -> dict[str, Any]:
        """The webhooks' metrics, and the visible sessions that have a callback."""
        host, sees_all = self._host, ADMIN in account.grants.everywhere
        samples = [
            sample
            for metric in host.listeners.metrics()
            if metric.name.startswith("purgatory_webhook")
            for sample in metric.samples
        ]
        sessions = [one for one in host.sessions.with_callback() if sees_all or one.account is account]
        return {
            "figures": {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples},
            "sessions": [session_fields(host, one) for one in sessions[:SESSIONS_SHOWN]],
            "of": len(sessions),
        }

    def _kind(self, kind: int) -> dict[str, Any]:
        counts = self._host.engine.inspection.counts(kind)
        return {"kind": KIND_NAMES[kind]} | {name: getattr(counts, name) for name in COUNTS_SHOWN}


def documentation_url() -> str:
    """The address of the documentation in the package's metadata; empty if it has none."""
    try:
        urls = metadata("purgatory-waits").get_all("Project-URL", [])
    except PackageNotFoundError:
        return ""
    return next((url.partition(", ")[2] for url in urls if url.startswith("Documentation, ")), "")


def _figure(metric: Metric) -> tuple[str, float]:
    """The name and value of a metric; for a histogram, the mean of its observations."""
    if metric.type != "histogram":
        return metric.name, sum(sample.value for sample in metric.samples)
    total, count = (
        sum(sample.value for sample in metric.samples if sample.name.endswith(suffix)) for suffix in ("_sum", "_count")
    )
    return f"{metric.name}_mean", total / count if count else 0.0
