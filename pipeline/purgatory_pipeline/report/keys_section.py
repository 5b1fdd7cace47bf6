"""Sections on where waits accumulate: the deepest backlog, and the busiest partitions and keys."""

from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import KIND, Grid, PageColumn, PageTable, Plot, Section, columns

ROWS_MAX: Final = 10
DOTS_MAX: Final = 400
NO_PARTITION: Final = -1


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
    table = PageTable(
        "Deepest backlog of a partition or key",
        backlog,
        (
            *_KEY,
            PageColumn("deepest", "waits at once", wording.count),
            PageColumn("at", "first at (UTC)", wording.instant),
        ),
        rest="csv/backlog.csv",
        rows_max=8,
    )
    return Section("backlog", title, (lead,), (_backlog_plot(backlog, span), table))


def hot_keys_section(hot_keys: pd.DataFrame) -> Section:
    title = "Hot keys"
    by_waits, by_time = (hot_keys[hot_keys["by"] == word] for word in ("waits", "waited"))
    if by_waits.empty:
        return Section("hot-keys", title, ("Nothing ended in this time.",))
    first = by_waits.iloc[0]
    lead = Markup(
        "{} {} takes {} of all waits. A key that is high in the second list but not in the first has few waits, "
        "but slow ones."
    ).format(
        wording.name(first["topic"]),
        _where(first["partition"]),
        wording.strong(wording.share_in_sentence(first["share"])),
    )
    tables = Grid(
        (
            _hot_table(by_waits, "By number of waits", PageColumn("waits", "waits", wording.count)),
            _hot_table(by_time, "By time waited", PageColumn("waited_total_ms", "time waited", wording.total_time)),
        )
    )
    return Section("hot-keys", title, (lead,), (tables,))


def _backlog_plot(backlog: pd.DataFrame, span: charts.Span) -> Plot:
    drawn = backlog.head(DOTS_MAX)
    colours = {str(kind): charts.colour_of(kind) for kind in sorted(set(drawn["kind"]))}
    dots = drawn.assign(value=drawn["deepest"], word=drawn["kind"], label=_labels(drawn))
    up = charts.amounts_axis("value", "waits pending at once", ",~r")
    base = charts.over_time(dots[["at", "value", "word", "label"]].to_dict("records"), span, up, colours)
    tooltip = charts.tooltips(("label:N", "which"), ("value:Q", "waits at once", ","), ("when:N", "at (UTC)"))
    return charts.plot(
        base.mark_circle(size=60, opacity=0.7).encode(tooltip=tooltip),
        title="When each partition or key was at its deepest",
        description=f"A dot for each of {len(drawn)} partitions and kinds: when its backlog was deepest, and how deep. "
        "The table below has the deepest ones.",
        height=200,
        note=f"The deepest {DOTS_MAX} of {len(backlog):,}." if len(backlog) > DOTS_MAX else "",
        legend=charts.swatches(colours, colours),
    )


def _hot_table(frame: pd.DataFrame, caption: str, figure: PageColumn) -> PageTable:
    return PageTable(
        caption, frame, (*_KEY, figure, *columns(wording.share, "share")), rest="csv/hot_keys.csv", rows_max=ROWS_MAX
    )


def _labels(frame: pd.DataFrame) -> list[str]:
    """A unique label for each row: "orders-3 · produce", or the key of a signal."""
    return charts.unique_labels(
        f"{topic if number == NO_PARTITION else f'{topic}-{number}'} · {kind}"
        for topic, number, kind in zip(frame["topic"], frame["partition"], frame["kind"], strict=True)
    )


def _where(number: object) -> str:
    return "key" if wording.number_of(number) == NO_PARTITION else f"partition {wording.count(number)}"


def _partition(value: object) -> str:
    """A partition's number; a dash for signals, which have none."""
    return wording.MISSING if wording.number_of(value) == NO_PARTITION else wording.count(value)


_KEY: Final = (
    PageColumn("topic", "topic or key", wording.name),
    PageColumn("partition", "partition", _partition),
    KIND,
)
