"""The section on load: what was registered and how it ended, over time."""

from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import LegendEntry, PageColumn, PageTable, Plot, Section
from purgatory_pipeline.report.page import window_series

_NOT_SATISFIED: Final = window_series.OUTCOMES[1:]


def load_section(lines: window_series.WindowSeries) -> Section:
    title = "Load and outcomes"
    total = lines.total()
    if total.empty:
        return Section("load", title, ("Nothing was registered and nothing ended in this time.",))
    return Section(
        "load", title, (_lead(total, lines),), (_rates(total, lines), *_unsatisfied(total, lines), _by_kind(lines))
    )


def _lead(total: pd.DataFrame, lines: window_series.WindowSeries) -> Markup:
    busiest = total.loc[total["registered"].idxmax()]
    seconds = lines.step_ms / 1_000
    return Markup(
        "In the busiest {}, from {}, {} operations per second were registered. An outcome belongs to the window in "
        "which the operation ended, not to the one in which it was registered."
    ).format(
        lines.per_window,
        wording.strong(wording.instant(busiest["at"])),
        wording.strong(wording.decimal(busiest["registered"] / seconds)),
    )


def _rates(total: pd.DataFrame, lines: window_series.WindowSeries) -> Plot:
    seconds = lines.step_ms / 1_000
    parts = {word: total[word] / seconds for word in window_series.OUTCOMES}
    bars = window_series.stacked(total, parts)
    registered = [
        {"at": at, "until": until, "high": value / seconds, "value": value / seconds, "word": "registered"}
        for at, until, value in zip(total["at"], total["until"], total["registered"], strict=True)
    ]
    height = alt.Y("high:Q", title="operations per second", axis=alt.Axis(tickCount=5))
    chart = charts.layered(
        _bars(bars, height, lines.span),
        alt.Chart(charts.data(registered))
        .mark_rule(strokeWidth=1.25, color="var(--ink)")
        .encode(x=charts.time_axis(lines.span), x2="until:Q", y=height),
    )
    shown = [word for word, values in parts.items() if values.sum() > 0]
    return charts.plot(
        chart,
        title="Operations ended, by outcome",
        description=f"Bars over time: operations ended per second in each {lines.per_window}, by outcome "
        f"({', '.join(shown) or 'none'}); a line shows what was registered. The table below has the sums.",
        height=230,
        legend=(*charts.swatches(charts.OUTCOME_COLOURS, shown), LegendEntry("registered", "var(--ink)", shape="line")),
    )


def _unsatisfied(total: pd.DataFrame, lines: window_series.WindowSeries) -> tuple[Plot, ...]:
    """A plot of its own: beside what is satisfied, the rest is too thin to be seen."""
    ended = total["ended"].where(total["ended"] > 0)
    parts = {word: total[word] / ended for word in _NOT_SATISFIED}
    bars = window_series.stacked(total, parts)
    if not bars:
        return ()
    height = charts.share_axis(alt.Y, "high", "share of the operations that ended")
    shown = [word for word, values in parts.items() if values.sum() > 0]
    worst = (total["ended"] - total["satisfied"]) / ended
    return (
        charts.plot(
            _bars(bars, height, lines.span, share=True),
            title="The part that was not satisfied",
            description=f"Bars over time: the share of ended operations that were {wording.listed(shown)}; "
            f"at most {wording.share(worst.max())}.",
            height=150,
            legend=charts.swatches(charts.OUTCOME_COLOURS, shown),
        ),
    )


def _bars(bars: charts.Values, height: alt.Y, span: charts.Span, *, share: bool = False) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(charts.data(bars))
        .transform_calculate(when=window_series.WHEN)
        .mark_rect(stroke=None)
        .encode(
            x=charts.time_axis(span),
            x2="until:Q",
            y=height,
            y2="low:Q",
            color=alt.Color("word:N", scale=charts.colour_scale(charts.OUTCOME_COLOURS), legend=None),
            tooltip=charts.tooltips(
                ("when:N", "from (UTC)"),
                ("word:N", "outcome"),
                ("value:Q", "share" if share else "per second", ".2%" if share else ",.4~r"),
            ),
        )
    )
    return chart


def _by_kind(lines: window_series.WindowSeries) -> PageTable:
    counted = ["registered", "refused", "ended", *window_series.OUTCOMES, "unfinished"]
    frame = lines.frame.groupby("kind")[counted].sum().reindex(lines.kinds()).reset_index()
    ended = frame["ended"].where(frame["ended"] > 0)
    frame["completion_rate"] = frame["satisfied"] / ended
    frame["expiry_rate"] = frame["expired"] / ended
    shown = [
        word for word in ("refused", "failed", "cancelled", "shutting_down", "unfinished") if frame[word].sum() > 0
    ]
    return PageTable(
        "Operations by kind",
        frame,
        (
            PageColumn("kind", "kind"),
            PageColumn("registered", "registered", wording.count),
            PageColumn("ended", "ended", wording.count),
            PageColumn("completion_rate", "satisfied", wording.share),
            PageColumn("expired", "expired", wording.count),
            PageColumn("expiry_rate", "of ended", wording.share),
            *(PageColumn(word, word.replace("_", " "), wording.count) for word in shown),
        ),
    )
