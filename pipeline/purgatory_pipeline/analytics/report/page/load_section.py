"""The section on load: registrations and their outcomes over time."""

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.analytics.page import charts, wording
from purgatory_pipeline.analytics.page.parts import KIND, LegendEntry, PageTable, Plot, Section, columns
from purgatory_pipeline.analytics.report.page.window_series import OUTCOMES, WindowSeries, stacked


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
    height = charts.amounts_axis("high", "operations per second")
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
