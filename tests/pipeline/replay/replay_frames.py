"""Frames of a replay for tests of its page: a sweep of the timeout over produces and fetches."""

from datetime import UTC, datetime, timedelta

import pandas as pd
from purgatory_pipeline.replay.replay_page import ReplayInfo

from tests.pipeline.report.report_frames import KINDS, TOPICS, expires, need_ms

SWEEP = tuple(f"timeout_ms={value}" for value in (100, 200, 400, 800, 1_600))
OPERATIONS = 400_000
Row = dict[str, object]


def replay_frames(policies: tuple[str, ...] = SWEEP, topics: tuple[str, ...] = TOPICS) -> dict[str, pd.DataFrame]:
    """One frame for each table of a replay."""
    outcomes, waits, changes = [], [], []
    for policy in ("", *policies):
        for kind, (_, _, used_ms) in KINDS.items():
            timeout_ms = int(policy.rpartition("=")[2]) if policy else used_ms
            for topic in (None, *topics):
                outcomes += outcome_rows(policy, topic, kind, timeout_ms)
                needs = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
                percentiles = {f"wait_{name}_ms": min(need_ms(kind, part), timeout_ms) for name, part in needs.items()}
                waits.append({"policy": policy, "topic": topic, "kind": kind, **percentiles})
            longer = timeout_ms > used_ms
            moved = round(OPERATIONS * abs(expires(kind, timeout_ms) - expires(kind, used_ms)))
            words = ("expired", "satisfied") if longer else ("satisfied", "expired")
            if policy and moved:
                changes.append(dict(zip(CHANGES, (policy, kind, *words, moved), strict=True)))
    return {
        "outcomes": pd.DataFrame(outcomes),
        "waits": pd.DataFrame(waits),
        "changes": pd.DataFrame(changes, columns=list(CHANGES)),
    }


CHANGES = ("policy", "kind", "recorded", "replayed", "operations")


def outcome_rows(policy: str, topic: str | None, kind: str, timeout_ms: int) -> list[Row]:
    share = expires(kind, timeout_ms)
    shares = {"satisfied": 1 - share - 0.0004, "expired": share, "failed": 0.0004}
    operations = OPERATIONS if topic is None else OPERATIONS // 4
    return [
        {
            "policy": policy,
            "topic": topic,
            "kind": kind,
            "outcome": outcome,
            "operations": round(operations * part),
            "share": part,
        }
        for outcome, part in shares.items()
    ]


def replay_info(**changes: object) -> ReplayInfo:
    start = datetime(2026, 7, 1, tzinfo=UTC)
    values: dict[str, object] = {
        "archive": "archive/july",
        "first_at": start,
        "last_at": start + timedelta(days=2),
        "policies": SWEEP,
        "compared": 2 * OPERATIONS,
        "equal": 2 * OPERATIONS,
        "account": ("registrations: 800,012 in = 800,000 replayed + 12 recorded as refused",),
        "options": {"sweep": "timeout_ms=100,200,400,800,1600"},
        "versions": {"purgatory": "0.2.0", "spark": "4.3.0"},
    }
    return ReplayInfo(**{**values, **changes})  # type: ignore[arg-type]
