"""Sections on waits: their length over time and by topic, and the lateness of expiries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.analytics.page import charts, wording
from purgatory_pipeline.analytics.page.parts import KIND, TOPIC, Grid, PageTable, Plot, Section, columns
from purgatory_pipeline.analytics.report.page.window_series import WindowSeries

TIME_WAITED: Final = "time waited (logarithmic)"
TOPICS_DRAWN: Final = 14
_DOT_SIZES: Final = (26, 62, 120)
_SHADES: Final = ("var(--low)", "var(--middle)", "var(--high)")


@dataclass(frozen=True)
class Percentiles:
    """Columns of `topics` that are drawn together: their keys and names, from lowest to highest percentile."""

    names: Mapping[str, str]
    axis: str
    logarithmic: bool

    @property
    def colours(self) -> dict[str, str]:
        return dict(zip(self.names.values(), _SHADES, strict=True))


WAITS: Final = Percentiles(
    {"wait_p50_ms": "half", "wait_p90_ms": "90 %", "wait_p99_ms": "99 %"}, TIME_WAITED, logarithmic=True
)
LATENESS: Final = Percentiles(
    {"lateness_p50_ms": "half", "lateness_p99_ms": "99 %", "lateness_max_ms": "the latest"},
    "late by (ms)",
    logarithmic=False,
)


def waits_section(topics: pd.DataFrame, lines: WindowSeries) -> Section:
    """Percentiles of the time waited, for all outcomes."""
    title = "How long they waited"
    if topics.empty or topics["wait_p50_ms"].isna().all():
        return Section("waits", title, ("Nothing ended in this time.",))
    lead = Markup("Waits count whatever their outcome, so one that expired counts for as long as its timeout.")
    panels = tuple(_over_time(lines, kind) for kind in lines.kinds() if lines.lines(kind, WAITS.names))
    drawn = topics[topics["wait_p50_ms"].notna()].head(TOPICS_DRAWN)
    by_topic = _by_topic(
        drawn, len(topics), WAITS, "Waits, by topic and kind", "how long half, 90 % and 99 % waited at most"
    )
    table = PageTable(
        "Waits, by topic and kind (a wait is an operation on one of its partitions)",
        topics,
        (
            TOPIC,
            KIND,
            *columns(wording.count, "partitions", "ended"),
            *columns(wording.share, completion_rate="satisfied", expiry_rate="expired"),
            *columns(wording.milliseconds, **WAITS.names, wait_p999_ms="99.9 %", wait_max_ms="longest"),
        ),
        rest="csv/topics.csv",
    )
    legend = charts.swatches(WAITS.colours, WAITS.colours, shape="line")
    return Section("waits", title, (lead,), parts=(Grid(panels, legend), by_topic, table))


def lateness_section(topics: pd.DataFrame, lines: WindowSeries) -> Section:
    """The time between the deadline of a wait and its expiry."""
    title = "How late expiries came"
    expired = topics[topics["lateness_max_ms"].notna() & (pd.to_numeric(topics["expired"]) > 0)]
    if expired.empty:
        return Section("lateness", title, ("Nothing expired in this time.",))
    latest = expired.loc[pd.to_numeric(expired["lateness_max_ms"]).idxmax()]
    lead = Markup(
        "An expiry is never early; its lateness is the daemon's own delay. The latest one, {}, came {} "
        "after its deadline."
    ).format(wording.name(latest["topic"]), wording.strong(wording.milliseconds(latest["lateness_max_ms"])))
    by_topic = _by_topic(
        expired.head(TOPICS_DRAWN),
        len(expired),
        LATENESS,
        "Lateness, by topic and kind",
        "lateness of half of the expiries, of 99 %, and of the latest",
    )
    table = PageTable(
        "Lateness, by topic and kind",
        expired,
        (TOPIC, KIND, *columns(wording.count, "expired"), *columns(wording.milliseconds, **LATENESS.names)),
        rest="csv/topics.csv",
        rows_max=8,
    )
    return Section("lateness", title, (lead,), (Grid((_lateness_over_time(lines), by_topic)), table))


def _over_time(lines: WindowSeries, kind: str) -> Plot:
    rows = lines.lines(kind, WAITS.names)
    values = [wording.number_of(row["value"]) for row in rows if not wording.is_missing(row["value"])]
    low, high = (value(values, default=1) for value in (min, max))
    for row in rows:
        row["drawn"] = charts.drawn_ms(row["value"])
    height = charts.milliseconds_axis(alt.Y, "drawn", TIME_WAITED, low, high)
    shortest, longest = (wording.milliseconds(value if values else 0) for value in (low, high))
    return charts.plot(
        _lines(rows, height, lines.span, WAITS.colours, "waited"),
        title=f"Waits of {kind.replace('_', ' ')} operations",
        description=f"Lines over time: how long half, 90 % and 99 % of the {kind} operations waited at most, in "
        f"each {lines.per_window}; between {shortest} and {longest}.",
        height=210,
        note=lines.caveat,
    )


def _lateness_over_time(lines: WindowSeries) -> Plot:
    colours = {kind: charts.colour_of(kind) for kind in lines.kinds()}
    rows = [row for kind in colours for row in lines.lines(kind, {"lateness_p99_ms": kind})]
    seen = {str(row["word"]) for row in rows if not wording.is_missing(row["value"])}
    height = charts.amounts_axis("drawn", "late by, 99 % (ms)")
    return charts.plot(
        _lines([row | {"drawn": row["value"]} for row in rows], height, lines.span, colours, "late by"),
        title="Lateness over time",
        description=f"Lines over time: how late 99 % of the expiries were at most, by kind, in each "
        f"{lines.per_window}.",
        height=210,
        note=lines.caveat,
        legend=charts.swatches(colours, seen, shape="line"),
    )


def _lines(rows: charts.Values, height: alt.Y, span: charts.Span, colours: dict[str, str], what: str) -> alt.LayerChart:
    base = charts.over_time(rows, span, height, colours)
    tooltip = charts.tooltips(("when:N", "around (UTC)"), ("word:N", "which"), ("value:Q", f"{what} (ms)", ",.4~r"))
    return charts.layered(
        base.mark_line(strokeWidth=1.75, strokeCap="round", strokeJoin="round"),
        base.mark_circle(size=9),
        base.mark_circle(size=90, opacity=0).encode(tooltip=tooltip),
    )


def _by_topic(drawn: pd.DataFrame, total: int, percentiles: Percentiles, title: str, what: str) -> Plot:
    return charts.plot(
        _dots(drawn, percentiles),
        title=title,
        description=f"Dots for {len(drawn)} topics and kinds: {what}. The table below has the figures.",
        height=charts.rows_height(len(drawn)),
        note=f"The {TOPICS_DRAWN} of {total:,} that ended most." if total > TOPICS_DRAWN else "",
        legend=charts.swatches(percentiles.colours, percentiles.colours),
    )


def _dots(topics: pd.DataFrame, percentiles: Percentiles) -> alt.LayerChart:
    """A row for each topic and kind: percentiles as dots on a line from the lowest to the highest.

    Lower percentiles are smaller dots drawn in front, so that all dots stay visible where they coincide.
    """
    pairs = zip(topics["topic"], topics["kind"], strict=True)
    labels = charts.unique_labels(f"{topic} · {kind}" for topic, kind in pairs)
    at_least = charts.SHORTEST_MS if percentiles.logarithmic else 0
    sized = list(zip(percentiles.names.items(), _DOT_SIZES, strict=True))
    dots: charts.Values = []
    spans: charts.Values = []
    for place, label in enumerate(labels):
        row = topics.iloc[place]
        points: charts.Values = [
            {"label": label, "place": place, "word": word, "value": wording.number_of(row[key]), "size": size}
            for (key, word), size in sized
            if not wording.is_missing(row[key])
        ]
        at = [max(point["value"], at_least) for point in points]
        spans.append({"label": label, "place": place, "low": min(at), "high": max(at)})
        dots += [point | {"drawn": drawn} for point, drawn in zip(points[::-1], at[::-1], strict=True)]
    values = [dot["drawn"] for dot in dots]
    across = charts.milliseconds_axis(alt.X, "drawn", percentiles.axis, min(values), max(values))
    if not percentiles.logarithmic:
        scale = alt.Scale(zero=True)
        across = alt.X("drawn:Q", title=percentiles.axis, axis=alt.Axis(tickCount=5), scale=scale)
    tooltip = charts.tooltips(("label:N", "topic · kind"), ("word:N", "which"), ("value:Q", "ms", ",.4~r"))
    return charts.layered(
        alt.Chart(charts.data(spans))
        .mark_rule(strokeWidth=2, color="var(--line)")
        .encode(y=charts.rows_axis(), x=alt.X("low:Q"), x2="high:Q"),
        alt.Chart(charts.data(dots))
        .mark_circle(opacity=1)
        .encode(
            y=charts.rows_axis(),
            x=across,
            color=charts.by_word(percentiles.colours),
            size=alt.Size("size:Q", scale=None, legend=None),
            tooltip=tooltip,
        ),
    )
