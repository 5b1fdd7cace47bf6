"""Frames for tests of pages. A report: two days of a small cluster, in which nearly all hours are alike.

Replica 2 holds most slow produces back, clickstream's timeouts cut off most, and three hours stand out. A replay: a
sweep of the timeout over produces and fetches.
"""

import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pandas as pd
from purgatory_pipeline.replay.replay_page import ReplayInfo
from purgatory_pipeline.report.report_tables import TABLES, ReportInfo

START = datetime(2026, 7, 1, tzinfo=UTC)
WINDOW = timedelta(hours=1)
TOPICS = ("orders", "payments", "clickstream")
HOSTILE = "</script><script>alert(1)</script>"
TIMEOUTS_MS = {"produce": 200, "fetch": 800}
KINDS = tuple(TIMEOUTS_MS)
CUT_OFF = {"orders": 0.004, "payments": 0.01}
"""The share of a topic's operations that needs longer than the timeout in use; 0.05 of other topics."""
COUNTS = {
    "registered": 1_010, "refused": 10, "ended": 1_000, "satisfied": 930, "failed": 5, "expired": 50, "cancelled": 14,
    "shutting_down": 1, "unfinished": 0, "carried_in": 0, "completion_rate": 0.93, "expiry_rate": 0.05,
}  # fmt: skip
WAITS = {
    "waited_total_ms": 60_000, "expired_total_ms": 20_000, "wait_p50_ms": 18, "wait_p90_ms": 60, "wait_p99_ms": 160,
    "wait_p999_ms": 190, "wait_max_ms": 209, "lateness_p50_ms": 1, "lateness_p99_ms": 6, "lateness_max_ms": 19,
}  # fmt: skip
SURVIVAL_MS = [2**power for power in range(12)]
Row = dict[str, Any]


@functools.cache
def report_frames(topics: tuple[str, ...] = TOPICS, windows: int = 48) -> dict[str, pd.DataFrame]:
    """One frame for each table of a report, with its columns. Callers must not change them."""
    places = list(product(topics, range(4), KINDS))
    curves = list(product((None, *topics), KINDS))
    rows: dict[str, list[Row]] = {
        "intake": intake(),
        "groups": [],
        "topics": [
            {"topic": topic, "kind": kind, "partitions": 4, **COUNTS, **WAITS} for topic, kind in product(topics, KINDS)
        ],
        "windows": [window(number, kind) for number, kind in product(range(windows), KINDS)],
        "backlog": [
            {**at_place(place), "deepest": 9_000 // rank, "at": hour(33 + rank % 3), "run_id": "7f3a"}
            for rank, place in enumerate(places, start=1)
        ],
        "hot_keys": [
            {**at_place(place), "by": by, "rank": rank, "waits": 900 // rank, "waited_total_ms": 9_000 // rank}
            | {"share": 0.21 / rank, "lost_ms": 400 // rank}
            for by in ("lost", "waited", "waits")
            for rank, place in enumerate(places, start=1)
        ],
        "principals": [
            {"principal": name, "kind": kind, "waits": 4_000, "satisfied": 3_900, "expired": 100}
            | {"waited_total_ms": 90_000, "expired_total_ms": 20_000, "lost_ms": lost_ms}
            for name, kind, lost_ms in (
                ("batch", "produce", 7_000),
                ("web", "produce", -7_000),
                (HOSTILE, "fetch", 9_000),
            )
        ],
        "budget": [
            {"kind": kind, "topic": topics[0], "principal": "web", "day": day, "operations": count, "burnt": burnt}
            | {"expired": count * burnt / 100}
            for kind, day, count, burnt in (
                ("fetch", None, 25, 8.0),
                ("produce", None, 1_000, 3.2),
                ("produce", hour(0), 250, 4.0),
                ("produce", hour(24), 500, 3.0),
                ("produce", hour(48), 250, 1.0),
            )
        ],
        "slow_produces": [
            {"cause": cause, "operations": number, "share": number / 1_000, "waited_total_ms": number * 260}
            for cause, number in {"follower": 900, "leader": 60, "left": 30, "told": 0, "unknown": 10}.items()
        ],
        "stragglers": [row for topic in (None, *topics) for row in stragglers(topic)],
        "advice": [advice(*curve) for curve in curves],
        "near_misses": [
            {"topic": topic, "kind": kind, "expired": 500, "reached": 310, "reached_share": 0.62, "late_p50_ms": 40}
            for topic, kind in curves
        ],
        "timeouts": [
            {"topic": topic, "kind": kind, "timeout_ms": round(TIMEOUTS_MS[kind] * factor), "in_use": factor == 1}
            | bounded("expires", 0.05 / factor)
            for (topic, kind), factor in product(curves, (0.5, 0.75, 1, 1.5, 2, 3))
        ],
        "survival": [
            {"topic": topic, "kind": kind, "waited_ms": waited_ms, "at_risk": 9_000 // waited_ms}
            | bounded("waiting", 0.998**waited_ms)
            for (topic, kind), waited_ms in product(curves, SURVIVAL_MS)
        ],
        "anomalies": anomalies(topics),
    }
    return {name: pd.DataFrame(rows[name], columns=list(table.column_names)) for name, table in TABLES.items()}


def empty_frames() -> dict[str, pd.DataFrame]:
    return {name: pd.DataFrame(columns=list(table.column_names)) for name, table in TABLES.items()}


def report_info(**changes: object) -> ReportInfo:
    windows = [window(number, kind) for number, kind in product(range(48), KINDS)]
    values: dict[str, Any] = {
        "archive": "archive/july",
        "first_at": START,
        "last_at": START + 48 * WINDOW,
        "window_ms": 3_600_000,
        "slow_over_ms": 145,
        "slow_share": 0.01,
        "totals": {name: sum(row[name] for row in windows) for name in TABLES["windows"].column_names[2:12]},
        "rows": {"groups": 51_200},
        "notes": ("Run 7f3a crashed: its rows after 2026-07-02 04:10 are missing.",),
        "versions": {"purgatory": "0.2.0", "schema": "1", "spark": "4.3.0"},
    }
    return ReportInfo(**(values | changes))


def empty_info() -> ReportInfo:
    return report_info(first_at=None, last_at=None, slow_over_ms=None, totals={}, notes=())


def hour(number: int) -> pd.Timestamp:
    return pd.Timestamp(START + number * WINDOW)


def window(number: int, kind: str) -> Row:
    return {"window_start": hour(number), "kind": kind, **COUNTS, **WAITS}


def at_place(place: tuple[str, int, str]) -> Row:
    return dict(zip(("topic", "partition", "kind"), place, strict=True))


def bounded(name: str, share: float) -> Row:
    return {name: share, f"{name}_low": share * 0.95, f"{name}_high": min(1, share * 1.05)}


def intake() -> list[Row]:
    used = {"registrations": 3_300_012, "outcomes": 3_299_912, "events": 9_120_004, "calls": 1_120, "markers": 9}
    rows: list[tuple[str, str, int, int | None]] = [(table, "used", 48, number) for table, number in used.items()]
    rows += [("outcomes", "truncated file", 1, None), ("registrations", "duplicated row", 0, 212)]
    return [dict(zip(("table", "reason", "files", "rows"), row, strict=True)) for row in sorted(rows, key=str)]


def stragglers(topic: str | None) -> list[Row]:
    return [
        {"topic": topic, "replica_id": replica, "held_back": round(1_000 * share), "share": share}
        | {"total_ms": round(1_000 * share * ms), "median_ms": ms, "p99_ms": 6 * ms, "max_ms": 11 * ms}
        for replica, share, ms in ((2, 0.63, 41), (1, 0.22, 6), (3, 0.15, 5))
    ]


def advice(topic: str | None, kind: str) -> Row:
    cut = 0.03 if topic is None else CUT_OFF.get(topic, 0.05)
    needs = {"p50": 18, "p90": 60, "p99": 300, "p999": None}
    return {
        "topic": topic, "kind": kind, "operations": 10_000, "satisfied": 9_300, "expired": 500, "expired_share": 0.05,
        "timeout_ms": TIMEOUTS_MS[kind], "timeout_share": 0.98, "timeouts": 2,
        "timeout_observed": cut, "seen_until_ms": 3_200,
        "sentence": "1 % of these need more than 300 ms; the timeout in use expires some of them.",
        **{f"need_{name}{end}_ms": need for name, need in needs.items() for end in ("", "_low", "_high")},
        **bounded("timeout_expires", cut),
    }  # fmt: skip


def anomalies(topics: Sequence[str]) -> list[Row]:
    """The strongest first."""
    found = ((None, "expiry_rate", 0.034, 0.0004), (topics[0], "wait_p99_ms", 480.0, 160.0))
    return [
        {"topic": topic, "kind": "produce", "measure": measure, "value": value, "usual": usual, "direction": "up"}
        | {"window_start": hour(number), "compared_with": hour(number - 24), "basis": "day", "score": 50.0 - number}
        for number, (topic, measure, value, usual) in product((33, 34, 35), found)
    ]


SWEEP = tuple(f"timeout_ms={value}" for value in (100, 200, 400, 800, 1_600))
OPERATIONS = 400_000
HALF_EXPIRE_MS = {"produce": 20, "fetch": 100}
"""The timeout with which half of a kind's operations would expire."""


def expired_share(policy: str, kind: str) -> float:
    timeout_ms = int(policy.rpartition("=")[2]) if policy else TIMEOUTS_MS[kind]
    return HALF_EXPIRE_MS[kind] / (HALF_EXPIRE_MS[kind] + timeout_ms)


def replay_frames(policies: tuple[str, ...] = SWEEP, topics: tuple[str, ...] = TOPICS) -> dict[str, pd.DataFrame]:
    """One frame for each table of a replay."""
    outcomes: list[Row] = []
    waits: list[Row] = []
    changes: list[Row] = []
    for policy, kind in product(("", *policies), TIMEOUTS_MS):
        share = expired_share(policy, kind)
        for topic in (None, *topics):
            of = {"policy": policy, "topic": topic, "kind": kind}
            for outcome, part in {"satisfied": 0.9996 - share, "expired": share, "failed": 0.0004}.items():
                operations = round(OPERATIONS * part / (4 if topic else 1))
                outcomes.append(of | {"outcome": outcome, "operations": operations, "share": part, "in_doubt": 0})
            waits.append(of | {"wait_p50_ms": 18, "wait_p90_ms": 60, "wait_p99_ms": round(1_000 * share)})
        more = share - expired_share("", kind)
        words = {"unchanged": "expired", "replayed": "satisfied"}
        if more > 0:
            words = {"unchanged": "satisfied", "replayed": "expired"}
        if more:
            changes.append({"policy": policy, "kind": kind, **words, "operations": round(OPERATIONS * abs(more))})
    columns = ["policy", "kind", "unchanged", "replayed", "operations"]
    return {
        "outcomes": pd.DataFrame(outcomes),
        "waits": pd.DataFrame(waits),
        "changes": pd.DataFrame(changes, columns=columns),
    }


def replay_info(**changes: object) -> ReplayInfo:
    values: dict[str, Any] = {
        "archive": "archive/july",
        "first_at": START,
        "last_at": START + timedelta(days=2),
        "policies": SWEEP,
        "compared": 2 * OPERATIONS,
        "equal": 2 * OPERATIONS,
        "account": ("registrations: 800,012 in = 800,000 replayed + 12 recorded as refused",),
        "options": {"sweep": "timeout_ms=100,200,400,800,1600"},
        "versions": {"purgatory": "0.2.0", "spark": "4.3.0"},
    }
    return ReplayInfo(**(values | changes))
