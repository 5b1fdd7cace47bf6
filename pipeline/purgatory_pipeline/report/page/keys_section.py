"""Sections on where the waiting is: the deepest backlog, and the busiest partitions and keys."""

from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import bar_charts, charts, wording
from purgatory_pipeline.page.parts import Grid, PageColumn, PageTable, Plot, Section
from purgatory_pipeline.report.page import window_series

BARS: Final = 10
DOTS_MAX: Final = 400


def backlog_section(backlog: pd.DataFrame, span: charts.Span) -> Section:
    title = "The deepest backlog"
    if backlog.empty:
        return Section("backlog", title, ("Nothing waited in this time.",))
    deepest = backlog.iloc[0]
    lead = Markup("At most {} waits were pending at once on {} of {}, at {}.").format(
        wording.strong(wording.count(deepest["deepest"])),
        _where(deepest["partition"]),
        wording.name(deepest["topic"]),
        wording.strong(wording.instant(deepest["at"])),
    )
    return Section(
        "backlog",
        title,
        (lead,),
        (
            _backlog_plot(backlog, span),
            PageTable(
                "Deepest backlog of a partition or key",
                backlog,
                (
                    PageColumn("topic", "topic or key", wording.name),
                    PageColumn("partition", "partition", bar_charts.partition),
                    PageColumn("kind", "kind"),
                    PageColumn("deepest", "waits at once", wording.count),
                    PageColumn("at", "first at (UTC)", wording.instant),
                ),
                rest="csv/backlog.csv",
                rows_max=8,
            ),
        ),
    )


def hot_keys_section(hot_keys: pd.DataFrame) -> Section:
    title = "Hot keys"
    by = {word: hot_keys[hot_keys["by"] == word] for word in ("waits", "waited")}
    if by["waits"].empty:
        return Section("hot-keys", title, ("Nothing ended in this time.",))
    first = by["waits"].iloc[0]
    lead = Markup(
        "{} {} takes {} of all waits. A key that is high in the second list but not in the first has few waits, "
        "but slow ones."
    ).format(
        wording.name(first["topic"]),
        _where(first["partition"]),
        wording.strong(wording.share_in_sentence(first["share"])),
    )
    return Section(
        "hot-keys",
        title,
        (lead,),
        (
            Grid(
                (
                    _hot_plot(by["waits"], "Most waits", "share of all waits"),
                    _hot_plot(by["waited"], "Most time waited", "share of all time waited"),
                )
            ),
            Grid(
                (
                    _hot_table(by["waits"], "By number of waits", PageColumn("waits", "waits", wording.count)),
                    _hot_table(
                        by["waited"],
                        "By time waited",
                        PageColumn("waited_total_ms", "time waited", wording.total_time),
                    ),
                )
            ),
        ),
    )


def _backlog_plot(backlog: pd.DataFrame, span: charts.Span) -> Plot:
    drawn = backlog.head(DOTS_MAX)
    colours = {
        kind: charts.KIND_COLOURS.get(kind, charts.OTHER_COLOUR) for kind in sorted(set(drawn["kind"].astype(str)))
    }
    dots = [
        {"at": at, "value": deepest, "word": str(kind), "label": label}
        for at, deepest, kind, label in zip(
            drawn["at"], drawn["deepest"], drawn["kind"], bar_charts.key_labels(drawn), strict=True
        )
    ]
    chart = (
        alt.Chart(charts.data(dots))
        .transform_calculate(when=window_series.WHEN)
        .mark_circle(size=60, opacity=0.7)
        .encode(
            x=charts.time_axis(span),
            y=alt.Y("value:Q", title="waits pending at once", axis=alt.Axis(tickCount=5, format=",~r")),
            color=alt.Color("word:N", scale=charts.colour_scale(colours), legend=None),
            tooltip=charts.tooltips(("label:N", "which"), ("value:Q", "waits at once", ","), ("when:N", "at (UTC)")),
        )
    )
    note = f"The deepest {DOTS_MAX} of {len(backlog):,}." if len(backlog) > DOTS_MAX else ""
    return charts.plot(
        chart,
        title="When each partition or key was at its deepest",
        description=f"A dot for each of {len(drawn)} partitions and kinds: when its backlog was deepest, and how deep. "
        "The table below has the deepest ones.",
        height=200,
        note=note,
        legend=charts.swatches(colours, colours),
    )


def _hot_plot(frame: pd.DataFrame, title: str, axis: str) -> Plot:
    drawn = frame.head(BARS)
    shares = [wording.number_of(share) for share in drawn["share"]]
    return charts.plot(
        bar_charts.bars(
            bar_charts.key_labels(drawn),
            shares,
            [wording.share(share) for share in shares],
            title=axis,
            colours=[charts.KIND_COLOURS.get(str(kind), charts.OTHER_COLOUR) for kind in drawn["kind"]],
            shares=True,
        ),
        title=title,
        description=f"Bars for the first {len(drawn)} partitions or keys: their {axis}, from "
        f"{wording.share(max(shares))} down. The table below has the figures.",
        height=charts.rows_height(len(drawn)),
        legend=charts.swatches(charts.KIND_COLOURS, {str(kind) for kind in drawn["kind"]}),
    )


def _hot_table(frame: pd.DataFrame, caption: str, figure: PageColumn) -> PageTable:
    return PageTable(
        caption,
        frame,
        (
            PageColumn("topic", "topic or key", wording.name),
            PageColumn("partition", "partition", bar_charts.partition),
            PageColumn("kind", "kind"),
            figure,
            PageColumn("share", "share", wording.share),
        ),
        rest="csv/hot_keys.csv",
        rows_max=BARS,
    )


def _where(number: object) -> str:
    return "key" if wording.number_of(number) == bar_charts.NO_PARTITION else f"partition {wording.count(number)}"
