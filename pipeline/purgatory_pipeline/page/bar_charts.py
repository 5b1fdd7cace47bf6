"""Plots with one row for each topic, key or replica: bars, with their figures at the end."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from purgatory_pipeline.page import charts, wording

NO_PARTITION = -1


def partition(value: object) -> str:
    """A partition's number; a dash for signals, which have none."""
    return wording.MISSING if wording.number_of(value) == NO_PARTITION else wording.count(value)


def key_labels(frame: pd.DataFrame) -> list[str]:
    """orders-3 · produce, or the key of a signal; unique."""
    return charts.unique_labels(
        f"{topic if number == NO_PARTITION else f'{topic}-{number}'} · {kind}"
        for topic, number, kind in zip(frame["topic"], frame["partition"], frame["kind"], strict=True)
    )


def bars(
    labels: Sequence[str],
    values: Sequence[float],
    written: Sequence[str],
    *,
    title: str,
    colours: Sequence[str],
    shares: bool = False,
) -> alt.LayerChart:
    """Horizontal bars from zero. `written` is each bar's figure in words, `title` the axis title with its unit."""
    rows = [
        {"label": label, "place": place, "value": value, "written": words, "colour": colour}
        for place, (label, value, words, colour) in enumerate(zip(labels, values, written, colours, strict=True))
    ]
    longest = max(values, default=0) or 1
    room = longest * 1.25
    along = (
        charts.share_axis(alt.X, "value", title, room)
        if shares
        else alt.X(
            "value:Q",
            title=title,
            scale=alt.Scale(domain=[0, room], nice=False),
            axis=alt.Axis(tickCount=4, grid=True, format=",.4~r"),
        )
    )
    base = alt.Chart(charts.data(rows)).encode(
        y=charts.rows_axis(),
        x=along,
        tooltip=charts.tooltips(("label:N", "which"), ("written:N", "value")),
    )
    return charts.layered(
        base.mark_bar(cornerRadiusEnd=2).encode(color=alt.Color("colour:N", scale=None, legend=None)),
        base.mark_text(align="left", dx=6, color="var(--ink)").encode(text="written:N"),
    )
