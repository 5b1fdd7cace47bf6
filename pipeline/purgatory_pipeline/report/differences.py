"""The differences between the tables of two reports, each with a 95 % bound, and the page of `compare` on them.

Counts are compared by window: those of a topic, a client or a partition in a window are one observation, so that what
one event did to many waits does not pass for many observations. Estimates that have bounds, such as the advice, are
compared with the bounds of both (Zou and Donner).
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import Headline, Page, PageTable, Section, columns
from purgatory_pipeline.report.estimates import Z

Frames = Mapping[str, pd.DataFrame]
Floats = NDArray[np.float64]

KEYS_MAX: Final = 100
"""For each table, the keys with most waits that are compared."""
WINDOWS_MIN: Final = 5
"""A key with operations in fewer windows than this has no bounds."""
RATIOS: Final = {
    "registered_per_s": ("registered", ""),
    "completion_rate": ("satisfied", "ended"),
    "expiry_rate": ("expired", "ended"),
    "wait_mean_ms": ("waited_total_ms", "ended"),
}
"""Sums of `groups`, and their divisors; empty: the seconds of all windows."""
COUNTED: Final = {"topics": ["topic"], "principals": ["principal"], "partitions": ["topic", "partition"]}
ESTIMATED: Final = {
    "advice": ("topic kind", "need_p50_ms need_p90_ms need_p99_ms need_p999_ms timeout_expires"),
    "timeouts": ("topic kind timeout_ms", "expires"),
    "stragglers": ("topic replica_id", "share median_ms total_ms"),
    "slow_produces": ("cause", "share"),
    "backlog": ("topic partition kind", "deepest"),
}
"""For each table its key, and the figures that are compared."""


def differences(before: Frames, after: Frames) -> pd.DataFrame:
    """A row for each figure: `table`, `of` (its key as text), `measure`, `a`, `b`, `difference`, `low`, `high`,
    and whether the bounds exclude 0 (`clear`).

    `before` and `after` are the tables of two reports, by name. Bounds are missing where they are not known.
    """
    found = [_counted(before["groups"], after["groups"], name, [*by, "kind"]) for name, by in COUNTED.items()]
    for name, (by, measures) in ESTIMATED.items():
        both = _with_bounds(before[name]).merge(_with_bounds(after[name]), on=by.split(), suffixes=("_a", "_b"))
        found += [_estimated(both, name, by.split(), measure) for measure in measures.split()]
    rows = pd.concat(found, ignore_index=True)
    return rows.assign(clear=(rows["low"] > 0) | (rows["high"] < 0))


def _counted(before: pd.DataFrame, after: pd.DataFrame, name: str, by: list[str]) -> pd.DataFrame:
    keys = pd.concat([before, after]).groupby(by)["ended"].sum().nlargest(KEYS_MAX).index
    found = []
    for measure, (part, whole) in RATIOS.items():
        (a, variance_a, freedom_a), (b, variance_b, freedom_b) = (
            _ratio(groups, by, keys, part, whole) for groups in (before, after)
        )
        freedom = np.minimum(freedom_a, freedom_b)
        students = Z + 2.5 / np.where(freedom >= WINDOWS_MIN - 1, freedom, np.nan)
        width = students * np.sqrt(variance_a + variance_b)
        row = {"table": name, "of": _texts(keys.to_frame()), "measure": measure, "a": a, "b": b}
        found.append(pd.DataFrame(row | {"difference": b - a, "low": b - a - width, "high": b - a + width}))
    return pd.concat(found)


def _ratio(groups: pd.DataFrame, by: list[str], keys: pd.Index, part: str, whole: str) -> tuple[Floats, Floats, Floats]:
    """A ratio of sums for each key, its variance between windows, and the number of windows with any, less one."""
    sums = groups.pivot_table(index="window_start", columns=by, values=list({part, whole or part}), aggfunc="sum")
    parts = sums[part].reindex(columns=keys).fillna(0).to_numpy(np.float64)
    seconds = sums.index.to_series().diff().min() / pd.Timedelta(seconds=1)
    wholes = sums[whole].reindex(columns=keys).fillna(0).to_numpy(np.float64) if whole else np.full_like(parts, seconds)
    total = np.where(wholes.sum(0) == 0, np.nan, wholes.sum(0))
    ratio = parts.sum(0) / total
    rest = parts - np.nan_to_num(ratio) * wholes
    freedom = np.count_nonzero(wholes if whole else parts, axis=0) - 1.0
    return ratio, (rest**2).sum(0) / total**2 * len(parts) / max(len(parts) - 1, 1), freedom


def _estimated(both: pd.DataFrame, name: str, by: list[str], measure: str) -> pd.DataFrame:
    stem, unit = measure.removesuffix("_ms"), "_ms" if measure.endswith("_ms") else ""
    (a, low_a, high_a), (b, low_b, high_b) = (
        [
            both.get(f"{stem}{end}{unit}_{side}", pd.Series(np.nan, both.index)).astype(float)
            for end in ("", "_low", "_high")
        ]
        for side in "ab"
    )
    row = {"table": name, "of": _texts(both[by]), "measure": measure, "a": a, "b": b, "difference": b - a}
    bounds = {"low": b - a - np.hypot(b - low_b, high_a - a), "high": b - a + np.hypot(high_b - b, a - low_a)}
    return pd.DataFrame(row | bounds)


def _with_bounds(rows: pd.DataFrame) -> pd.DataFrame:
    if "share" not in rows:
        return rows
    count = rows[rows.columns.intersection(["held_back", "operations"])[0]]
    width = Z * np.sqrt(rows["share"] * (rows["share"] * (1 - rows["share"])) / count)
    return rows.assign(share_low=rows["share"] - width, share_high=rows["share"] + width)


def _texts(keys: pd.DataFrame) -> list[str]:
    """Keys as texts: orders · produce."""
    return [" · ".join("all" if pd.isna(part) else str(part) for part in key) for key in keys.itertuples(index=False)]


ROWS_MAX: Final = 300
_LEAD: Final = (
    "A difference is B minus A, with its 95 % bounds. Rows whose bounds exclude 0 are marked. Columns are those of the "
    "reports' tables. Counts are compared between windows, so two times of day differ as clearly as two releases."
)


def compare_page(rows: pd.DataFrame, first: str, second: str) -> Page:
    """The page of all `differences` between the reports on `first` and `second`."""
    bounded, clear = int(rows["low"].notna().sum()), int(rows["clear"].sum())
    names = columns(wording.name, "table", "of", measure="column")
    figures = columns(wording.as_is, a="A", b="B", difference="difference", bounds="bounds")
    table = PageTable("B minus A", in_words(rows), (*names, *figures), "compare.csv", ROWS_MAX, "clear")
    return Page(
        title="A and B compared",
        subtitle=Markup("A: {} · B: {}").format(wording.name(first), wording.name(second)),
        headlines=(
            Headline("differences with bounds", wording.count(bounded)),
            Headline("beyond their bounds", wording.count(clear), f"by chance about {wording.count(bounded / 20)}"),
        ),
        findings=(),
        sections=(Section("differences", "Differences", (_LEAD,), (table,)),),
    )


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """The differences with their figures as texts and a column `bounds`, the largest for its bounds first."""
    size = rows["difference"].abs() / (rows["high"] - rows["low"])
    by_size = rows.assign(size=size).sort_values(
        ["size", "of", "measure"], ascending=[False, True, True], kind="stable"
    )

    def texts(name: str, sign: str = "") -> list[str]:
        return [_text(measure, value, sign) for measure, value in zip(by_size["measure"], by_size[name], strict=True)]

    bounds = [f"{low} to {high}" for low, high in zip(texts("low", "+"), texts("high", "+"), strict=True)]
    return by_size.assign(a=texts("a"), b=texts("b"), difference=texts("difference", "+"), bounds=bounds)


def _text(measure: str, value: float, sign: str = "") -> str:
    """A figure, or a difference with its sign; that of shares in points of percent."""
    if wording.is_missing(value):
        return wording.MISSING
    if measure.endswith("_ms"):
        words = wording.total_time if measure == "total_ms" else wording.milliseconds
    elif measure in {"registered_per_s", "deepest"}:
        words = wording.decimal
    else:
        return f"{max(-100, min(value * 100, 100)):+.2f} points" if sign else wording.share(value)
    return f"{'-' if value < 0 else sign}{words(abs(value))}"
