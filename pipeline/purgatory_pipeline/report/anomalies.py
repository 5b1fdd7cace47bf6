"""Anomalies: windows unlike others, and shifts, from which on all windows are unlike those before.

In a history of three weeks or more, a window is compared with the same window of the weeks around it (their
median), so with the same hours of the same weekday. In a shorter one it is compared with the same window a day earlier
or, if there is none, with the previous one. Shifts are looked for in histories of two weeks or more, and found also
where a level drifts slowly.

Changes are measured on symmetric scales: logarithms for counts and waits, log-odds for rates. A change is compared with
two spreads. One is chance, which follows from the counts. The other is the usual change of this measure, taken as the
median absolute deviation so that the anomalies themselves do not widen it.

Plain pandas, with a row for each window, topic and kind, for the largest topics and for all topics together.
"""

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.report.rollups import OF_TOPICS_AND_WINDOWS, OF_WINDOWS
from purgatory_pipeline.spark.tasks import small_side

DAY_MS: Final = 86_400_000
WEEK_MS: Final = 7 * DAY_MS
WEEKS_MIN: Final = 3
"""In a history of as many weeks, windows are compared with those of other weeks."""
WEEKS_AROUND: Final = 4
"""Windows are compared with as many weeks before and after."""
DAYS_MIN: Final = 3
"""A shift has as many days before and after it."""
FREEDOM_MIN: Final = 4
"""Degrees of freedom that a shift needs: days of which there are more than days of the week."""
SHIFT_MIN: Final = 0.1
"""Smaller shifts (of the logarithm: a tenth) are not reported."""
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

MEASURES: Final = ("registered", *QUANTILES, *RATES)
SERIES: Final = ["topic", "kind"]
COLUMNS: Final = ("window", *SERIES, "registered", "ended", *RATES.values(), *QUANTILES)


def measured_windows(rows: DataFrame, topics_max: int) -> DataFrame:
    """The windows of all topics together and of the largest topics, from `rolled_up`."""
    of_topics = rows.where(F.col("level") == OF_TOPICS_AND_WINDOWS)
    sizes = of_topics.groupBy("topic").agg(F.sum("ended").alias("size"))
    largest = sizes.orderBy(F.desc("size"), "topic").limit(topics_max)
    of_largest = of_topics.join(small_side(largest), "topic", "left_semi").select(*rows.columns)
    return rows.where(F.col("level") == OF_WINDOWS).unionAll(of_largest)


def anomalies(windows: pd.DataFrame, window_ms: int) -> pa.Table:
    """The table `anomalies`, from the windows of `measured_windows`."""
    named = windows[[*COLUMNS]].assign(topic=windows["topic"].fillna("").astype(str), is_all=windows["topic"].isna())
    pairs = _compared(named, window_ms)
    found = [_scored(pairs, measure) for measure in MEASURES]
    striking = pd.concat(found, ignore_index=True).query(f"score >= {STRIKING}")
    every = [_without_returns(striking), *(_shifts(named, measure, window_ms) for measure in MEASURES)]
    scored = pd.concat([rows for rows in every if not rows.empty] or [striking], ignore_index=True)
    by = ["score", "window", "topic", "kind", "measure"]
    first = scored.sort_values(by, ascending=[False, True, True, True, True], kind="stable").head(ROWS_MAX)
    instants = {
        name: pd.to_datetime(first[of].astype("Int64") * window_ms, unit="ms", utc=True)
        for name, of in (("window_start", "window"), ("compared_with", "compared"))
    }
    rows = first.assign(topic=first["topic"].mask(first["is_all"], None), **instants)
    return pa.Table.from_pandas(rows, TABLES["anomalies"].schema, preserve_index=False)


def _compared(windows: pd.DataFrame, window_ms: int) -> pd.DataFrame:
    """Joins each window with its counterpart, whose columns get the suffix `_before`."""
    key = ["is_all", *SERIES, "window"]
    if WEEK_MS % window_ms == 0 and _lasts(windows) >= WEEKS_MIN * (WEEK_MS // window_ms):
        return _compared_by_week(windows, WEEK_MS // window_ms)
    day = DAY_MS // window_ms if DAY_MS % window_ms == 0 else 1
    found: list[pd.DataFrame] = []
    for distance, basis in {1: "window", day: "day"}.items() if day > 1 else ((1, "window"),):
        before = windows.assign(window=windows["window"] + distance, compared=windows["window"], basis=basis)
        found.insert(0, windows.merge(before, on=key, suffixes=("", "_before")))
    return pd.concat(found, ignore_index=True).drop_duplicates(key).assign(slot=-1)


def _compared_by_week(windows: pd.DataFrame, week: int) -> pd.DataFrame:
    """Joins each window with the median of the same windows of the weeks around it, of which there must be two.

    The first and the last window of the history are left out, as they may be incomplete. In three weeks an anomaly
    moves the median for the others; rows of the same `slot` are then taken for the same anomaly.
    """
    inner = windows[windows["window"].between(windows["window"].min() + 1, windows["window"].max() - 1)]
    distances = [week * number for number in range(-WEEKS_AROUND, WEEKS_AROUND + 1) if number]
    others = pd.concat([inner.assign(window=inner["window"] + distance) for distance in distances])
    by_window = others.groupby(["is_all", *SERIES, "window"])
    usual = by_window[[*COLUMNS[3:]]].median()[by_window.size() >= WEEKS_MIN - 1].add_suffix("_before").reset_index()
    slot = inner["window"] % (week if _lasts(windows) < (WEEKS_MIN + 1) * week else windows["window"].max() + 1)
    return inner.assign(slot=slot, compared=np.nan, basis="weeks").merge(usual, on=["is_all", *SERIES, "window"])


def _lasts(windows: pd.DataFrame) -> int:
    return 0 if windows.empty else int(windows["window"].max() - windows["window"].min()) + 1


def _shifts(windows: pd.DataFrame, measure: str, window_ms: int) -> pd.DataFrame:
    """A row for each series whose level changed for good, or drifted: from which day on, and both levels.

    Each window's difference from the mean of the same window of all weeks is reduced to a median for each day.
    """
    week = WEEK_MS // window_ms
    if DAY_MS % window_ms or _lasts(windows) < 2 * week:
        return pd.DataFrame()
    enough = windows[windows["registered" if measure == "registered" else "ended"] >= COUNT_MIN]
    rows = enough.assign(place=_place(enough, measure, "")[0], slot=enough["window"] % week)
    rows["day"] = rows["window"] * window_ms // DAY_MS
    by_slot = rows.groupby(["is_all", *SERIES, "slot"])["place"]
    rows["off"] = (rows["place"] - by_slot.transform("mean")).where(by_slot.transform("size") > 1)
    found = []
    for series, of_series in rows.dropna(subset="off").groupby(["is_all", *SERIES]):
        days = of_series.groupby("day")["off"].median()
        score, step, first = _change_point(days.index.to_numpy(), days.to_numpy())
        if score >= STRIKING and abs(step) >= SHIFT_MIN:
            level, rest = float(of_series["place"].median()), float((days.index < first).mean())
            of = {**dict(zip(["is_all", *SERIES], series, strict=True)), "measure": measure, "basis": "shift"}
            at = {"window": first * DAY_MS // window_ms, "compared": np.nan, "score": score}
            values = (_from_place(level + part * step, measure) for part in (rest, rest - 1))
            levels = dict(zip(("value", "usual"), values, strict=True))
            found.append(of | at | levels | {"direction": "up" if step > 0 else "down"})
    return pd.DataFrame(found)


def _change_point(day: NDArray[np.int64], off: NDArray[np.float64]) -> tuple[float, float, int]:
    """The most certain step in a value for each day: its score, its height, and the first day after it; 0 if there is
    none.

    Each step is fitted together with a level for each day of the week. Its t statistic is given as a normal one.
    """
    is_weekday = (day[:, None] % 7 == np.arange(7)).astype(np.float64)
    same_weekday = is_weekday @ (is_weekday / np.maximum(is_weekday.sum(0), 1)).T
    firsts = day[DAYS_MIN : len(day) - DAYS_MIN + 1]
    freedom = len(day) - np.count_nonzero(is_weekday.any(0)) - 1
    if freedom < FREEDOM_MIN:
        return 0.0, 0.0, 0
    steps = (day >= firsts[:, None]).astype(np.float64)
    steps -= steps @ same_weekday
    rest = off - same_weekday @ off
    weight = np.maximum((steps**2).sum(1), 1e-9)
    heights = steps @ rest / weight
    left = np.maximum((rest**2).sum() - heights**2 * weight, 0) / freedom
    t_squared = heights**2 * weight / (left + 1e-12)
    score = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t_squared / freedom))
    best = int(score.argmax())
    return float(score[best]), float(heights[best]), int(firsts[best])


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


def _value(rows: pd.DataFrame, measure: str, end: str) -> "pd.Series[float]":
    if measure in RATES:
        return rows[RATES[measure] + end] / rows["ended" + end]
    return rows[measure + end].astype(float)


def _place(rows: pd.DataFrame, measure: str, end: str) -> "tuple[pd.Series[float], pd.Series[float]]":
    """A value on its symmetric scale, and its variance due to chance."""
    if measure in RATES:
        part, rest = rows[RATES[measure] + end] + 0.5, rows["ended" + end] - rows[RATES[measure] + end] + 0.5
        return np.log(part / rest), 1 / part + 1 / rest
    if measure in QUANTILES:
        return np.log(rows[measure + end].astype(float) + 1), QUANTILES[measure] ** 2 / rows["ended" + end]
    return np.log(rows[measure + end] + 0.5), 1 / (rows[measure + end] + 0.5)


def _from_place(place: float, measure: str) -> float:
    """The value at a place of its symmetric scale."""
    if measure in RATES:
        return float(1 / (1 + np.exp(-place)))
    return float(np.exp(place) - (1 if measure in QUANTILES else 0.5))


def _without_returns(striking: pd.DataFrame) -> pd.DataFrame:
    """Drops windows that returned to normal and differ only because they are compared with an anomaly."""
    names = ["is_all", *SERIES, "measure"]
    if (striking["basis"] == "weeks").any():
        strongest = striking.groupby([*names, "slot"])["score"].transform("idxmax")
        return striking[striking["direction"].to_numpy() == striking.loc[strongest, "direction"].to_numpy()]
    odd = {(*row, direction) for *row, direction in striking[[*names, "window", "direction"]].itertuples(index=False)}
    opposite = {"up": "down", "down": "up"}
    is_return = [
        (*row, opposite[direction]) in odd
        for *row, direction in striking[[*names, "compared", "direction"]].itertuples(index=False)
    ]
    return striking[~np.array(is_return, dtype=bool)]
