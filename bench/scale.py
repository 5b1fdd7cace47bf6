"""How large and how often: everything, or what fits into a minute."""

from dataclasses import dataclass
from typing import Final

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Sizes of all benchmarks. `runs` are pairs; `seconds` is what one measured part of a pair takes."""

    runs: int
    seconds: float
    register_complete: tuple[int, ...]
    """Pending for each key."""
    hot_pending: int
    """Pending for each of 10,000 keys."""
    total_pending: int
    herd: int
    """Operations with one same deadline."""
    delay_ms: int
    """Until that deadline, where it is waited for on a real clock: filling must be done by then."""
    timers: int
    fetches: int
    memory: int
    in_flight: int
    """Callers that await one wait each."""
    probes: int
    """Of a latency."""
    expire_rate: int
    slow_peers: bool
    """Whether peers take part where they take long."""


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
    total_pending=100_000,
    herd=20_000,
    delay_ms=700,
    timers=20_000,
    fetches=1_000,
    memory=200_000,
    in_flight=2_000,
    probes=100,
    expire_rate=5_000,
    slow_peers=False,
)
