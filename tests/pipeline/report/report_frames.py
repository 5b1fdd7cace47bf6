"""A report's frames made by hand, for tests of its page: two days of a small cluster with one slow replica.

Figures follow from a few formulas, so they are the same each time and look like those of a real archive. Topics may be
given by the test, since they are other people's text.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import NormalDist

import pandas as pd
from purgatory_pipeline.report import report_tables

START = datetime(2026, 7, 1, tzinfo=UTC)
WINDOW = timedelta(hours=1)
TOPICS = ("orders", "payments", "clickstream")
HOSTILE = "</script><script>alert(1)</script>"
KINDS = {"produce": (18.0, 0.9, 200), "fetch": (160.0, 0.7, 800)}
"""Median and spread (of the logarithm) of the waits, and the timeout."""

SCALES = (1.0, 0.7, 1.6)
"""How the waits of the first, second and third topic compare with those medians."""

Row = dict[str, object]


def report_frames(topics: Sequence[str] = TOPICS, windows: int = 48) -> dict[str, pd.DataFrame]:
    """One frame for each table of a report, with exactly the columns that it has."""
    scaled = [(None, 1.0), *((topic, SCALES[place % 3]) for place, topic in enumerate(topics))]
    curves = [(topic, kind, scale) for topic, scale in scaled for kind in KINDS]
    rows: dict[str, list[Row]] = {
        "intake": intake(),
        "groups": [],
        "topics": [
            {
                "topic": topic,
                "kind": kind,
                "partitions": 6,
                **counts(900_000 // (place + 1), kind, SCALES[place % 3]),
                **waits(kind, SCALES[place % 3]),
            }
            for place, topic in enumerate(topics)
            for kind in KINDS
        ],
        "windows": [window(number, kind) for number in range(windows) for kind in KINDS],
        "backlog": backlog(topics),
        "hot_keys": hot_keys(topics),
        "slow_produces": slow_produces(),
        "stragglers": [row for topic in (None, *topics) for row in stragglers(topic)],
        "advice": [advice(*each) for each in curves],
        "timeouts": [row for each in curves for row in timeouts(*each)],
        "survival": [row for each in curves for row in survival(*each)],
        "anomalies": anomalies(topics),
    }
    for name, table in report_tables.TABLES.items():
        assert all(tuple(row) == table.column_names for row in rows[name]), f"{name} has other columns now"
    return {
        name: pd.DataFrame(rows[name], columns=list(table.column_names)) for name, table in report_tables.TABLES.items()
    }


def report_info(**changes: object) -> report_tables.ReportInfo:
    """What goes with the frames."""
    values: dict[str, object] = {
        "archive": "archive/july",
        "first_at": START,
        "last_at": START + 48 * WINDOW,
        "window_ms": 3_600_000,
        "approximate": False,
        "slow_over_ms": 145,
        "slow_share": 0.01,
        "totals": totals(),
        "rows": {"groups": 51_200},
        "notes": ("Run 7f3a ended without saying so: what it did after 2026-07-02 04:10 is not there.",),
        "versions": {"purgatory": "0.2.0", "schema": "1", "spark": "4.3.0"},
    }
    return report_tables.ReportInfo(**{**values, **changes})  # type: ignore[arg-type]


def totals() -> dict[str, int]:
    """The sums of the windows; what is not among the ended was refused."""
    windows = [window(number, kind) for number in range(48) for kind in KINDS]
    words = (
        "registered",
        "refused",
        "carried_in",
        "ended",
        "satisfied",
        "failed",
        "expired",
        "cancelled",
        "unfinished",
    )
    return {word: sum(int(str(row[word])) for row in windows) for word in (*words, "shutting_down")}


def empty_frames() -> dict[str, pd.DataFrame]:
    """The tables of an archive in which nothing waited."""
    return {name: pd.DataFrame(columns=list(table.column_names)) for name, table in report_tables.TABLES.items()}


def expires(kind: str, waited_ms: float, scale: float = 1) -> float:
    """The share that needs longer than `waited_ms`, in truth."""
    median, spread, _ = KINDS[kind]
    return 1 - NormalDist(math.log(median * scale), spread).cdf(math.log(max(waited_ms, 1e-9)))


def need_ms(kind: str, share: float, scale: float = 1) -> int:
    """How long that share needs at most, in truth."""
    median, spread, _ = KINDS[kind]
    return round(math.exp(NormalDist(math.log(median * scale), spread).inv_cdf(share)))


def counts(registered: int, kind: str, scale: float = 1) -> Row:
    """The columns that count; `scale` stretches the waits."""
    expired = round(registered * expires(kind, KINDS[kind][2], scale))
    failed, cancelled, refused = registered // 4_000, registered // 3_000, registered // 50_000
    satisfied = registered - expired - failed - cancelled - refused
    ended = registered - refused
    return {
        "registered": registered,
        "refused": refused,
        "ended": ended,
        "satisfied": satisfied,
        "failed": failed,
        "expired": expired,
        "cancelled": cancelled,
        "shutting_down": 0,
        "unfinished": 0,
        "carried_in": 0,
        "completion_rate": satisfied / ended if ended else None,
        "expiry_rate": expired / ended if ended else None,
    }


def waits(kind: str, scale: float = 1) -> Row:
    """The columns that tell of waits."""
    timeout_ms = KINDS[kind][2]
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    return {
        "waited_total_ms": 1_000_000 * need_ms(kind, 0.6, scale),
        **{f"wait_{name}_ms": min(need_ms(kind, share, scale), timeout_ms) for name, share in quantiles.items()},
        "wait_max_ms": timeout_ms + 9,
        "lateness_p50_ms": 1,
        "lateness_p99_ms": 4 + round(scale * 2),
        "lateness_max_ms": 9 + round(scale * 10),
    }


def window(number: int, kind: str) -> Row:
    """One hour: load follows the day, and from hour 33 to 35 waits are long."""
    busy = 1 + 0.7 * math.sin((number % 24 - 8) / 24 * 2 * math.pi)
    scale = 3.0 if 33 <= number < 36 else 0.8 + 0.3 * busy
    registered = round(40_000 * busy * (1.6 if kind == "fetch" else 1))
    start = pd.Timestamp(START + number * WINDOW)
    return {"window_start": start, "kind": kind, **counts(registered, kind, scale), **waits(kind, scale)}


def intake() -> list[Row]:
    """What came in, and two things that were set aside."""
    used = {"registrations": 3_300_012, "outcomes": 3_299_912, "events": 9_120_004, "calls": 1_120, "markers": 9}
    rows: list[Row] = [
        {"table": table, "reason": "used", "files": 48, "rows": number} for table, number in used.items()
    ]
    rows.append({"table": "outcomes", "reason": "truncated file", "files": 1, "rows": None})
    rows.append({"table": "registrations", "reason": "duplicated row", "files": 0, "rows": 212})
    return sorted(rows, key=lambda row: (str(row["table"]), str(row["reason"])))


def backlog(topics: Sequence[str]) -> list[Row]:
    """Deepest at noon or in the slow hours."""
    rows: list[Row] = [
        {
            "topic": topic,
            "partition": partition,
            "kind": kind,
            "deepest": 9_000 // (1 + place) // (1 + partition),
            "at": pd.Timestamp(
                START + (34 if partition % 2 else 14) * WINDOW + timedelta(minutes=7 * place, seconds=41)
            ),
            "run_id": "7f3a",
        }
        for place, topic in enumerate(topics)
        for partition in range(6)
        for kind in KINDS
    ]
    return sorted(rows, key=lambda row: -int(str(row["deepest"])))


def hot_keys(topics: Sequence[str]) -> list[Row]:
    """The first partition of each topic is the busiest."""
    keys = [(topic, partition, kind) for partition in range(4) for topic in topics for kind in KINDS]
    rows: list[Row] = []
    for by in ("waited", "waits"):
        for rank, (topic, partition, kind) in enumerate(keys, start=1):
            share = 0.21 / rank
            rows.append(
                {
                    "by": by,
                    "rank": rank,
                    "topic": topic,
                    "partition": partition,
                    "kind": kind,
                    "waits": round(3_300_000 * share),
                    "waited_total_ms": round(2.4e8 * share),
                    "share": share,
                }
            )
    return rows


def slow_produces() -> list[Row]:
    """What let the slow ones go."""
    causes: Mapping[str, int] = {"follower": 12_700, "leader": 640, "left": 210, "told": 0, "unknown": 31}
    total = sum(causes.values())
    return [
        {"cause": cause, "operations": number, "share": number / total, "waited_total_ms": number * 260}
        for cause, number in causes.items()
    ]


def stragglers(topic: str | None) -> list[Row]:
    """Replica 2 is the slow one."""
    share = {2: 0.63, 1: 0.22, 3: 0.15}
    typical = {2: 41, 1: 6, 3: 5}
    slow = 12_910 if topic is None else 4_300
    return [
        {
            "topic": topic,
            "replica_id": replica,
            "held_back": round(slow * share[replica]),
            "share": share[replica],
            "total_ms": round(slow * share[replica] * typical[replica] * 1.3),
            "median_ms": typical[replica],
            "p99_ms": typical[replica] * 6,
            "max_ms": typical[replica] * 11,
        }
        for replica in share
    ]


def advice(topic: str | None, kind: str, scale: float) -> Row:
    """What the truth asks for, with narrow bounds."""
    timeout_ms = KINDS[kind][2]
    share = expires(kind, timeout_ms, scale)
    row: Row = {
        "topic": topic,
        "kind": kind,
        "operations": 900_000 if topic else 2_400_000,
        "satisfied": 880_000,
        "expired": round(900_000 * share),
        "expired_share": share,
        "timeout_ms": timeout_ms,
        "timeout_share": 0.98,
        "timeouts": 2,
    }
    for name, part in {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}.items():
        need = need_ms(kind, part, scale)
        known = need < timeout_ms * 4
        row |= {
            f"need_{name}_ms": need if known else None,
            f"need_{name}_low_ms": round(need * 0.98) if known else None,
            f"need_{name}_high_ms": round(need * 1.03) if known else None,
        }
    cut = {f"timeout_expires{bound}": share * factor for bound, factor in (("", 1), ("_low", 0.96), ("_high", 1.04))}
    row |= {**cut, "seen_until_ms": timeout_ms * 4}
    row["sentence"] = (
        f"1 % of these need more than {need_ms(kind, 0.99, scale)} ms; the {timeout_ms} ms in use expire "
        f"{share * 100:.1f} %, {timeout_ms * 2} ms would expire {expires(kind, timeout_ms * 2, scale) * 100:.2f} %."
    )
    return row


def timeouts(topic: str | None, kind: str, scale: float) -> list[Row]:
    """The timeout in use, and some around it."""
    in_use = KINDS[kind][2]
    return [
        {
            "topic": topic,
            "kind": kind,
            "timeout_ms": timeout_ms,
            "in_use": timeout_ms == in_use,
            "expires": expires(kind, timeout_ms, scale),
            "expires_low": expires(kind, timeout_ms, scale) * 0.95,
            "expires_high": expires(kind, timeout_ms, scale) * 1.05,
        }
        for timeout_ms in (in_use // 2, in_use * 3 // 4, in_use, in_use * 3 // 2, in_use * 2, in_use * 3, in_use * 4)
    ]


def survival(topic: str | None, kind: str, scale: float) -> list[Row]:
    """The curve at a hundred points; its bounds widen where few are left."""
    last = KINDS[kind][2] * 4
    points = sorted({round(last ** (step / 100)) for step in range(101)})
    rows: list[Row] = []
    for waited_ms in points:
        waiting = expires(kind, waited_ms, scale)
        wide = 1 + 0.02 + 0.3 * (waited_ms / last) ** 2
        rows.append(
            {
                "topic": topic,
                "kind": kind,
                "waited_ms": waited_ms,
                "waiting": waiting,
                "waiting_low": waiting / wide,
                "waiting_high": min(1.0, waiting * wide),
                "at_risk": round(900_000 * waiting),
            }
        )
    return rows


def anomalies(topics: Sequence[str]) -> list[Row]:
    """The slow hours stand out."""
    rows: list[Row] = []
    for hour in (33, 34, 35):
        for measure, value, usual in (("wait_p99_ms", 480.0, 160.0), ("expiry_rate", 0.034, 0.0004)):
            rows.append(
                {
                    "window_start": pd.Timestamp(START + hour * WINDOW),
                    "topic": topics[0] if measure == "wait_p99_ms" else None,
                    "kind": "produce",
                    "measure": measure,
                    "value": value,
                    "usual": usual,
                    "compared_with": pd.Timestamp(START + (hour - 24) * WINDOW),
                    "direction": "up",
                    "score": 14.0 - hour / 10 + (3 if measure == "expiry_rate" else 0),
                }
            )
    return sorted(rows, key=lambda row: -float(str(row["score"])))
