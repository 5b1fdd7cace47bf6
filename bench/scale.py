"""Sizes and repetitions of the benchmarks: the full run, and the quick one that takes less than a minute."""

from dataclasses import dataclass
from typing import Final

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Sizes of all benchmarks. `runs` counts pairs; `seconds` is the duration of each measured half of a pair."""

    runs: int
    seconds: float
    register_complete: tuple[int, ...]
    """Pending operations on each key."""
    hot_pending: int
    """Pending operations on each of 10,000 keys."""
    total_pending: int
    herd: int
    """Operations with the same deadline."""
    delay_ms: int
    """Milliseconds to that deadline on a real clock. All operations must be registered before it."""
    timers: int
    fetches: int
    memory: int
    in_flight: int
    """Concurrent callers with one wait each."""
    probes: int
    """Samples of a latency."""
    expire_rate: int
    slow_peers: bool
    """Whether to run peers that take long."""


FULL: Final = Scale(
    runs=5,
    seconds=1.0,
    register_complete=(10, 100, 10_000, 50_000),
    hot_pending=10,
    total_pending=1_000_000,
    herd=500_000,
    delay_ms=4_000,
    timers=100_000,
    fetches=10_000,
    memory=1_000_000,
    in_flight=10_000,
    probes=1_000,
    expire_rate=20_000,
    slow_peers=True,
)
QUICK: Final = Scale(
    runs=1,
    seconds=0.15,
    register_complete=(10, 10_000),
    hot_pending=2,
    total_pending=50_000,
    herd=10_000,
    delay_ms=500,
    timers=20_000,
    fetches=200,
    memory=200_000,
    in_flight=1_000,
    probes=50,
    expire_rate=2_000,
    slow_peers=False,
)
