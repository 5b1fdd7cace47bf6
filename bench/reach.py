"""Targets of the benchmarks, by row and peer. They are shown next to the results, and never asserted."""

from dataclasses import dataclass
from typing import Final

__all__ = ["Reach", "reach_of"]


@dataclass(frozen=True)
class Reach:
    """A target: a minimum ratio, and a minimum (rates) or maximum (costs) value."""

    ratio_min: float | None = None
    value_min: float | None = None
    value_max: float | None = None

    def is_met(self, value: float, ratio: float | None) -> bool:
        if self.ratio_min is not None and (ratio is None or ratio < self.ratio_min):
            return False
        if self.value_min is not None and value < self.value_min:
            return False
        return self.value_max is None or value <= self.value_max

    def __str__(self) -> str:
        said = []
        if self.ratio_min is not None:
            said.append(f"≥ {self.ratio_min:.3g} x")
        if self.value_min is not None:
            said.append(f"≥ {self.value_min:,.0f}")
        if self.value_max is not None:
            said.append(f"≤ {self.value_max:,.0f}")
        return ", ".join(said)


REACH: Final[dict[tuple[str, str | None], Reach]] = {
    ("engine/register-complete/pending=10", "kafka"): Reach(2),
    ("engine/register-complete/pending=100", "kafka"): Reach(8),
    ("engine/register-complete/pending=10000", "kafka"): Reach(50),
    ("engine/register-complete/pending=50000", "kafka"): Reach(200),
    ("engine/register-complete/total=1000000", "self"): Reach(1 / 2.5),
    ("engine/five-partitions", "kafka"): Reach(2.5),
    ("engine/zipf", "kafka"): Reach(2),
    ("engine/falling", "kafka"): Reach(4),
    **{(f"engine/python-versions/{version}", "3.11"): Reach(0.95) for version in ("3.12", "3.13", "3.14")},
    ("engine/fetch-evaluations", "kafka"): Reach(value_max=20),
    ("timer/add-cancel", "kafka"): Reach(1),
    ("timer/add-cancel", "netty"): Reach(1),
    ("timer/add-cancel", "asyncio"): Reach(5),
    ("timer/add-cancel", "heapq"): Reach(3),
    ("timer/add-expire", "kafka"): Reach(1),
    ("timer/add-expire", "netty"): Reach(1),
    ("timer/add-expire", "asyncio"): Reach(5),
    ("timer/add-expire", "heapq"): Reach(3),
    ("memory/engine", None): Reach(value_max=120),
    ("memory/daemon", None): Reach(value_max=200),
    ("service/columns/batch=500", "echo"): Reach(0.5, value_min=500_000),
    ("service/columns/batch=500", "redis"): Reach(10),
    ("service/columns/batch=500", "asyncio"): Reach(10),
    ("service/individual/in-flight=10000", "echo"): Reach(value_min=40_000),
    ("fleet/processor-postgres/batch=500", "sync"): Reach(1 / 1.35),
    ("fleet/receipt-p50-postgres/rate=10000", "insert"): Reach(1 / 1.5),
    ("fleet/standby-processor-postgres/batch=500", "leader"): Reach(5),
    ("fleet/takeover-kill-postgres/pending=1000000", "silence + restore"): Reach(1 / 1.3),
    ("fleet/takeover-kill-kafka/pending=1000000", "silence + restore"): Reach(1 / 1.3),
    ("fleet/takeover-stop-postgres/pending=1000000", "silence + restore"): Reach(1 / 1.3),
    ("fleet/takeover-stop-kafka/pending=1000000", "silence + restore"): Reach(1 / 1.3),
    ("fleet/takeover-handover-postgres/pending=1000000", "0.4 s + restore"): Reach(1 / 1.3),
    ("fleet/takeover-handover-kafka/pending=1000000", "0.4 s + restore"): Reach(1 / 1.3),
    ("service/wait-satisfied", "echo"): Reach(0.8),
    ("service/wait-satisfied/json", "grpc"): Reach(0.6),
    ("service/event-to-result/p50", "echo"): Reach(1 / 1.6),
    ("service/event-to-result/p99", "echo"): Reach(1 / 3),
    ("service/event-to-result/p50", "relay"): Reach(1 / 1.7),
    ("service/event-to-result-wire/p50", "relay"): Reach(1 / 1.35),
    ("service/event-to-result-wire/p99", "relay"): Reach(1 / 1.6),
    ("service/event-to-result-half-load/p99", "echo"): Reach(1 / 10),
    ("service/expiry-lateness/p50", "asyncio"): Reach(1 / 1.5),
    ("service/expiry-lateness/p99", "asyncio"): Reach(1 / 2),
    ("report/operations=10000000", "duckdb"): Reach(1 / 3),
    ("replay/operations=10000000", "one core"): Reach(1.7, value_min=500_000),
    ("service/herd/drain", "kafka"): Reach(1),
    ("service/herd/advance-p99", "self"): Reach(1 / 10),
    ("journal/columns-sync/batch=500", "none"): Reach(0.6),
    ("archive/columns/batch=500", "none"): Reach(0.75),
    ("journal/receipt-p99/rate=10000", "fsync"): Reach(1 / 3),
    ("journal/recovery/pending=1000000", "registering"): Reach(0.5),
    ("journal/bytes/pending=1000000", None): Reach(value_max=150),
    ("journal/bytes/after", None): Reach(value_max=10_000_000),
}


def reach_of(name: str, peer: str | None) -> Reach | None:
    """The target of a row with this peer, or with any peer. None: it has no target."""
    return REACH.get((name, peer)) or REACH.get((name, None))
