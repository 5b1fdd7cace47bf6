"""The section on stragglers: the replicas that slow produces had to wait for."""

import math
from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import TOPIC, Finding, PageTable, Section, columns
from purgatory_pipeline.report.report_tables import ReportInfo

_REPLICA: Final = (
    *columns(wording.count, replica_id="replica", held_back="held back"),
    *columns(wording.share, "share"),
    *columns(wording.milliseconds, median_ms="later by, half", p99_ms="99 %", max_ms="the most"),
    *columns(wording.total_time, total_ms="time lost"),
)


def stragglers_section(stragglers: pd.DataFrame, causes: pd.DataFrame, info: ReportInfo) -> Section:
    title = "Stragglers"
    if info.slow_over_ms is None or causes.empty:
        return Section("stragglers", title, ("No produce was slow.",))
    lead = Markup(
        "A produce is slow here if it was satisfied after more than {} (the slowest {}). Each is blamed on the "
        "in-sync replica that reached its offset last, by as much as that was later than the second-last."
    ).format(wording.strong(wording.milliseconds(info.slow_over_ms)), wording.share_in_sentence(info.slow_share))
    known = causes.loc[causes["cause"] != "unknown", "share"].sum()
    source = f"What let them go is known for {wording.share_in_sentence(known)}; all causes: csv/slow_produces.csv."
    overall = _overall(stragglers)
    by_topic = stragglers[stragglers["topic"].notna()]
    parts: list[PageTable] = []
    if not overall.empty:
        parts.append(PageTable("Replicas, over all topics", overall, _REPLICA, rest="csv/stragglers.csv"))
    if len(set(by_topic["topic"])) > 1:
        frame = by_topic.sort_values("total_ms", ascending=False, kind="stable")
        parts.append(PageTable("Replicas, by topic", frame, (TOPIC, *_REPLICA), rest="csv/stragglers.csv", rows_max=8))
    return Section("stragglers", title, (lead, source), tuple(parts))


def straggler_finding(stragglers: pd.DataFrame) -> list[Finding]:
    """The replica that held back the most produces, if it is clearly ahead of the next one and cost some time."""
    overall = _overall(stragglers).sort_values("held_back", ascending=False, kind="stable")
    if overall.empty or not overall["total_ms"].iloc[0]:
        return []
    first, second = overall.iloc[0], overall.iloc[1] if len(overall) > 1 else None
    if not _is_clearly_more(first["held_back"], 0 if second is None else second["held_back"]):
        return []
    sentence = Markup("{} held back {} of the slow produces, by {} at the median. ").format(
        wording.strong(f"Replica {first['replica_id']}"),
        wording.strong(wording.share_in_sentence(first["share"])),
        wording.strong(wording.milliseconds(first["median_ms"])),
    )
    if second is not None:
        share = wording.share_in_sentence(second["share"])
        sentence += Markup("Next is replica {} with {}. ").format(second["replica_id"], share)
    total = wording.total_time(first["total_ms"])
    sentence += Markup("Without it they would have waited {} less in total.").format(total)
    return [Finding(sentence, "stragglers")]


def _is_clearly_more(first: object, second: object) -> bool:
    """Whether the difference is at least a quarter, and more than chance would cause between two equal replicas."""
    most, next_most = wording.number_of(first), wording.number_of(second)
    return most >= 1.25 * next_most and most - next_most > 2 * math.sqrt(most + next_most)


def _overall(stragglers: pd.DataFrame) -> pd.DataFrame:
    return stragglers[stragglers["topic"].isna()].sort_values("total_ms", ascending=False, kind="stable")
