"""The contents of a generated history: size, topics, slow replica, and the load over the day."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

START_MS: Final = int(datetime(2026, 11, 2, tzinfo=UTC).timestamp() * 1_000)
MINUTE_MS: Final = 60_000
LIFE_MS: Final = 25_000
"""How long a run accepts operations at the mean load; longer at night, shorter at the peak."""


@dataclass(frozen=True)
class Topic:
    """Load of a topic, log-normal intervals between fetches from it, and timeouts of produces with their weights."""

    name: str
    partitions: int
    weight: float
    fetch_median_ms: float
    fetch_sigma: float
    record_bytes: int
    timeouts_ms: dict[int, float]


PROFILES: Final = (
    Topic("payments", 8, 0.15, 8.0, 0.50, 400, {100: 0.10, 500: 0.80, 2_500: 0.10}),
    Topic("orders", 12, 0.30, 14.0, 0.70, 900, {150: 0.12, 1_000: 0.80, 5_000: 0.08}),
    Topic("clicks", 16, 0.35, 20.0, 0.90, 250, {250: 0.15, 1_500: 0.75, 10_000: 0.10}),
    Topic("audit", 4, 0.08, 35.0, 0.80, 2_000, {200: 0.70, 1_000: 0.20, 5_000: 0.10}),
    Topic("metrics", 8, 0.12, 25.0, 0.60, 150, {400: 0.90, 2_000: 0.10}),
)
"""Most clients of `audit` set a timeout that is too short, for the advice to find."""


@dataclass(frozen=True)
class Plan:
    """Equal plans give equal archives. Each run is one life of a daemon. `slow`: replica id, extra ms, share."""

    operations: int
    runs: int = 1
    seed: int = 1
    topics: tuple[Topic, ...] = PROFILES
    slow: tuple[int, int, float] = (3, 150, 0.08)
    hours: int = 24

    def run(self, index: int) -> "RunPlan":
        """Run `index`, from 0. Runs are closer together where the load is higher."""
        assert 0 <= index < self.runs, f"run {index} of {self.runs}"
        loads = list(accumulate(load_at(minute) for minute in range(self.hours * 60)))
        minute = bisect_left(loads, (index + 0.5) / self.runs * loads[-1])
        share, rest = divmod(self.operations, self.runs)
        return RunPlan(
            self, f"generated-{index + 1:05d}", f"{self.seed}-{index}", share + (index < rest),
            start_ms=START_MS + minute * MINUTE_MS,
            life_ms=round(LIFE_MS / load_at(minute)),
            slowdown=2.5 if 0.70 <= minute / len(loads) < 0.75 else 1.0,  # an incident for the report to find
        )  # fmt: skip


@dataclass(frozen=True)
class RunPlan:
    """One run: `start_ms` since 1970, `slowdown` a factor on the fetch intervals of all followers."""

    plan: Plan
    run_id: str
    seed: str
    operations: int
    start_ms: int
    life_ms: int
    slowdown: float


def load_at(minute: int) -> float:
    """Load as a multiple of the daily mean: 0.4 at 02:00, 1.6 at 14:00 (UTC)."""
    return 1 + 0.6 * math.sin(2 * math.pi * (minute / 1_440 - 1 / 3))
