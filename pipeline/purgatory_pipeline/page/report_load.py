"""Sections on load: what was registered and how it ended, along the time."""

from __future__ import annotations

from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import plots, timeline, wording
from purgatory_pipeline.page.parts import Column, LegendEntry, Plot, Section, Table

_NOT_SATISFIED: Final = timeline.OUTCOMES[1:]


def load_section(lines: timeline.Timeline) -> Section:
    """How much was asked for, and how it ended."""
    title = "Load and outcomes"
    total = lines.total()
    if total.empty:
        return Section("load", title, ("Nothing was registered and nothing ended in this time.",))
    return Section(
        "load",
        title,
        (_lead(total, lines),),
        (_rates(total, lines), *_unsatisfied(total, lines), _by_kind(lines)),
    )


def _lead(total: pd.DataFrame, lines: timeline.Timeline) -> Markup:
    busiest = total.loc[total["registered"].idxmax()]
    seconds = lines.step_ms / 1_000
    return Markup(
        "At its busiest, in the {} from {}, {} operations a second were registered. Outcomes belong to the window in "
        "which an operation ended, not to the one in which it was registered."
    ).format(
        lines.per_window,
        wording.strong(wording.instant(busiest["at"])),
        wording.strong(wording.decimal(busiest["registered"] / seconds)),
    )


def _rates(total: pd.DataFrame, lines: timeline.Timeline) -> Plot:
    seconds = lines.step_ms / 1_000
    parts = {word: total[word] / seconds for word in timeline.OUTCOMES}
    bars = timeline.stacked(total, parts)
    registered = [
        {"at": at, "until": until, "high": value / seconds, "value": value / seconds, "word": "registered"}
        for at, until, value in zip(total["at"], total["until"], total["registered"], strict=True)
    ]
    height = alt.Y("high:Q", title="operations per second", axis=alt.Axis(tickCount=5))
    chart = plots.layered(
        _bars(bars, height, lines.span),
        alt.Chart(plots.data(registered))
        .mark_rule(strokeWidth=1.25, color="var(--ink)")
        .encode(x=plots.time_axis(lines.span), x2="until:Q", y=height),
    )
    shown = [word for word, values in parts.items() if values.sum() > 0]
    return plots.plot(
        chart,
        title="Operations ended, by outcome",
        description=f"Bars along the time: operations ended per second in each {lines.per_window}, by outcome "
        f"({', '.join(shown) or 'none'}); a line shows what was registered. The table below has the sums.",
        height=230,
        legend=(
            *plots.swatches(plots.OUTCOME_COLOURS, shown),
            LegendEntry("registered", "var(--ink)", shape="line"),
        ),
    )


def _unsatisfied(total: pd.DataFrame, lines: timeline.Timeline) -> tuple[Plot, ...]:
    """Drawn apart, because next to what is satisfied the rest is too thin to be seen."""
    ended = total["ended"].where(total["ended"] > 0)
    parts = {word: total[word] / ended for word in _NOT_SATISFIED}
    bars = timeline.stacked(total, parts)
    if not bars:
        return ()
    height = plots.share_axis(alt.Y, "high", "share of the operations that ended")
    shown = [word for word, values in parts.items() if values.sum() > 0]
    worst = (total["ended"] - total["satisfied"]) / ended
    return (
        plots.plot(
            _bars(bars, height, lines.span, share=True),
            title="The part that was not satisfied",
            description=f"Bars along the time: the share of ended operations that were {wording.listed(shown)}; "
            f"at most {wording.share(worst.max())}.",
            height=150,
            legend=plots.swatches(plots.OUTCOME_COLOURS, shown),
        ),
    )


def _bars(bars: plots.Values, height: alt.Y, span: plots.Span, *, share: bool = False) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(plots.data(bars))
        .transform_calculate(when=timeline.WHEN)
        .mark_rect(stroke=None)
        .encode(
            x=plots.time_axis(span),
            x2="until:Q",
            y=height,
            y2="low:Q",
            color=alt.Color("word:N", scale=plots.colour_scale(plots.OUTCOME_COLOURS), legend=None),
            tooltip=[
                alt.Tooltip("when:N", title="from (UTC)"),
                alt.Tooltip("word:N", title="outcome"),
                alt.Tooltip("value:Q", title="share" if share else "per second", format=".2%" if share else ",.4~r"),
            ],
        )
    )
    return chart


def _by_kind(lines: timeline.Timeline) -> Table:
    counted = ["registered", "refused", "ended", *timeline.OUTCOMES, "unfinished"]
    frame = lines.frame.groupby("kind")[counted].sum().reindex(lines.kinds()).reset_index()
    ended = frame["ended"].where(frame["ended"] > 0)
    frame["completion_rate"] = frame["satisfied"] / ended
    frame["expiry_rate"] = frame["expired"] / ended
    shown = [
        word for word in ("refused", "failed", "cancelled", "shutting_down", "unfinished") if frame[word].sum() > 0
    ]
    return Table(
        "Operations by kind",
        frame,
        (
            Column("kind", "kind"),
            Column("registered", "registered", wording.count),
            Column("ended", "ended", wording.count),
            Column("completion_rate", "satisfied", wording.share),
            Column("expired", "expired", wording.count),
            Column("expiry_rate", "of ended", wording.share),
            *(Column(word, word.replace("_", " "), wording.count) for word in shown),
        ),
    )
