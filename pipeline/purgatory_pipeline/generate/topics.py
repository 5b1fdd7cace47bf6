"""Topics of a generated history: size, load, how fast followers fetch, and which timeouts clients set.

A produce waits for the slower of two followers, and each reports with one fetch what it got by the previous one. So a
wait is about one and a half intervals between fetches. Intervals are log-normal, by `fetch_median_ms` and
`fetch_sigma`.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from purgatory_pipeline.errors import PolicyInvalid

TOPICS_MAX: Final = 50
TOO_SHORT: Final = 0.25
TOO_SHORT_SHARE: Final = 0.12
LONG: Final = 5
LONG_SHARE: Final = 0.08


@dataclass(frozen=True)
class Topic:
    """`timeouts_ms` are those of produces, each with the share of clients that set it."""

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
