"""Sections over time: load and outcomes, the length of waits.

The report's windows are merged until they are wide enough to distinguish, with gaps where data is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import KIND, TOPIC, Grid, LegendEntry, PageTable, Plot, Section, columns

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
        columns = ["registered", "refused", "ended", *OUTCOMES]
        return self.frame.groupby(["at", "until"], sort=True)[columns].sum().reset_index()

    def kinds(self) -> list[str]:
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


def stacked(frame: pd.DataFrame, parts: "dict[str, pd.Series[float]]") -> charts.Values:
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


def load_section(lines: WindowSeries) -> Section:
    title = "Load and outcomes"
    total = lines.total()
    if total.empty:
        return Section("load", title, ("Nothing was registered and nothing ended in this time.",))
    busiest = total.loc[total["registered"].idxmax()]
    lead = Markup(
        "In the busiest {}, from {}, {} operations per second were registered. An outcome belongs to the window in "
        "which the operation ended, not to the one in which it was registered."
    ).format(
        lines.per_window,
        wording.strong(wording.instant(busiest["at"])),
        wording.strong(wording.decimal(busiest["registered"] / lines.step_ms * 1_000)),
    )
    return Section("load", title, (lead,), (_rates(total, lines), *_unsatisfied(total, lines), _by_kind(lines)))


def _rates(total: pd.DataFrame, lines: WindowSeries) -> Plot:
    seconds = lines.step_ms / 1_000
    parts = {word: total[word] / seconds for word in OUTCOMES}
    per_second = total["registered"] / seconds
    registered = total.assign(high=per_second, value=per_second, word="registered")
    height = alt.Y("high:Q", title="operations per second", axis=alt.Axis(tickCount=5))
    line = (
        alt.Chart(charts.data(registered[["at", "until", "high", "value", "word"]].to_dict("records")))
        .mark_rule(strokeWidth=1.25, color="var(--ink)")
        .encode(x=charts.time_axis(lines.span), x2="until:Q", y=height)
    )
    shown = [word for word, values in parts.items() if values.sum() > 0]
    return charts.plot(
        charts.layered(_bars(stacked(total, parts), height, lines.span, "per second", ",.4~r"), line),
        title="Operations ended, by outcome",
        description=f"Bars over time: operations ended per second in each {lines.per_window}, by outcome "
        f"({', '.join(shown) or 'none'}); a line shows what was registered. The table below has the sums.",
        height=230,
        legend=(*charts.swatches(charts.OUTCOME_COLOURS, shown), LegendEntry("registered", "var(--ink)", shape="line")),
    )


def _unsatisfied(total: pd.DataFrame, lines: WindowSeries) -> tuple[Plot, ...]:
    """A separate plot of unsatisfied waits, which would be too thin to see next to the satisfied ones."""
    ended = total["ended"].where(total["ended"] > 0)
    parts = {word: total[word] / ended for word in OUTCOMES[1:]}
    bars = stacked(total, parts)
    if not bars:
        return ()
    height = charts.share_axis(alt.Y, "high", "share of the operations that ended")
    shown = [word for word, values in parts.items() if values.sum() > 0]
    worst = (total["ended"] - total["satisfied"]) / ended
    drawn = charts.plot(
        _bars(bars, height, lines.span, "share", ".2%"),
        title="The part that was not satisfied",
        description=f"Bars over time: the share of ended operations that were {wording.listed(shown)}; "
        f"at most {wording.share(worst.max())}.",
        height=150,
        legend=charts.swatches(charts.OUTCOME_COLOURS, shown),
    )
    return (drawn,)


def _bars(bars: charts.Values, height: alt.Y, span: charts.Span, what: str, written: str) -> alt.Chart:
    tooltip = charts.tooltips(("when:N", "from (UTC)"), ("word:N", "outcome"), ("value:Q", what, written))
    base = charts.over_time(bars, span, height, charts.OUTCOME_COLOURS)
    chart: alt.Chart = base.mark_rect(stroke=None).encode(x2="until:Q", y2="low:Q", tooltip=tooltip)
    return chart


def _by_kind(lines: WindowSeries) -> PageTable:
    counted = ["registered", "refused", "ended", *OUTCOMES, "unfinished"]
    frame = lines.frame.groupby("kind")[counted].sum().reindex(lines.kinds()).reset_index()
    ended = frame["ended"].where(frame["ended"] > 0)
    rates = {"completion_rate": frame["satisfied"] / ended, "expiry_rate": frame["expired"] / ended}
    rare = ("refused", "failed", "cancelled", "shutting_down", "unfinished")
    return PageTable(
        "Operations by kind",
        frame.assign(**rates),
        (
            KIND,
            *columns(wording.count, "registered", "ended"),
            *columns(wording.share, completion_rate="satisfied"),
            *columns(wording.count, "expired"),
            *columns(wording.share, expiry_rate="of ended"),
            *columns(wording.count, *(word for word in rare if frame[word].sum() > 0)),
        ),
    )


TIME_WAITED: Final = "time waited (logarithmic)"
WAITS: Final = {"wait_p50_ms": "half", "wait_p90_ms": "90 %", "wait_p99_ms": "99 %"}
_COLOURS: Final = {"half": "var(--low)", "90 %": "var(--middle)", "99 %": "var(--high)"}


def waits_section(topics: pd.DataFrame, lines: WindowSeries) -> Section:
    title = "How long they waited"
    if topics.empty or topics["wait_p50_ms"].isna().all():
        return Section("waits", title, ("Nothing ended in this time.",))
    lead = "Waits count whatever their outcome, so one that expired counts for as long as its timeout."
    panels = tuple(_over_time(lines, kind) for kind in lines.kinds() if lines.lines(kind, WAITS))
    table = PageTable(
        "Waits, by topic and kind (a wait is an operation on one of its partitions)",
        topics,
        (
            TOPIC,
            KIND,
            *columns(wording.count, "partitions", "ended"),
            *columns(wording.share, completion_rate="satisfied", expiry_rate="expired"),
            *columns(wording.milliseconds, **WAITS, wait_p999_ms="99.9 %", wait_max_ms="longest"),
            *columns(wording.milliseconds, lateness_max_ms="latest expiry, after its deadline"),
        ),
        rest="csv/topics.csv",
    )
    legend = charts.swatches(_COLOURS, _COLOURS, shape="line")
    return Section("waits", title, (lead,), parts=(Grid(panels, legend), table))


def _over_time(lines: WindowSeries, kind: str) -> Plot:
    rows = lines.lines(kind, WAITS)
    values = [wording.number_of(row["value"]) for row in rows if not wording.is_missing(row["value"])]
    low, high = (value(values, default=1) for value in (min, max))
    for row in rows:
        row["drawn"] = charts.drawn_ms(row["value"])
    height = charts.milliseconds_axis(alt.Y, "drawn", TIME_WAITED, low, high)
    shortest, longest = (wording.milliseconds(value if values else 0) for value in (low, high))
    return charts.plot(
        _lines(rows, height, lines.span, _COLOURS, "waited"),
        title=f"Waits of {kind.replace('_', ' ')} operations",
        description=f"Lines over time: how long half, 90 % and 99 % of the {kind} operations waited at most, in "
        f"each {lines.per_window}; between {shortest} and {longest}.",
        height=210,
        note=lines.caveat,
    )


def _lines(rows: charts.Values, height: alt.Y, span: charts.Span, colours: dict[str, str], what: str) -> alt.LayerChart:
    base = charts.over_time(rows, span, height, colours)
    tooltip = charts.tooltips(("when:N", "around (UTC)"), ("word:N", "which"), ("value:Q", f"{what} (ms)", ",.4~r"))
    return charts.layered(
        base.mark_line(strokeWidth=1.75, strokeCap="round", strokeJoin="round"),
        base.mark_circle(size=9),
        base.mark_circle(size=90, opacity=0).encode(tooltip=tooltip),
    )
