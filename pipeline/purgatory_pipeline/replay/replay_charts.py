"""Plots of a replay: results against policies.

A sweep has its values along the bottom, in the order they were asked for; a list of policies has their names. A dashed
line shows the unchanged replay.
"""

from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import pandas as pd

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import LegendEntry, Plot

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
