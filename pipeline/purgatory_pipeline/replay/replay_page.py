"""A replay as one HTML page: outcomes and waits under other policies.

The frames, by name:

- `outcomes`: policy, topic (missing: all), kind, outcome, operations, share (of the operations of that policy, topic
  and kind), in_doubt (operations of that topic and kind that are left out)
- `waits`: policy, topic (missing: all), kind, wait_p50_ms, wait_p90_ms, wait_p99_ms
- `changes`: policy, kind, unchanged, replayed, operations: only where the two outcomes differ

Other columns are ignored. The outcome "open" means still waiting when the history ended. A `policy` has the user's
text as its name, such as "timeout_ms=500"; the empty name is that of the unchanged replay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import (
    ROWS_MAX,
    Finding,
    Grid,
    Headline,
    Page,
    PageColumn,
    PageTable,
    Section,
    footer_lines,
)
from purgatory_pipeline.replay import replay_charts
from purgatory_pipeline.replay.replay_charts import UNCHANGED, Policies

POLICIES_SIDE_BY_SIDE: Final = 8
NOTABLE: Final = 0.0005
"""Smaller changes of a share are not among the findings."""


@dataclass(frozen=True)
class ReplayInfo:
    """The context of the frames. `compared` operations were first replayed unchanged; `equal` of them ended as
    recorded.
    """

    archive: str
    first_at: datetime | None
    last_at: datetime | None
    policies: tuple[str, ...]
    """In the order they were asked for, without the unchanged one."""
    compared: int
    equal: int
    account: tuple[str, ...] = ()
    """Sums of the rows read and how they were used, as sentences."""
    notes: tuple[str, ...] = ()
    """Caveats about the figures, such as operations that could not be replayed; as sentences."""
    options: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def policy_name(policy: object) -> str | Markup:
    return "unchanged" if policy == UNCHANGED else wording.name(policy)


def _outcome(outcome: object) -> str:
    return wording.text(outcome).replace("_", " ")


COLUMNS: Final = {
    column.key: column
    for column in (
        PageColumn("topic", "topic", wording.name),
        PageColumn("kind", "kind"),
        PageColumn("policy", "policy", policy_name),
        PageColumn("unchanged", "unchanged", _outcome),
        PageColumn("replayed", "replayed", _outcome),
        PageColumn("operations", "operations", wording.count),
        PageColumn("in_doubt", "in doubt", wording.count),
        PageColumn("wait_p50_ms", "half", wording.milliseconds),
        PageColumn("wait_p90_ms", "90 %", wording.milliseconds),
        PageColumn("wait_p99_ms", "99 %", wording.milliseconds),
    )
}


def _table(caption: str, frame: pd.DataFrame, keys: str, rest: str, *more: PageColumn, rows_max: int = 24) -> PageTable:
    return PageTable(caption, frame, (*(COLUMNS[key] for key in keys.split()), *more), rest=rest, rows_max=rows_max)


def replay_page(frames: Mapping[str, pd.DataFrame], info: ReplayInfo) -> Page:
    policies = Policies.of(info.policies)
    moved = _moved_kinds(frames)
    return Page(
        title="Purgatory replay",
        subtitle=wording.subtitle(info.archive, info.first_at, info.last_at, info.compared),
        headlines=_headlines(info),
        findings=_findings(frames["outcomes"], policies),
        notices=info.notes,
        sections=(
            _account(info),
            _outcomes_section(frames["outcomes"], moved, policies),
            _waits_section(frames["waits"], moved, policies),
            _changes_section(frames["changes"], policies),
        ),
        footer=footer_lines(info.options, info.versions),
    )


def _headlines(info: ReplayInfo) -> tuple[Headline, ...]:
    differing = info.compared - info.equal
    return (
        Headline("replayed", wording.rough_count(info.compared), "operations"),
        Headline(
            "equal when unchanged",
            wording.share(info.equal / info.compared if info.compared else None),
            "every outcome" if not differing else f"{wording.count(differing)} differ",
            alarming=differing > 0,
        ),
        Headline("policies tried", wording.count(len(info.policies))),
    )


def _account(info: ReplayInfo) -> Section:
    differing = info.compared - info.equal
    share = wording.share(info.equal / info.compared if info.compared else None)
    lead = Markup("Unchanged policy: {} of {} outcomes are equal.").format(
        wording.strong(share), wording.strong(wording.count(info.compared))
    )
    if differing:
        lead += Markup(" {} ended differently.").format(wording.strong(wording.plural(differing, "operation")))
    sums = tuple(wording.text(line, document.NOTICE_LENGTH_MAX) for line in info.account)
    return Section("account", "Does the unchanged replay match what was recorded?", (lead, *sums))


def _findings(outcomes: pd.DataFrame, policies: Policies) -> tuple[Finding, ...]:
    """For each kind, how the share of expired operations changes; the largest change first."""
    expired = outcomes[outcomes["topic"].isna() & (outcomes["outcome"] == "expired")]
    found: list[tuple[float, Finding]] = []
    for kind in _kinds(outcomes):
        of_kind = expired[expired["kind"] == kind].set_index("policy")["share"]
        shares = {str(policy): wording.number_of(share) for policy, share in of_kind.items()}
        unchanged = shares.get(UNCHANGED, 0.0)
        tried = {policy: shares.get(policy, 0.0) for policy in policies.names}
        moved = max((abs(share - unchanged) for share in tried.values()), default=0.0)
        if moved < NOTABLE:
            continue
        sentence = Markup("Of {} operations {} expired if unchanged").format(
            wording.text(kind), wording.strong(wording.share_in_sentence(unchanged))
        )
        ends = max(tried, key=lambda name: tried[name]), min(tried, key=lambda name: tried[name])
        for policy in dict.fromkeys(ends):
            share = wording.strong(wording.share_in_sentence(tried[policy]))
            sentence += Markup(", {} with {}").format(share, wording.name(policy))
        found.append((moved, Finding(sentence + Markup("."), "outcomes")))
    return tuple(finding for _, finding in sorted(found, key=lambda pair: -pair[0]))


def _moved_kinds(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Kinds for which some policy changes outcomes or waits, in a fixed order."""
    moved: set[str] = set()
    for name, key, values in (
        ("outcomes", ["kind", "outcome"], ["share"]),
        ("waits", ["kind"], list(replay_charts.PERCENTILES)),
    ):
        overall = frames[name][frames[name]["topic"].isna()]
        unchanged = overall["policy"] == UNCHANGED
        both = overall[~unchanged].merge(
            overall.loc[unchanged, [*key, *values]], how="left", on=key, suffixes=("", "_was")
        )
        for value in values:
            differs = both[value].fillna(0) != both[f"{value}_was"].fillna(0)
            moved |= {str(kind) for kind in both["kind"][differs]}
    return sorted(moved)


def _worth_showing(frame: pd.DataFrame, moved: Sequence[str]) -> pd.DataFrame:
    """All policies for kinds that change; for other kinds only the unchanged replay."""
    return frame[frame["topic"].isna() & (frame["kind"].isin(list(moved)) | (frame["policy"] == UNCHANGED))]


def _unmoved(frame: pd.DataFrame, moved: Sequence[str]) -> tuple[Markup, ...]:
    """Names the kinds that no policy changes, in a sentence."""
    still = [wording.text(kind).replace("_", " ") for kind in _kinds(frame) if kind not in moved]
    if not still:
        return ()
    return (Markup("Nothing changes for {} operations under any policy tried.").format(wording.listed(still)),)


def _outcomes_section(outcomes: pd.DataFrame, moved: Sequence[str], policies: Policies) -> Section:
    title = "Outcomes"
    overall = _worth_showing(outcomes, moved)
    if overall.empty:
        return Section("outcomes", title, ("Nothing was replayed.",))
    drawn = [replay_charts.outcomes_plot(overall, kind, policies) for kind in moved]
    panels = tuple(panel for panel in drawn if panel is not None)
    parts: list[Grid | PageTable] = []
    if panels:
        parts.append(Grid(panels, replay_charts.outcomes_legend(overall[overall["kind"].isin(list(moved))])))
    parts.append(_outcomes_table(overall, policies))
    by_topic = outcomes[outcomes["topic"].notna() & outcomes["kind"].isin(list(moved))]
    if not by_topic.empty:
        parts.append(_expired_table(by_topic, policies))
    lead = "The part of the same operations that was not satisfied, unchanged and under each policy."
    return Section("outcomes", title, (lead, *_unmoved(outcomes, moved)), tuple(parts))


def _outcomes_table(outcomes: pd.DataFrame, policies: Policies) -> PageTable:
    """A row for each kind and policy, a column for each outcome that occurs."""
    key = ["kind", "policy"]
    wide = outcomes.pivot_table(index=key, columns="outcome", values="share", aggfunc="sum", fill_value=0.0)
    words = [word for word in replay_charts.OUTCOMES if word in wide.columns]
    of_policy = outcomes.groupby(key)
    frame = wide.assign(operations=of_policy["operations"].sum(), in_doubt=of_policy["in_doubt"].max()).reset_index()
    shares = (PageColumn(word, word.replace("_", " "), wording.share) for word in words)
    title = "Outcomes by policy, over all topics"
    keys = "kind policy operations in_doubt"
    return _table(title, policies.in_order(frame, "kind", "place"), keys, "outcomes.csv", *shares)


def _expired_table(outcomes: pd.DataFrame, policies: Policies) -> PageTable:
    """A row for each topic and kind, a column for each policy: the share that expired."""
    key = ["topic", "kind"]
    expired = outcomes.assign(share=outcomes["share"].where(outcomes["outcome"] == "expired", 0.0))
    wide = expired.pivot_table(index=key, columns="policy", values="share", aggfunc="sum")
    operations = outcomes[outcomes["policy"] == UNCHANGED].groupby(key)["operations"].sum()
    frame = wide.assign(operations=operations).reset_index()
    frame = frame.sort_values(["operations", *key], ascending=[False, True, True], kind="stable")
    titles = {UNCHANGED: "unchanged"} | {name: policies.label(name) for name in policies.names[:POLICIES_SIDE_BY_SIDE]}
    shares = (PageColumn(name, title, wording.share) for name, title in titles.items() if name in wide.columns)
    caption = f"Share that expired, by topic and {policies.title}"
    return _table(caption, frame, "topic kind operations", "outcomes.csv", *shares, rows_max=ROWS_MAX)


def _waits_section(waits: pd.DataFrame, moved: Sequence[str], policies: Policies) -> Section:
    title = "Waits"
    overall = _worth_showing(waits, moved)
    if overall.empty:
        return Section("waits", title, ("Nothing was replayed.",))
    panels = tuple(replay_charts.waits_plot(overall, kind, policies) for kind in moved)
    keys = "kind policy wait_p50_ms wait_p90_ms wait_p99_ms"
    frame = policies.in_order(overall, "kind", "place")
    table = _table("Waits by policy, over all topics", frame, keys, "waits.csv")
    parts = (Grid(panels, replay_charts.WAITS_LEGEND), table) if panels else (table,)
    lead = "How long operations would have waited, whatever the outcome."
    return Section("waits", title, (lead, *_unmoved(waits, moved)), parts)


def _changes_section(changes: pd.DataFrame, policies: Policies) -> Section:
    title = "What would have ended differently"
    changed = changes[changes["policy"].isin(policies.names)]
    if changed.empty:
        return Section("changes", title, ("Every operation would have ended as it did.",))
    frame = policies.in_order(changed.sort_values("operations", ascending=False, kind="stable"), "place")
    keys = "policy kind unchanged replayed operations"
    table = _table("Outcomes that differ from those of the unchanged replay", frame, keys, "changes.csv")
    return Section("changes", title, ("Operations with another outcome than in the unchanged replay.",), (table,))


def _kinds(frame: pd.DataFrame) -> list[str]:
    """Sorted, so that a kind has the same place in every section."""
    return sorted({str(kind) for kind in frame["kind"]})
