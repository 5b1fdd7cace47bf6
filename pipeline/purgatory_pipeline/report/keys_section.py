"""Sections on where waits accumulate: the deepest backlog, and the busiest partitions and keys."""

from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import KIND, Grid, PageColumn, PageTable, Section, columns

ROWS_MAX: Final = 10
NO_PARTITION: Final = -1


def backlog_section(backlog: pd.DataFrame) -> Section:
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
    return Section("backlog", title, (lead,), (table,))


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


def _hot_table(frame: pd.DataFrame, caption: str, figure: PageColumn) -> PageTable:
    return PageTable(
        caption, frame, (*_KEY, figure, *columns(wording.share, "share")), rest="csv/hot_keys.csv", rows_max=ROWS_MAX
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
