"""Sections on waits: how long they were, over time and by topic, and how late expiries were."""

from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import Grid, PageColumn, PageTable, Plot, Section
from purgatory_pipeline.report.page import window_series

TIME_WAITED: Final = "time waited (logarithmic)"
TOPICS_DRAWN: Final = 14
_PERCENTILES: Final = {"wait_p50_ms": "half", "wait_p90_ms": "90 %", "wait_p99_ms": "99 %"}
_LATENESS: Final = {"lateness_p50_ms": "half", "lateness_p99_ms": "99 %", "lateness_max_ms": "the latest"}
_COLOURS: Final = dict(zip(_PERCENTILES.values(), ("var(--low)", "var(--middle)", "var(--high)"), strict=True))
_DOT_SIZES: Final = (26, 62, 120)
_LATENESS_COLOURS: Final = dict(zip(_LATENESS.values(), ("var(--low)", "var(--middle)", "var(--high)"), strict=True))


def waits_section(topics: pd.DataFrame, lines: window_series.WindowSeries, approximate: bool) -> Section:
    """Percentiles of the time waited, whatever the outcome."""
    title = "How long they waited"
    if topics.empty or topics["wait_p50_ms"].isna().all():
        return Section("waits", title, ("Nothing ended in this time.",))
    lead = Markup(
        "Waits count whatever their outcome, so one that expired counts for as long as its timeout. {}"
    ).format("Percentiles are right to about 1 %." if approximate else "Percentiles are exact.")
    panels = tuple(_over_time(lines, kind) for kind in lines.kinds() if lines.lines(kind, _PERCENTILES))
    return Section(
        "waits",
        title,
        (lead,),
        parts=(Grid(panels, charts.swatches(_COLOURS, _COLOURS, shape="line")), _by_topic(topics), _table(topics)),
    )


def lateness_section(topics: pd.DataFrame, lines: window_series.WindowSeries) -> Section:
    """How long after its deadline a wait expired."""
    title = "How late expiries came"
    expired = topics[topics["lateness_max_ms"].notna() & (pd.to_numeric(topics["expired"]) > 0)]
    if expired.empty:
        return Section("lateness", title, ("Nothing expired in this time.",))
    latest = expired.loc[pd.to_numeric(expired["lateness_max_ms"]).idxmax()]
    lead = Markup(
        "An expiry is never early; its lateness is the daemon's own delay. The latest one, {}, came {} "
        "after its deadline."
    ).format(wording.name(latest["topic"]), wording.strong(wording.milliseconds(latest["lateness_max_ms"])))
    rows = _dots(expired.head(TOPICS_DRAWN), _LATENESS, _LATENESS_COLOURS)
    return Section(
        "lateness",
        title,
        (lead,),
        (
            Grid(
                (
                    _lateness_over_time(lines),
                    charts.plot(
                        rows,
                        title="Lateness, by topic and kind",
                        description=f"Dots for {len(expired.head(TOPICS_DRAWN))} topics and kinds: lateness of half of "
                        "the expiries, of 99 %, and of the latest. The table below has the figures.",
                        height=charts.rows_height(len(expired.head(TOPICS_DRAWN))),
                        note=_first_of(len(expired), "ended most"),
                        legend=charts.swatches(_LATENESS_COLOURS, _LATENESS_COLOURS),
                    ),
                )
            ),
            PageTable(
                "Lateness, by topic and kind",
                expired,
                (
                    PageColumn("topic", "topic", wording.name),
                    PageColumn("kind", "kind"),
                    PageColumn("expired", "expired", wording.count),
                    PageColumn("lateness_p50_ms", "half", wording.milliseconds),
                    PageColumn("lateness_p99_ms", "99 %", wording.milliseconds),
                    PageColumn("lateness_max_ms", "the latest", wording.milliseconds),
                ),
                rest="csv/topics.csv",
                rows_max=8,
            ),
        ),
    )


def _over_time(lines: window_series.WindowSeries, kind: str) -> Plot:
    rows = lines.lines(kind, _PERCENTILES)
    values = [wording.number_of(row["value"]) for row in rows if not wording.is_missing(row["value"])]
    for row in rows:
        row["drawn"] = charts.drawn_ms(row["value"])
    height = charts.milliseconds_axis(alt.Y, "drawn", TIME_WAITED, min(values, default=1), max(values, default=1))
    return charts.plot(
        _lines(rows, height, lines.span, _COLOURS, "waited"),
        title=f"Waits of {kind.replace('_', ' ')} operations",
        description=f"Lines over time: how long half, 90 % and 99 % of the {kind} operations waited at most, in "
        f"each {lines.per_window}; between {wording.milliseconds(min(values, default=0))} and "
        f"{wording.milliseconds(max(values, default=0))}.",
        height=210,
        note=lines.caveat,
    )


def _lateness_over_time(lines: window_series.WindowSeries) -> Plot:
    colours = {kind: charts.KIND_COLOURS.get(kind, charts.OTHER_COLOUR) for kind in lines.kinds()}
    rows = [row for kind in colours for row in lines.lines(kind, {"lateness_p99_ms": kind})]
    for row in rows:
        row["drawn"] = row["value"]
    seen = {str(row["word"]) for row in rows if not wording.is_missing(row["value"])}
    height = alt.Y("drawn:Q", title="late by, 99 % (ms)", axis=alt.Axis(tickCount=5))
    return charts.plot(
        _lines(rows, height, lines.span, colours, "late by"),
        title="Lateness over time",
        description=f"Lines over time: how late 99 % of the expiries were at most, by kind, in each "
        f"{lines.per_window}.",
        height=210,
        note=lines.caveat,
        legend=charts.swatches(colours, seen, shape="line"),
    )


def _lines(rows: charts.Values, height: alt.Y, span: charts.Span, colours: dict[str, str], what: str) -> alt.LayerChart:
    base = (
        alt.Chart(charts.data(rows))
        .transform_calculate(when=window_series.WHEN)
        .encode(
            x=charts.time_axis(span),
            y=height,
            color=alt.Color("word:N", scale=charts.colour_scale(colours), legend=None),
        )
    )
    tooltip = charts.tooltips(("when:N", "around (UTC)"), ("word:N", "which"), ("value:Q", f"{what} (ms)", ",.4~r"))
    return charts.layered(
        base.mark_line(strokeWidth=1.75, strokeCap="round", strokeJoin="round"),
        base.mark_circle(size=9),
        base.mark_circle(size=90, opacity=0).encode(tooltip=tooltip),
    )


def _by_topic(topics: pd.DataFrame) -> Plot:
    drawn = topics[topics["wait_p50_ms"].notna()].head(TOPICS_DRAWN)
    return charts.plot(
        _dots(drawn, _PERCENTILES, _COLOURS, logarithmic=True),
        title="Waits, by topic and kind",
        description=f"Dots for {len(drawn)} topics and kinds: how long half, 90 % and 99 % waited at most. The "
        "table below has the figures.",
        height=charts.rows_height(len(drawn)),
        note=_first_of(len(topics), "ended most"),
        legend=charts.swatches(_COLOURS, _COLOURS),
    )


def _dots(
    topics: pd.DataFrame, columns: dict[str, str], colours: dict[str, str], *, logarithmic: bool = False
) -> alt.LayerChart:
    """A row for each topic and kind: dots for percentiles on a line from the lowest to the highest.

    Lower percentiles are smaller dots in front, so that all can be seen where they coincide.
    """
    sizes = dict(zip(columns.values(), _DOT_SIZES, strict=True))
    labels = charts.unique_labels(
        f"{topic} · {kind}" for topic, kind in zip(topics["topic"], topics["kind"], strict=True)
    )
    dots: charts.Values = []
    spans: charts.Values = []
    for place, label in enumerate(labels):
        row = topics.iloc[place]
        points = {
            word: wording.number_of(row[key]) for key, word in columns.items() if not wording.is_missing(row[key])
        }
        at = {word: max(value, charts.SHORTEST_MS) if logarithmic else value for word, value in points.items()}
        spans.append({"label": label, "place": place, "low": min(at.values()), "high": max(at.values())})
        dots += [
            {
                "label": label,
                "place": place,
                "word": word,
                "drawn": at[word],
                "value": points[word],
                "size": sizes[word],
            }
            for word in reversed(points)
        ]
    values = [dot["drawn"] for dot in dots]
    across = (
        charts.milliseconds_axis(alt.X, "drawn", TIME_WAITED, min(values), max(values))
        if logarithmic
        else alt.X("drawn:Q", title="late by (ms)", axis=alt.Axis(tickCount=5), scale=alt.Scale(zero=True))
    )
    return charts.layered(
        alt.Chart(charts.data(spans))
        .mark_rule(strokeWidth=2, color="var(--line)")
        .encode(y=charts.rows_axis(), x=alt.X("low:Q"), x2="high:Q"),
        alt.Chart(charts.data(dots))
        .mark_circle(opacity=1)
        .encode(
            y=charts.rows_axis(),
            x=across,
            color=alt.Color("word:N", scale=charts.colour_scale(colours), legend=None),
            size=alt.Size("size:Q", scale=None, legend=None),
            tooltip=charts.tooltips(("label:N", "topic · kind"), ("word:N", "which"), ("value:Q", "ms", ",.4~r")),
        ),
    )


def _table(topics: pd.DataFrame) -> PageTable:
    return PageTable(
        "Waits, by topic and kind (a wait is an operation on one of its partitions)",
        topics,
        (
            PageColumn("topic", "topic", wording.name),
            PageColumn("kind", "kind"),
            PageColumn("partitions", "partitions", wording.count),
            PageColumn("ended", "ended", wording.count),
            PageColumn("completion_rate", "satisfied", wording.share),
            PageColumn("expiry_rate", "expired", wording.share),
            PageColumn("wait_p50_ms", "half", wording.milliseconds),
            PageColumn("wait_p90_ms", "90 %", wording.milliseconds),
            PageColumn("wait_p99_ms", "99 %", wording.milliseconds),
            PageColumn("wait_p999_ms", "99.9 %", wording.milliseconds),
            PageColumn("wait_max_ms", "longest", wording.milliseconds),
        ),
        rest="csv/topics.csv",
    )


def _first_of(total: int, why: str) -> str:
    return f"The {TOPICS_DRAWN} of {total:,} that {why}." if total > TOPICS_DRAWN else ""
