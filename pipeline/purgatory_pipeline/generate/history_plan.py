"""The plan of a generated history: all that is decided before a number is drawn.

Equal plans give equal archives. A plan is split into *runs*, each one life of one daemon with its own engine; a run
depends only on the plan and its index, so runs can be made anywhere and in any order.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from purgatory_pipeline.errors import PolicyInvalid
from purgatory_pipeline.time_arguments import UNITS_MS, parse_instant

BROKERS: Final = 4
"""Replica ids 1 to 4; each partition has three replicas on them."""

RUN_OPERATIONS_MAX: Final = 1_000_000
"""A task's memory grows with the operations of its run, so more operations make more runs."""

RUNS_AT_LEAST: Final = 24
"""So that every hour of a day has some."""

RUN_OPERATIONS_MIN: Final = 10_000
"""Shorter runs cannot be told from noise, so small histories have fewer runs."""

LIFE_MS: Final = 25_000
"""How long a run takes operations at the day's mean load; longer by night, shorter at the peak."""

DAY_MS: Final = 86_400_000
SWING: Final = 0.6
"""The load of a day goes from 1 - SWING at two in the morning to 1 + SWING at two in the afternoon (UTC)."""

OPERATIONS_MAX: Final = 10_000_000_000
START: Final = datetime(2026, 11, 2, tzinfo=UTC)
TOPICS_MAX: Final = 50
TOO_SHORT: Final = 0.25
TOO_SHORT_SHARE: Final = 0.12
LONG: Final = 5
LONG_SHARE: Final = 0.08
"""A planted timeout: some clients set so much of it, and some so many times as much."""

SIZES: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@dataclass(frozen=True)
class Topic:
    """Size and load of a topic, how fast followers fetch from it, and which timeouts clients set.

    A produce waits for the slower of two followers, and each reports with one fetch what it got by the previous one. So
    a wait is about one and a half intervals between fetches, which are log-normal. `timeouts_ms` are those of produces,
    each with the share of clients that set it.
    """

    name: str
    partitions: int
    share: float  # of all operations on partitions; shares need not add up to 1
    fetch_median_ms: float
    fetch_sigma: float
    record_bytes: int
    timeouts_ms: tuple[tuple[int, float], ...]


PROFILES: Final = (
    Topic("payments", 8, 0.15, 8.0, 0.50, 400, ((100, 0.10), (500, 0.80), (2_500, 0.10))),
    Topic("orders", 12, 0.30, 14.0, 0.70, 900, ((150, 0.12), (1_000, 0.80), (5_000, 0.08))),
    Topic("clicks", 16, 0.35, 20.0, 0.90, 250, ((250, 0.15), (1_500, 0.75), (10_000, 0.10))),
    Topic("audit", 4, 0.08, 35.0, 0.80, 2_000, ((200, 0.70), (1_000, 0.20), (5_000, 0.10))),
    Topic("metrics", 8, 0.12, 25.0, 0.60, 150, ((400, 0.90), (2_000, 0.10))),
)
"""Most clients of `audit` set a timeout that is too short, for the advice to find."""


@dataclass(frozen=True)
class SlowReplica:
    """A replica that takes `extra_ms` longer on a share of its fetches, whoever leads."""

    replica_id: int
    extra_ms: int
    share: float


@dataclass(frozen=True)
class Incident:
    """A time in which every follower is slower by a factor: an anomaly for a report to find."""

    from_ms: int  # since the history's start
    until_ms: int
    factor: float


@dataclass(frozen=True)
class HistoryPlan:
    operations: int
    seed: int
    runs: int
    start_ms: int  # since 1970, UTC
    duration_ms: int
    topics: tuple[Topic, ...]
    slow_replica: SlowReplica | None
    incident: Incident | None

    def run(self, index: int) -> RunPlan:
        """One of its runs, from 0."""
        assert 0 <= index < self.runs, f"run {index} of {self.runs}"
        share, rest = divmod(self.operations, self.runs)
        since_ms = self._since_start_ms((index + 0.5) / self.runs)
        load = load_at(self.start_ms + since_ms)
        slower = self.incident is not None and self.incident.from_ms <= since_ms < self.incident.until_ms
        return RunPlan(
            plan=self,
            index=index,
            run_id=f"generated-{index + 1:05d}",
            operations=share + (index < rest),
            start_ms=self.start_ms + since_ms,
            life_ms=round(LIFE_MS / load),
            load=load,
            delay_factor=self.incident.factor if slower and self.incident is not None else 1.0,
        )

    def _since_start_ms(self, share: float) -> int:
        """The instant by which `share` of the whole load has come: runs are closer where load is higher."""
        low, high = 0.0, float(self.duration_ms)
        wanted = share * _load_until(self.start_ms, self.duration_ms)
        while high - low > 0.5:
            middle = (low + high) / 2
            if _load_until(self.start_ms, middle) < wanted:
                low = middle
            else:
                high = middle
        return int(low)


@dataclass(frozen=True)
class RunPlan:
    plan: HistoryPlan
    index: int
    run_id: str
    operations: int
    start_ms: int  # since 1970, UTC
    life_ms: int
    load: float
    delay_factor: float


def load_at(at_ms: float) -> float:
    """Load at an instant, as a multiple of the day's mean."""
    return 1 + SWING * math.sin(2 * math.pi * (at_ms / DAY_MS - 1 / 3))


def _load_until(start_ms: int, span_ms: float) -> float:
    """The integral of the load from `start_ms` on."""

    def primitive(at_ms: float) -> float:
        return at_ms - SWING * DAY_MS / (2 * math.pi) * math.cos(2 * math.pi * (at_ms / DAY_MS - 1 / 3))

    base_ms = start_ms % DAY_MS
    return primitive(base_ms + span_ms) - primitive(base_ms)


def make_plan(
    operations: str,
    *,
    seed: int = 1,
    topics: str = "5",
    slow_replica: str = "3=+150ms@8%",
    timeout_ms: int | None = None,
    duration: str = "24h",
    start: str = "",
    runs: int | None = None,
) -> HistoryPlan:
    """A plan from the words of a command line. Raises `PolicyInvalid` or `WindowInvalid`, which name the option."""
    count = parse_operations(operations)
    if seed < 0:
        raise PolicyInvalid(f"--seed {seed}: give 0 or a positive number")
    if timeout_ms is not None and not 4 <= timeout_ms <= 600_000:
        raise PolicyInvalid(f"--timeout-ms {timeout_ms}: give 4 to 600000 milliseconds")
    if runs is None:
        runs = max(math.ceil(count / RUN_OPERATIONS_MAX), min(RUNS_AT_LEAST, max(1, count // RUN_OPERATIONS_MIN)))
    if not math.ceil(count / RUN_OPERATIONS_MAX) <= runs <= count:
        raise PolicyInvalid(
            f"--runs {runs}: {count} operations need {math.ceil(count / RUN_OPERATIONS_MAX)} to {count} runs "
            f"(a run has at most {RUN_OPERATIONS_MAX} operations)"
        )
    duration_ms = parse_duration(duration)
    return HistoryPlan(
        operations=count,
        seed=seed,
        runs=runs,
        start_ms=round((parse_instant("--start", start) or START).timestamp() * 1_000),
        duration_ms=duration_ms,
        topics=named_topics(topics, timeout_ms),
        slow_replica=parse_slow_replica(slow_replica),
        incident=Incident(int(duration_ms * 0.70), int(duration_ms * 0.75), 2.5),
    )


def named_topics(text: str, timeout_ms: int | None = None) -> tuple[Topic, ...]:
    """Topics by number (`3`) or name (`orders,clicks,my-topic`); unknown names take the profiles in turn.

    Their timeouts are those of their profiles, or lie around `timeout_ms`.

    Raises `PolicyInvalid`.
    """
    if text.isdigit():
        count = int(text)
        known = [topic.name for topic in PROFILES]
        names = [known[place] if place < len(known) else f"topic-{place + 1}" for place in range(count)]
    else:
        names = [name.strip() for name in text.split(",")]
    if not 1 <= len(names) <= TOPICS_MAX:
        raise PolicyInvalid(f"--topics {text}: give 1 to {TOPICS_MAX} topics")
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) for name in names):
        raise PolicyInvalid(f"--topics {text}: give a number, or different names of letters, digits, '.', '_' and '-'")
    profiles = {topic.name: topic for topic in PROFILES}
    topics = [profiles.get(name, PROFILES[place % len(PROFILES)]) for place, name in enumerate(names)]
    return tuple(
        _with_timeout(replace(topic, name=name), timeout_ms) for topic, name in zip(topics, names, strict=True)
    )


def _with_timeout(topic: Topic, timeout_ms: int | None) -> Topic:
    """Most clients set `timeout_ms`, some a quarter of it, and some five times as much."""
    if timeout_ms is None:
        return topic
    usual = 1 - TOO_SHORT_SHARE - LONG_SHARE
    around = ((round(timeout_ms * TOO_SHORT), TOO_SHORT_SHARE), (timeout_ms, usual), (timeout_ms * LONG, LONG_SHARE))
    return replace(topic, timeouts_ms=around)


def parse_operations(text: str) -> int:
    """Parses `10k`, `1.5M`, `100M` or a plain number. Raises `PolicyInvalid`."""
    found = re.fullmatch(r"([0-9][0-9_,]*(?:\.[0-9]+)?)([kKmMgG]?)", text.strip())
    number = float(re.sub("[_,]", "", found[1])) * SIZES[found[2].lower()] if found is not None else 0.0
    if number < 1 or number != int(number):
        raise PolicyInvalid(f"--operations {text}: give a whole number from 1 on, for example 10k, 1M or 100M")
    if number > OPERATIONS_MAX:
        raise PolicyInvalid(f"--operations {text}: the most is {OPERATIONS_MAX:,}")
    return int(number)


def parse_duration(text: str) -> int:
    """Parses `24h`, `90m`, `7d` into milliseconds. Raises `PolicyInvalid`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text.strip())
    length_ms = float(found[1]) * UNITS_MS[found[2]] if found is not None else 0.0
    if not 60_000 <= length_ms <= 3_650 * DAY_MS:
        raise PolicyInvalid(f"--duration {text}: give one minute to ten years, for example 90m, 24h or 7d")
    return int(length_ms)


def parse_slow_replica(text: str) -> SlowReplica | None:
    """Parses `3=+150ms@8%` (replica 3 takes 150 ms longer on 8 % of its fetches) or `none`. Raises `PolicyInvalid`."""
    if text.strip().lower() == "none":
        return None
    found = re.fullmatch(r"([0-9]+)=\+([0-9]+)ms(?:@([0-9]+(?:\.[0-9]+)?)%)?", text.strip())
    if found is None:
        raise PolicyInvalid(f"--slow-replica {text}: give ID=+MILLISECONDSms@SHARE%, for example 3=+150ms@8%, or none")
    slow = SlowReplica(int(found[1]), int(found[2]), float(found[3] or 100) / 100)
    if not 1 <= slow.replica_id <= BROKERS:
        raise PolicyInvalid(f"--slow-replica {text}: the replicas are 1 to {BROKERS}")
    if not 1 <= slow.extra_ms <= 60_000 or not 0 < slow.share <= 1:
        raise PolicyInvalid(f"--slow-replica {text}: give 1 to 60000 ms, and a share above 0 and up to 100 %")
    return slow
