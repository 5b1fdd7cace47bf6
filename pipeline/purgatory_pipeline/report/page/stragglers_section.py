"""The section on stragglers: which replica the slow produces had to wait for."""

import math
from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import bar_charts, charts, wording
from purgatory_pipeline.page.parts import Finding, Grid, PageColumn, PageTable, Plot, Section
from purgatory_pipeline.report.report_tables import ReportInfo

REPLICAS_DRAWN: Final = 10
_CAUSES: Final = {
    "follower": "a follower reached the offset last",
    "leader": "the leader's own append came last",
    "left": "a replica that had not reached it left the in-sync replicas",
    "told": "a high watermark was pushed from outside",
    "unknown": "the archive does not show it",
}


def stragglers_section(stragglers: pd.DataFrame, causes: pd.DataFrame, info: ReportInfo) -> Section:
    title = "Stragglers"
    if info.slow_over_ms is None or causes.empty:
        return Section("stragglers", title, ("No produce was slow.",))
    lead = Markup(
        "A produce is slow here if it was satisfied after more than {} (the slowest {}). Each is blamed on the "
        "in-sync replica that reached its offset last, by as much as that was later than the second-last."
    ).format(wording.strong(wording.milliseconds(info.slow_over_ms)), wording.share_in_sentence(info.slow_share))
    overall = _overall(stragglers)
    by_topic = stragglers[stragglers["topic"].notna()]
    named = _figures("replica_id", "replica")
    parts: list[Plot | PageTable | Grid] = []
    if not overall.empty:
        parts += [
            Grid((_held_back_plot(overall), _lost_plot(overall))),
            PageTable("Replicas, over all topics", overall, named, rest="csv/stragglers.csv"),
        ]
    if len(set(by_topic["topic"])) > 1:
        frame = by_topic.sort_values("total_ms", ascending=False, kind="stable")
        columns = (PageColumn("topic", "topic", wording.name), *named)
        parts.append(PageTable("Replicas, by topic", frame, columns, rest="csv/stragglers.csv", rows_max=8))
    parts.append(_causes_table(causes))
    return Section("stragglers", title, (lead,), tuple(parts))


def straggler_finding(stragglers: pd.DataFrame) -> list[Finding]:
    """The replica that held back most, if it is clearly ahead of the next."""
    overall = _overall(stragglers).sort_values("held_back", ascending=False, kind="stable")
    if overall.empty:
        return []
    first, second = overall.iloc[0], overall.iloc[1] if len(overall) > 1 else None
    if second is not None and not _is_clearly_more(first["held_back"], second["held_back"]):
        return []
    sentence = Markup("{} held back {} of the slow produces, by {} at the median. ").format(
        wording.strong(f"Replica {first['replica_id']}"),
        wording.strong(wording.share_in_sentence(first["share"])),
        wording.strong(wording.milliseconds(first["median_ms"])),
    )
    if second is not None:
        sentence += Markup("Next is replica {} with {}. ").format(
            second["replica_id"], wording.share_in_sentence(second["share"])
        )
    sentence += Markup("Without it they would have waited {} less in total.").format(
        wording.total_time(first["total_ms"])
    )
    return [Finding(sentence, "stragglers")]


def _is_clearly_more(first: object, second: object) -> bool:
    """By a quarter, and by more than chance would part two equal replicas."""
    most, next_most = wording.number_of(first), wording.number_of(second)
    return most >= 1.25 * next_most and most - next_most > 2 * math.sqrt(most + next_most)


def _overall(stragglers: pd.DataFrame) -> pd.DataFrame:
    return stragglers[stragglers["topic"].isna()].sort_values("total_ms", ascending=False, kind="stable")


def _figures(key: str, title: str) -> tuple[PageColumn, ...]:
    return (
        PageColumn(key, title, wording.count),
        PageColumn("held_back", "held back", wording.count),
        PageColumn("share", "share", wording.share),
        PageColumn("median_ms", "later by, half", wording.milliseconds),
        PageColumn("p99_ms", "99 %", wording.milliseconds),
        PageColumn("max_ms", "the most", wording.milliseconds),
        PageColumn("total_ms", "time lost", wording.total_time),
    )


def _held_back_plot(overall: pd.DataFrame) -> Plot:
    drawn = overall.head(REPLICAS_DRAWN)
    shares = [wording.number_of(share) for share in drawn["share"]]
    return charts.plot(
        bar_charts.bars(
            _labels(drawn),
            shares,
            [wording.share(share) for share in shares],
            title="share of the slow produces",
            colours=_colours(drawn),
            shares=True,
        ),
        title="Slow produces held back, by replica",
        description="Bars by replica: "
        + ", ".join(f"{label} {wording.share(share)}" for label, share in zip(_labels(drawn), shares, strict=True)),
        height=charts.rows_height(len(drawn)),
    )


def _lost_plot(overall: pd.DataFrame) -> Plot:
    drawn = overall.head(REPLICAS_DRAWN)
    lost = [wording.number_of(value) for value in drawn["total_ms"]]
    size, unit = next(
        (
            (size, unit)
            for size, unit in ((3_600_000, "hours"), (60_000, "minutes"), (1_000, "seconds"))
            if max(lost) >= size
        ),
        (1, "ms"),
    )
    return charts.plot(
        bar_charts.bars(
            _labels(drawn),
            [value / size for value in lost],
            [wording.total_time(value) for value in lost],
            title=f"time lost, added up ({unit})",
            colours=_colours(drawn),
        ),
        title="Time lost to it, by replica",
        description="Bars by replica: "
        + ", ".join(f"{label} {wording.total_time(value)}" for label, value in zip(_labels(drawn), lost, strict=True)),
        height=charts.rows_height(len(drawn)),
    )


def _labels(drawn: pd.DataFrame) -> list[str]:
    return [f"replica {replica}" for replica in drawn["replica_id"]]


def _colours(drawn: pd.DataFrame) -> list[str]:
    """The costliest replica stands out."""
    return ["var(--expired)", *["var(--satisfied)"] * (len(drawn) - 1)]


def _causes_table(causes: pd.DataFrame) -> PageTable:
    frame = causes[pd.to_numeric(causes["operations"]) > 0]
    meanings = frame["cause"].map(lambda cause: _CAUSES.get(str(cause), ""))
    return PageTable(
        "What let the slow produces go",
        frame.assign(meaning=meanings),
        (
            PageColumn("meaning", "cause"),
            PageColumn("operations", "produces", wording.count),
            PageColumn("share", "share", wording.share),
            PageColumn("waited_total_ms", "waited in all", wording.total_time),
        ),
        rest="csv/slow_produces.csv",
    )
