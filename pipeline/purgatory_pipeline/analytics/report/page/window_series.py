"""Windows for plots over time: merged until they are wide enough to distinguish, with gaps where data is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from purgatory_pipeline.analytics.page import charts, wording

POINTS_MAX: Final = 200
OUTCOMES: Final = ("satisfied", "expired", "failed", "cancelled", "shutting_down")


@dataclass(frozen=True)
class WindowSeries:
    """A series of windows. `frame` has one row for each window and kind with data: `at`, `until`, and the columns of
    the report's windows.

    Each row merges `merged` windows of the report: counts are summed, and for waits and lateness the largest value is
    kept.
    """

    frame: pd.DataFrame
    step_ms: int
    merged: int

    @property
    def per_window(self) -> str:
        return duration(self.step_ms)

    @property
    def caveat(self) -> str:
        """A note about the effect of merging on percentiles; empty if no windows were merged."""
        return f"Of each {self.merged} windows the highest is drawn." if self.merged > 1 else ""

    @property
    def span(self) -> charts.Span:
        return self.frame["at"].min(), self.frame["until"].max()

    def total(self) -> pd.DataFrame:
        """Counts summed over all kinds, one row per window."""
        columns = ["registered", "refused", "ended", *OUTCOMES]
        return self.frame.groupby(["at", "until"], sort=True)[columns].sum().reset_index()

    def kinds(self) -> list[str]:
        """The kinds, busiest first."""
        ended = self.frame.groupby("kind")["registered"].sum()
        return [str(kind) for kind in ended.sort_values(ascending=False, kind="stable").index]

    def lines(self, kind: str, columns: Mapping[str, str]) -> charts.Values:
        """One row for each window and column. Missing windows are null, so that lines break there.

        `columns` maps a column to its word.
        """
        of_kind = self.frame[self.frame["kind"] == kind].set_index("at")
        if of_kind.empty:
            return []
        step = pd.Timedelta(milliseconds=self.step_ms)
        every = pd.date_range(of_kind.index.min(), of_kind.index.max(), freq=step)
        whole = of_kind.reindex(every) if set(of_kind.index) <= set(every) else of_kind
        return [
            {"at": at + step / 2, "word": word, "value": value}
            for key, word in columns.items()
            for at, value in zip(whole.index, whole[key].tolist(), strict=True)
        ]


def timeline(windows: pd.DataFrame, window_ms: int) -> WindowSeries:
    """Builds a series from the report's windows, merging them because there may be thousands."""
    if windows.empty:
        return WindowSeries(windows.assign(at=[], until=[]), window_ms, 1)
    starts = pd.to_datetime(windows["window_start"], utc=True)
    window = pd.Timedelta(milliseconds=window_ms)
    number = (starts - starts.min()) // window
    merged = 1 + int(number.max()) // POINTS_MAX
    place = number // merged
    how: dict[str, Any] = {
        column: "max" if column.startswith(("wait_", "lateness_")) else "sum"
        for column in windows.columns
        if column not in {"window_start", "kind", "completion_rate", "expiry_rate"}
    }
    numeric = windows.assign(**{column: pd.to_numeric(windows[column]) for column in how})
    frame = numeric.assign(place=place).groupby(["place", "kind"], sort=True).agg(how).reset_index()
    frame["at"] = starts.min() + frame["place"] * window * merged
    frame["until"] = frame["at"] + window * merged
    return WindowSeries(frame, window_ms * merged, merged)


def stacked(frame: pd.DataFrame, parts: dict[str, pd.Series[float]]) -> charts.Values:
    """The values of stacked bars over time: `low` to `high` for each window of `frame` and each word."""
    rows: charts.Values = []
    below = [0.0] * len(frame)
    for word, values in parts.items():
        heights = values.fillna(0).tolist()
        for place, (at, until, height) in enumerate(zip(frame["at"], frame["until"], heights, strict=True)):
            if height > 0:
                low = below[place]
                rows.append({"at": at, "until": until, "word": word, "low": low, "high": low + height, "value": height})
                below[place] = low + height
    return rows


def duration(step_ms: int) -> str:
    """Formats a round duration: 1 h, 5 min, 30 s, 250 ms."""
    for size, unit in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if step_ms >= size and step_ms % size == 0:
            number = step_ms // size
            return "1 day" if unit == "days" and number == 1 else f"{number:,}{wording.NBSP}{unit}"
    return f"{step_ms:,}{wording.NBSP}ms"
