"""Frames of a report for tests of its page: two days of a small cluster with one slow replica.

A few formulas give figures like those of a real archive. Rows are tuples in the order of their table's columns.
"""

import functools
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from statistics import NormalDist
from typing import Any

import pandas as pd
from purgatory_pipeline.report.report_tables import TABLES, WINDOWS, ReportInfo

START = datetime(2026, 7, 1, tzinfo=UTC)
WINDOW = timedelta(hours=1)
TOPICS = ("orders", "payments", "clickstream")
HOSTILE = "</script><script>alert(1)</script>"
KINDS = {"produce": (18.0, 0.9, 200), "fetch": (160.0, 0.7, 800)}
"""Median of the waits, standard deviation of their logarithm, and timeout."""

SCALES = (1.0, 0.7, 1.6)
"""Factors on the median for the first, second and third topic."""
SHARES = (0.5, 0.9, 0.99, 0.999)

Row = tuple[Any, ...]


@functools.cache
def report_frames(topics: tuple[str, ...] = TOPICS, windows: int = 48) -> dict[str, pd.DataFrame]:
    """One frame for each table of a report, with its columns. Callers must not change them."""
    scaled = [(topic, SCALES[place % 3]) for place, topic in enumerate(topics)]
    curves = [(topic, kind, scale) for (topic, scale), kind in product([(None, 1.0), *scaled], KINDS)]
    rows: dict[str, list[Row]] = {
        "intake": intake(),
        "groups": [],
        "topics": [
            (topic, kind, 6, *counts(900_000 // place, kind, scale), *waits(kind, scale))
            for place, (topic, scale) in enumerate(scaled, start=1)
            for kind in KINDS
        ],
        "windows": [tuple(window(number, kind).values()) for number, kind in product(range(windows), KINDS)],
        "backlog": backlog(topics),
        "hot_keys": hot_keys(topics),
        "slow_produces": slow_produces(),
        "stragglers": [row for topic in (None, *topics) for row in stragglers(topic)],
        "advice": [advice(*each) for each in curves],
        "timeouts": [row for each in curves for row in timeouts(*each)],
        "survival": [row for each in curves for row in survival(*each)],
        "anomalies": anomalies(topics),
    }
    return {name: pd.DataFrame(rows[name], columns=list(table.column_names)) for name, table in TABLES.items()}


def empty_frames() -> dict[str, pd.DataFrame]:
    return {name: pd.DataFrame(columns=list(table.column_names)) for name, table in TABLES.items()}


def report_info(**changes: object) -> ReportInfo:
    values: dict[str, Any] = {
        "archive": "archive/july",
        "first_at": START,
        "last_at": START + 48 * WINDOW,
        "window_ms": 3_600_000,
        "slow_over_ms": 145,
        "slow_share": 0.01,
        "totals": totals(),
        "rows": {"groups": 51_200},
        "notes": ("Run 7f3a crashed: its rows after 2026-07-02 04:10 are missing.",),
        "versions": {"purgatory": "0.2.0", "schema": "1", "spark": "4.3.0"},
    }
    return ReportInfo(**(values | changes))


def empty_info() -> ReportInfo:
    return report_info(first_at=None, last_at=None, slow_over_ms=None, totals={}, notes=())


def totals() -> dict[str, int]:
    """The sums of the windows."""
    windows = [window(number, kind) for number, kind in product(range(48), KINDS)]
    return {name: sum(row[name] for row in windows) for name in WINDOWS.column_names[2:12]}


def expires(kind: str, waited_ms: float, scale: float = 1) -> float:
    median, spread, _ = KINDS[kind]
    return 1 - NormalDist(math.log(median * scale), spread).cdf(math.log(max(waited_ms, 1e-9)))


def need_ms(kind: str, share: float, scale: float = 1) -> int:
    """The true quantile of the time needed."""
    median, spread, _ = KINDS[kind]
    return round(math.exp(NormalDist(math.log(median * scale), spread).inv_cdf(share)))


def counts(registered: int, kind: str, scale: float = 1) -> Row:
    """The columns from `registered` to the rates; `scale` stretches the waits."""
    expired = round(registered * expires(kind, KINDS[kind][2], scale))
    failed, cancelled, refused = registered // 4_000, registered // 3_000, registered // 50_000
    satisfied = registered - expired - failed - cancelled - refused
    ended = registered - refused
    rates = (satisfied / ended, expired / ended) if ended else (None, None)
    return (registered, refused, ended, satisfied, failed, expired, cancelled, 0, 0, 0, *rates)


def waits(kind: str, scale: float = 1) -> Row:
    """The columns from `waited_total_ms` to `lateness_max_ms`."""
    timeout_ms = KINDS[kind][2]
    percentiles = [min(need_ms(kind, share, scale), timeout_ms) for share in SHARES]
    lateness = (1, 4 + round(scale * 2), 9 + round(scale * 10))
    return (1_000_000 * need_ms(kind, 0.6, scale), *percentiles, timeout_ms + 9, *lateness)


@functools.cache
def window(number: int, kind: str) -> dict[str, Any]:
    """One hour: the load follows the day, and in hours 33 to 35 waits are long."""
    busy = 1 + 0.7 * math.sin((number % 24 - 8) / 24 * 2 * math.pi)
    scale = 3.0 if 33 <= number < 36 else 0.8 + 0.3 * busy
    registered = round(40_000 * busy * (1.6 if kind == "fetch" else 1))
    row = (pd.Timestamp(START + number * WINDOW), kind, *counts(registered, kind, scale), *waits(kind, scale))
    return dict(zip(WINDOWS.column_names, row, strict=True))


def intake() -> list[Row]:
    used = {"registrations": 3_300_012, "outcomes": 3_299_912, "events": 9_120_004, "calls": 1_120, "markers": 9}
    aside = [("outcomes", "truncated file", 1, None), ("registrations", "duplicated row", 0, 212)]
    return sorted([*((table, "used", 48, number) for table, number in used.items()), *aside])


def backlog(topics: Sequence[str]) -> list[Row]:
    """Deepest at noon or in the slow hours."""
    rows: list[Row] = []
    for (place, topic), partition, kind in product(enumerate(topics), range(6), KINDS):
        at = START + (34 if partition % 2 else 14) * WINDOW + timedelta(minutes=7 * place, seconds=41)
        rows.append((topic, partition, kind, 9_000 // (1 + place) // (1 + partition), pd.Timestamp(at), "7f3a"))
    return sorted(rows, key=lambda row: -row[3])


def hot_keys(topics: Sequence[str]) -> list[Row]:
    """The first partition of each topic is the busiest."""
    keys = [(topic, partition, kind) for partition in range(4) for topic in topics for kind in KINDS]
    return [
        (by, rank, *key, round(3_300_000 * 0.21 / rank), round(2.4e8 * 0.21 / rank), 0.21 / rank)
        for by in ("waited", "waits")
        for rank, key in enumerate(keys, start=1)
    ]


def slow_produces() -> list[Row]:
    causes = {"follower": 12_700, "leader": 640, "left": 210, "told": 0, "unknown": 31}
    return [(cause, number, number / sum(causes.values()), number * 260) for cause, number in causes.items()]


def stragglers(topic: str | None) -> list[Row]:
    """Replica 2 is the slow one."""
    slow = 12_910 if topic is None else 4_300
    rows: list[Row] = []
    for replica, share, typical_ms in ((2, 0.63, 41), (1, 0.22, 6), (3, 0.15, 5)):
        total_ms = round(slow * share * typical_ms * 1.3)
        rows.append((topic, replica, round(slow * share), share, total_ms, typical_ms, typical_ms * 6, typical_ms * 11))
    return rows


def advice(topic: str | None, kind: str, scale: float) -> Row:
    """The true quantiles with narrow bounds."""
    timeout_ms = KINDS[kind][2]
    share = expires(kind, timeout_ms, scale)
    seen = (900_000 if topic else 2_400_000, 880_000, round(900_000 * share), share)
    needs: list[int | None] = []
    for part in SHARES:
        need = need_ms(kind, part, scale)
        needs += [need, round(need * 0.98), round(need * 1.03)] if need < timeout_ms * 4 else [None] * 3
    sentence = (
        f"1 % of these need more than {need_ms(kind, 0.99, scale)} ms; the {timeout_ms} ms in use expire "
        f"{share * 100:.1f} %, {timeout_ms * 2} ms would expire {expires(kind, timeout_ms * 2, scale) * 100:.2f} %."
    )
    cut = (share, share * 0.96, share * 1.04)
    return (topic, kind, *seen, timeout_ms, 0.98, 2, *needs, *cut, timeout_ms * 4, sentence)


def timeouts(topic: str | None, kind: str, scale: float) -> list[Row]:
    """The timeout in use, and some around it."""
    in_use = KINDS[kind][2]
    rows: list[Row] = []
    for timeout_ms in (in_use // 2, in_use * 3 // 4, in_use, in_use * 3 // 2, in_use * 2, in_use * 3, in_use * 4):
        share = expires(kind, timeout_ms, scale)
        rows.append((topic, kind, timeout_ms, timeout_ms == in_use, share, share * 0.95, share * 1.05))
    return rows


def survival(topic: str | None, kind: str, scale: float) -> list[Row]:
    """The curve at a hundred points; its bounds widen where few are left."""
    last = KINDS[kind][2] * 4
    rows: list[Row] = []
    for waited_ms in sorted({round(last ** (step / 100)) for step in range(101)}):
        waiting = expires(kind, waited_ms, scale)
        wide = 1 + 0.02 + 0.3 * (waited_ms / last) ** 2
        bounds = (waiting / wide, min(1.0, waiting * wide))
        rows.append((topic, kind, waited_ms, waiting, *bounds, round(900_000 * waiting)))
    return rows


def anomalies(topics: Sequence[str]) -> list[Row]:
    """The slow hours stand out."""
    found = ((topics[0], "wait_p99_ms", 480.0, 160.0, 0), (None, "expiry_rate", 0.034, 0.0004, 3))
    rows: list[Row] = []
    for hour, (topic, measure, value, usual, more) in product((33, 34, 35), found):
        now, before = (pd.Timestamp(START + at * WINDOW) for at in (hour, hour - 24))
        rows.append((now, topic, "produce", measure, value, usual, before, "up", 14.0 - hour / 10 + more))
    return sorted(rows, key=lambda row: -row[-1])
