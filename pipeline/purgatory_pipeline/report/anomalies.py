"""Anomalies: windows that differ from the same window a day earlier or, if there is none, from the previous window.

Changes are measured on symmetric scales: logarithms for counts and waits, log-odds for rates. A change is compared with
two spreads. One is chance, which follows from the counts. The other is the usual change of this measure, taken as the
median absolute deviation so that the anomalies themselves do not widen it.

Plain pandas, with a row for each window, topic and kind, for the largest topics and for all topics together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.report.report_tables import ANOMALIES
from purgatory_pipeline.report.rollups import OF_TOPICS_AND_WINDOWS, OF_WINDOWS

DAY_MS: Final = 86_400_000
STRIKING: Final = 3.5
ROWS_MAX: Final = 1_000
COUNT_MIN: Final = 100
"""Windows with fewer registrations or ends are not compared."""
SPREAD_MIN: Final = 0.05
"""Lower limit of the spread, so that a change of a few percent is never an anomaly, however certain."""
NORMAL: Final = 1.4826
"""Factor from a median absolute deviation to a standard deviation."""

RATES: Final = {"expiry_rate": "expired", "completion_rate": "satisfied"}
QUANTILES: Final = {"wait_p50_ms": 1.25, "wait_p99_ms": 3.7}
"""Standard error of the logarithm of each quantile, times the square root of the count, for log-normal waits."""

SERIES: Final = ["topic", "kind"]
COLUMNS: Final = ("window", *SERIES, "registered", "ended", *RATES.values(), *QUANTILES)


def measured_windows(rows: DataFrame, topics_max: int) -> pd.DataFrame:
    """The windows of all topics together and of the largest topics, from `rolled_up`."""
    sizes = rows.where(F.col("level") == OF_TOPICS_AND_WINDOWS).groupBy("topic").agg(F.sum("ended").alias("size"))
    largest: pd.DataFrame = sizes.orderBy(F.desc("size"), "topic").limit(topics_max).toPandas()
    of_largest = (F.col("level") == OF_TOPICS_AND_WINDOWS) & F.col("topic").isin([*largest["topic"]])
    return rows.where((F.col("level") == OF_WINDOWS) | of_largest).toPandas()


def anomalies(windows: pd.DataFrame, window_ms: int) -> pa.Table:
    pairs = _compared(
        windows[[*COLUMNS]].assign(topic=windows["topic"].fillna("").astype(str), is_all=windows["topic"].isna()),
        window_ms,
    )
    found = [_scored(pairs, measure) for measure in ("registered", *QUANTILES, *RATES)]
    scored = pd.concat(found, ignore_index=True)
    striking = _without_returns(scored[scored["score"] >= STRIKING])
    by = ["score", "window", "topic", "kind", "measure"]
    first = striking.sort_values(by, ascending=[False, True, True, True, True], kind="stable").head(ROWS_MAX)
    instants = {
        name: pd.to_datetime(first[of] * window_ms, unit="ms", utc=True)
        for name, of in (("window_start", "window"), ("compared_with", "compared"))
    }
    rows = first.assign(topic=first["topic"].mask(first["is_all"], None), **instants)
    return pa.Table.from_pandas(rows, ANOMALIES.schema, preserve_index=False)


def _compared(windows: pd.DataFrame, window_ms: int) -> pd.DataFrame:
    """Joins each window with the window that it is compared with, whose columns get the suffix `_before`."""
    day = DAY_MS // window_ms if DAY_MS % window_ms == 0 else 1
    key = ["is_all", *SERIES, "window"]
    found = []
    for distance in sorted({day, 1}, reverse=True):
        before = windows.assign(window=windows["window"] + distance, compared=windows["window"])
        found.append(windows.merge(before, on=key, suffixes=("", "_before")))
    return pd.concat(found, ignore_index=True).drop_duplicates(key)


def _scored(pairs: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Adds value, usual value, direction and score to the pairs with enough counts."""
    count = "registered" if measure == "registered" else "ended"
    enough = (pairs[count] >= COUNT_MIN) & (pairs[f"{count}_before"] >= COUNT_MIN)
    rows = pairs[enough].assign(measure=measure, value=lambda row: row[measure] if measure not in RATES else np.nan)
    now, usual = (_place(rows, measure, end) for end in ("", "_before"))
    change = now[0] - usual[0]
    series = [rows[name] for name in ("is_all", *SERIES)]
    off = change - change.groupby(series).transform("median")
    spread = off.abs().groupby(series).transform("median")
    width = np.sqrt(now[1] + usual[1] + (NORMAL * spread) ** 2 + SPREAD_MIN**2)
    return rows.assign(
        value=_value(rows, measure, ""),
        usual=_value(rows, measure, "_before"),
        direction=np.where(off > 0, "up", "down"),
        score=off.abs() / width,
    )


def _value(rows: pd.DataFrame, measure: str, end: str) -> pd.Series[float]:
    if measure in RATES:
        return rows[RATES[measure] + end] / rows["ended" + end]
    return rows[measure + end].astype(float)


def _place(rows: pd.DataFrame, measure: str, end: str) -> tuple[pd.Series[float], pd.Series[float]]:
    """A value on its symmetric scale, and its variance due to chance."""
    if measure in RATES:
        part, rest = rows[RATES[measure] + end] + 0.5, rows["ended" + end] - rows[RATES[measure] + end] + 0.5
        return np.log(part / rest), 1 / part + 1 / rest
    if measure in QUANTILES:
        return np.log(rows[measure + end].astype(float) + 1), QUANTILES[measure] ** 2 / rows["ended" + end]
    return np.log(rows[measure + end] + 0.5), 1 / (rows[measure + end] + 0.5)


def _without_returns(striking: pd.DataFrame) -> pd.DataFrame:
    """Drops windows that returned to normal and differ only because they are compared with an anomaly."""
    names = ["is_all", *SERIES, "measure"]
    odd = {(*row, direction) for *row, direction in striking[[*names, "window", "direction"]].itertuples(index=False)}
    opposite = {"up": "down", "down": "up"}
    is_return = [
        (*row, opposite[direction]) in odd
        for *row, direction in striking[[*names, "compared", "direction"]].itertuples(index=False)
    ]
    return striking[~np.array(is_return, dtype=bool)]
