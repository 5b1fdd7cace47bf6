"""A replay as one HTML page: outcomes and waits under other policies.

The frames, by name:

- `outcomes`: policy, topic (missing: all), kind, outcome, operations, share (of the operations of that policy, topic
  and kind), in_doubt (operations of that topic and kind that are left out)
- `waits`: policy, topic (missing: all), kind, wait_p50_ms, wait_p90_ms, wait_p99_ms
- `changes`: policy, kind, unchanged, replayed, operations: only where the two outcomes differ

In the plots, a sweep has its values along the bottom, in the order they were asked for; a list of policies has their
names. A dashed line shows the unchanged replay.

Other columns are ignored. The outcome "open" means still waiting when the history ended. A `policy` has the user's
text as its name, such as "timeout_ms=500"; the empty name is that of the unchanged replay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, document, wording
from purgatory_pipeline.page.parts import (
    ROWS_MAX,
    Finding,
    Grid,
    Headline,
    LegendEntry,
    Page,
    PageColumn,
    PageTable,
    Plot,
    Section,
    footer_lines,
)

UNCHANGED: Final = ""
"""The name of the unchanged replay, with which the policies are compared."""
OUTCOMES: Final = ("satisfied", "expired", "failed", "cancelled", "shutting_down", "refused", "open")
PERCENTILES: Final = {"wait_p50_ms": "half", "wait_p90_ms": "90 %", "wait_p99_ms": "99 %"}
_COLOURS: Final = dict(zip(PERCENTILES.values(), ("var(--low)", "var(--middle)", "var(--high)"), strict=True))
WAITS_LEGEND: Final = (
    *charts.swatches(_COLOURS, _COLOURS, shape="line"),
    LegendEntry("unchanged", "var(--quiet)", shape="dashes"),
)


@dataclass(frozen=True)
class Policies:
    """The policies that were tried: their names, shortened labels for an axis, and the title of that axis."""

    names: tuple[str, ...]
    labels: tuple[str, ...]
    title: str

    @classmethod
    def of(cls, names: tuple[str, ...]) -> "Policies":
        """A prefix that all names share, such as "timeout_ms=", becomes the title."""
        settings = {name[: name.rfind("=") + 1] for name in names}
        shared = settings.pop() if len(names) > 1 and len(settings) == 1 else ""
        labels = charts.unique_labels((name.removeprefix(shared) for name in names), length_max=24)
        return cls(names, tuple(labels), wording.text(shared.removesuffix("=") or "policy"))

    def place(self, name: object) -> int:
        """The unchanged policy comes first."""
        return 1 + self.names.index(str(name)) if name in self.names else 0

    def in_order(self, frame: pd.DataFrame, *by: str) -> pd.DataFrame:
        """The rows by these columns, of which `place` is that of the row's policy."""
        return frame.assign(place=frame["policy"].map(self.place)).sort_values([*by], kind="stable")

    def label(self, name: object) -> str:
        return self.labels[self.names.index(str(name))]


def outcomes_legend(outcomes: pd.DataFrame) -> tuple[LegendEntry, ...]:
    """The legend of all panels: the outcomes, and the dashed line."""
    seen = {str(word) for word in outcomes[outcomes["operations"] > 0]["outcome"]} - {"satisfied"}
    entries = charts.swatches(charts.OUTCOME_COLOURS, seen, shape="line")
    return (*entries, LegendEntry("unchanged", "var(--quiet)", shape="dashes"))


def outcomes_plot(outcomes: pd.DataFrame, kind: str, policies: Policies) -> Plot | None:
    """The share of each outcome but satisfied, against the policies; None where all is satisfied."""
    of_kind = outcomes[(outcomes["kind"] == kind) & (outcomes["outcome"] != "satisfied")]
    words = [word for word in OUTCOMES if (of_kind["outcome"] == word).any()]
    if not words:
        return None
    shares = {
        (str(policy), str(word)): wording.number_of(share)
        for policy, word, share in zip(of_kind["policy"], of_kind["outcome"], of_kind["share"], strict=True)
    }
    tried = [_point(policies, name, word, shares.get((name, word), 0.0)) for word in words for name in policies.names]
    unchanged = [{"word": word, "value": shares.get((UNCHANGED, word), 0.0)} for word in words]
    expired = {name: wording.share(shares.get((name, "expired"), 0.0)) for name in (UNCHANGED, *policies.names)}
    unchanged_share = expired.pop(UNCHANGED)
    expired_shares = ", ".join(f"{share} with {wording.text(name)}" for name, share in expired.items())
    return charts.plot(
        _against(
            tried,
            unchanged,
            policies,
            charts.share_axis(alt.Y, "value", "share of the operations that ended"),
            charts.OUTCOME_COLOURS,
            ".3~%",
        ),
        title=f"{kind.replace('_', ' ')} operations that were not satisfied".capitalize(),
        description=f"Lines over {policies.title}: the share of {kind} operations by outcome. {unchanged_share} "
        f"expired in the unchanged replay; {expired_shares}.",
        height=210,
    )


def waits_plot(waits: pd.DataFrame, kind: str, policies: Policies) -> Plot:
    of_kind = waits[waits["kind"] == kind]
    tried: charts.Values = []
    unchanged: charts.Values = []
    for _, row in of_kind.iterrows():
        for key, word in PERCENTILES.items():
            value = charts.drawn_ms(row[key])
            if row["policy"] == UNCHANGED:
                unchanged.append({"word": word, "value": value})
            elif row["policy"] in policies.names:
                tried.append(_point(policies, str(row["policy"]), word, value))
    tried.sort(key=lambda point: (str(point["word"]), int(point["place"])))
    values = [point["value"] for point in (*tried, *unchanged) if point["value"] is not None]
    low, high = min(values, default=1), max(values, default=1)
    return charts.plot(
        _against(
            tried,
            unchanged,
            policies,
            charts.milliseconds_axis(alt.Y, "value", "time waited (logarithmic)", low, high),
            _COLOURS,
            ",.4~r",
        ),
        title=f"Waits of {kind.replace('_', ' ')} operations",
        description=f"Lines over {policies.title}: how long half, 90 % and 99 % of the {kind} operations would have "
        f"waited at most; between {wording.milliseconds(low)} and {wording.milliseconds(high)}.",
        height=210,
    )


def _point(policies: Policies, name: str, word: str, value: float | None) -> dict[str, Any]:
    return {"label": policies.label(name), "place": policies.place(name), "word": word, "value": value}


def _against(
    tried: charts.Values,
    unchanged: charts.Values,
    policies: Policies,
    height: alt.Y,
    colours: dict[str, str],
    written: str,
) -> alt.LayerChart:
    colour = charts.by_word(colours)
    across = alt.X(
        "label:N",
        title=policies.title,
        sort=alt.EncodingSortField(field="place", op="min", order="ascending"),
        scale=alt.Scale(type="point", padding=0.35),
        axis=alt.Axis(labelAngle=0, labelLimit=90),
    )
    base = alt.Chart(charts.data(tried)).encode(x=across, y=height, color=colour)
    tooltip = charts.tooltips(("label:N", policies.title), ("word:N", "which"), ("value:Q", "value", written))
    return charts.layered(
        alt.Chart(charts.data(unchanged))
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.25, opacity=0.8)
        .encode(y=alt.Y("value:Q"), color=colour),
        base.mark_line(strokeWidth=1.75, strokeJoin="round"),
        base.mark_circle(size=55, opacity=1).encode(tooltip=tooltip),
    )


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


def _outcome(outcome: object) -> str:
    return wording.text(outcome).replace("_", " ")


COLUMNS: Final = {
    column.key: column
    for column in (
        PageColumn("topic", "topic", wording.name),
        PageColumn("kind", "kind"),
        PageColumn("policy", "policy", lambda policy: "unchanged" if policy == UNCHANGED else wording.name(policy)),
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
    for name, key, values in (("outcomes", ["kind", "outcome"], ["share"]), ("waits", ["kind"], list(PERCENTILES))):
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
    drawn = [outcomes_plot(overall, kind, policies) for kind in moved]
    panels = tuple(panel for panel in drawn if panel is not None)
    parts: list[Grid | PageTable] = []
    if panels:
        parts.append(Grid(panels, outcomes_legend(overall[overall["kind"].isin(list(moved))])))
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
    words = [word for word in OUTCOMES if word in wide.columns]
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
    panels = tuple(waits_plot(overall, kind, policies) for kind in moved)
    keys = "kind policy wait_p50_ms wait_p90_ms wait_p99_ms"
    frame = policies.in_order(overall, "kind", "place")
    table = _table("Waits by policy, over all topics", frame, keys, "waits.csv")
    parts = (Grid(panels, WAITS_LEGEND), table) if panels else (table,)
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
