"""Sections on causes: where time is lost and who waits, stragglers, where waits accumulate, and anomalies."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from purgatory.engine import codes
from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import CLIENT, KIND, TOPIC, Finding, Grid, PageColumn, PageTable, Section, columns
from purgatory_pipeline.report.report_tables import ReportInfo
from purgatory_pipeline.report.window_sections import duration

FETCH: Final = codes.KIND_NAMES[codes.FETCH]
SIGNAL: Final = codes.KIND_NAMES[codes.SIGNAL]


def causes_section(frames: Mapping[str, pd.DataFrame]) -> Section:
    """Fetches have no causes: waiting for data is what they are for."""
    title = "Where time is lost, and who waits"
    if frames["principals"].empty:
        return Section("causes", title, ("Nothing ended in this time.",))
    causes = causes_by_lost_time(frames)
    total_ms = frames["topics"].loc[frames["topics"]["kind"] != FETCH, "waited_total_ms"].sum()
    lead = Markup(
        "Everything but fetches waited {} in all. A wait may be counted for its replica, its partition, its client and "
        "its timeout at once, so the rows do not add up. Clients and partitions are compared with others of the same "
        "topics."
    ).format(wording.strong(wording.total_time(total_ms)))
    lost = PageTable(
        "Causes, by time lost",
        causes.assign(share=causes["lost_ms"] / max(total_ms, 1)),
        (
            *columns(wording.text, "cause"),
            PageColumn("name", "which", wording.name),
            *columns(wording.total_time, lost_ms="time lost"),
            *columns(wording.share, share="of all waiting"),
            KIND,
            *columns(wording.count, "waits"),
            *columns(wording.text, meaning="how it is counted"),
        ),
    )
    return Section("causes", title, (lead,), (lost, _who_waits(frames["principals"])))


def causes_by_lost_time(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Every known cause of waiting in the report's tables, the costliest first. The keys of signals are one cause."""
    replicas = frames["stragglers"][frames["stragglers"]["topic"].isna()].assign(kind="produce")
    partitions = frames["hot_keys"][frames["hot_keys"]["by"] == "lost"]
    clients, topics = frames["principals"], frames["topics"]
    keys = topics["topic"].mask(topics["kind"] == SIGNAL, "all signals")
    timeouts = (
        topics.assign(topic=keys).groupby(["topic", "kind"], as_index=False)[["expired", "expired_total_ms"]].sum()
    )
    on = partitions["topic"] + "-" + partitions["partition"].astype(str)
    found = [
        _named("replica", replicas, replicas["replica_id"], "held_back", "total_ms", "after the second-last one"),
        _named("partition", partitions, on, "waits", "lost_ms", "more than its neighbours"),
        _named(
            "client",
            clients,
            clients["principal"].replace("", "(not authenticated)"),
            "waits",
            "lost_ms",
            "more than other clients",
        ),
        _named("timeout", timeouts, timeouts["topic"], "expired", "expired_total_ms", "waited until it expired"),
    ]
    every = pd.concat([rows.astype(object) for rows in found], ignore_index=True)
    lost_ms = pd.to_numeric(every["lost_ms"])
    known = every.assign(lost_ms=lost_ms)[(lost_ms > 0) & (every["kind"] != FETCH)]
    return known.sort_values("lost_ms", ascending=False, kind="stable")


def _named(
    cause: str, rows: pd.DataFrame, names: "pd.Series[str]", waits: str, lost_ms: str, meaning: str
) -> pd.DataFrame:
    named = {"cause": cause, "name": names.astype(str), "kind": rows["kind"], "meaning": meaning}
    return pd.DataFrame({"waits": rows[waits], "lost_ms": rows[lost_ms], **named})


def _who_waits(principals: pd.DataFrame) -> PageTable:
    waits = pd.to_numeric(principals["waits"])
    means = {"mean_ms": pd.to_numeric(principals["waited_total_ms"]) / waits}
    return PageTable(
        "Who waits",
        principals.assign(rate=pd.to_numeric(principals["expired"]) / waits, **means),
        (
            CLIENT,
            KIND,
            *columns(wording.count, "waits"),
            *columns(wording.share, rate="expired"),
            *columns(wording.milliseconds, mean_ms="mean wait"),
            *columns(wording.total_time, waited_total_ms="time waited"),
        ),
        rest="csv/principals.csv",
    )


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


SHIFT: Final = "shift"
FINDINGS: Final = 2
_MEASURES: Final[dict[str, tuple[str, Callable[[object], str], str]]] = {
    "registered": ("registrations", wording.count, "{value} {of} were registered, {than} {usual}."),
    "wait_p50_ms": ("wait of half", wording.milliseconds, "half of the {of} waited up to {value}, {than} {usual}."),
    "wait_p99_ms": ("wait of 99 %", wording.milliseconds, "99 % of the {of} waited up to {value}, {than} {usual}."),
    "expiry_rate": ("share expired", wording.share, "{value} of the {of} expired, {than} {usual}."),
    "completion_rate": ("share satisfied", wording.share, "{value} of the {of} were satisfied, {than} {usual}."),
}
"""For each measure: its name, the formatter of its values, and a sentence."""
_BETTER: Final = {("wait_p50_ms", "down"), ("wait_p99_ms", "down"), ("expiry_rate", "down"), ("completion_rate", "up")}
"""Changes for the better; they are in the table, but are not findings."""
_BASES: Final = {
    "weeks": "the same window of other weeks",
    "day": "the same window of the day before",
    "window": "the window before",
    "shift": "the days before (a shift)",
}


def anomalies_section(anomalies: pd.DataFrame, window_ms: int) -> Section:
    title = "Anomalies"
    if anomalies.empty:
        return Section("anomalies", title, ("No window differs strikingly from those that it is compared with.",))
    shifts = int((anomalies["basis"] == SHIFT).sum())
    lead = Markup(
        "{} of {} differ strikingly from those that they are compared with, and there are {} of levels. The score is "
        "the change over the usual spread of such changes."
    ).format(
        wording.strong(wording.plural(len(anomalies) - shifts, "figure")),
        duration(window_ms) + " windows",
        wording.strong(wording.plural(shifts, "shift")),
    )
    table = PageTable(
        "The most striking windows",
        _in_words(anomalies),
        (
            PageColumn("window_start", "window from (UTC)", wording.instant),
            PageColumn("topic", "topic", wording.name_or_all),
            KIND,
            PageColumn("measure", "what"),
            *columns(wording.as_is, value="was", usual="usually"),
            PageColumn("basis", "compared with", lambda basis: _BASES.get(str(basis), wording.text(basis))),
            *columns(wording.decimal, "score"),
        ),
        rest="csv/anomalies.csv",
    )
    return Section("anomalies", title, (lead,), parts=(table,))


def anomaly_findings(anomalies: pd.DataFrame, window_ms: int) -> list[Finding]:
    """For each measure and kind the change for the worse with the highest score, shifts first."""
    is_better = [pair in _BETTER for pair in zip(anomalies["measure"], anomalies["direction"], strict=True)]
    worse = anomalies[~np.array(is_better, dtype=bool) & anomalies["measure"].isin(list(_MEASURES))]
    shifts_first = worse.sort_values("basis", key=lambda basis: basis != SHIFT, kind="stable")
    first = shifts_first.drop_duplicates(["measure", "kind"]).head(FINDINGS)
    found = []
    for measure, (_, row) in zip(first["measure"], _in_words(first).iterrows(), strict=True):
        of = Markup("{} operations").format(wording.text(row["kind"]))
        if not wording.is_missing(row["topic"]):
            of += Markup(" on {}").format(wording.name(row["topic"]))
        is_shift = row["basis"] == SHIFT
        when = "Since {1}, in each {0}, " if is_shift else "In the {0} from {1}, "
        window = Markup(when).format(duration(window_ms), wording.instant(row["window_start"]))  # noqa: S704
        figures = {"value": wording.strong(row["value"]), "than": "before" if is_shift else "usually"}
        sentence = Markup(_MEASURES[measure][2]).format(of=of, usual=row["usual"], **figures)  # noqa: S704
        found.append(Finding(window + sentence, "anomalies"))
    return found


def _in_words(anomalies: pd.DataFrame) -> pd.DataFrame:
    known = [_MEASURES.get(measure, (wording.text(measure), wording.decimal, "")) for measure in anomalies["measure"]]
    values = {
        column: [shown(value) for (_, shown, _), value in zip(known, anomalies[column], strict=True)]
        for column in ("value", "usual")
    }
    return anomalies.assign(measure=[name for name, _, _ in known], **values)
