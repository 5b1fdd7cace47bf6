"""The section on timeouts: how long operations wait until they end by themselves (are satisfied, fail or are
cancelled), and the share that expires with the timeout in use and with others.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Literal

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory.engine import codes
from purgatory_pipeline.page import charts, parts, wording

CURVES: Final = 6
FINDINGS: Final = 3
SENTENCE_LENGTH_MAX: Final = 400
SMALLEST_SHARE: Final = 1e-5
NOTABLE_SHARE: Final = 0.005
"""Timeouts that cut off a smaller share are not listed as findings."""
DIFFERENCE_MAX: Final = 0.01
"""A larger difference between an estimate and the observed share is stated on the page."""
NOTABLE_MISSES: Final = 0.1
"""It is a finding if this share of the expired operations was reached later."""
NOTABLE_PART: Final = 0.02
"""Topics with a smaller part of the operations of their kind are not listed as findings."""


def advice_section(
    advice: pd.DataFrame, timeouts: pd.DataFrame, survival: pd.DataFrame, missed: pd.DataFrame
) -> parts.Section:
    title = "Timeouts"
    if advice.empty:
        return parts.Section("timeouts", title, ("Nothing waited during this time.",))
    drawn = _drawn(advice, survival)
    curves = parts.Grid(tuple(_curve(row, survival) for _, row in drawn.iterrows()), _LEGEND, narrow=True)
    lead = (
        "How long operations wait until they end by themselves: are satisfied, fail or are cancelled. If the mark of "
        "an expired wait was reached later, it is known how long that would have waited; of the others it is an "
        "estimate from those that waited longer. Bounds are 95 %; operations that one call ended count as one "
        "observation."
    )
    with_missed = advice.merge(
        missed[["topic", "kind", "reached_share", "late_p50_ms"]], how="left", on=["topic", "kind"]
    )
    tables = (_advice_table(with_missed), _timeouts_table(timeouts, drawn))
    return parts.Section(
        "timeouts", title, (lead,), (curves, *tables) if curves.parts else tables, notices=_notices(advice)
    )


def near_miss_findings(missed: pd.DataFrame) -> list[parts.Finding]:
    """A sentence for the kind of which most was reached after it had expired."""
    own = missed[missed["topic"].isna() & (missed["reached_share"] >= NOTABLE_MISSES)]
    sentence = Markup("Of {}, {} were reached later, half of these within {} of the timeout.")
    return [
        parts.Finding(
            sentence.format(
                wording.plural(row["expired"], f"expired {row['kind']} operation"),
                wording.strong(wording.share_in_sentence(row["reached_share"])),
                wording.strong(wording.milliseconds(row["late_p50_ms"])),
            ),
            "timeouts",
        )
        for _, row in own.sort_values("reached", ascending=False, kind="stable").head(1).iterrows()
    ]


def _notices(advice: pd.DataFrame) -> tuple[str, ...]:
    """Curves with a single timeout whose estimate there is not what was observed."""
    single = advice[(advice["timeouts"] == 1) & advice["timeout_expires"].notna()]
    gap = (pd.to_numeric(single["timeout_expires"]) - pd.to_numeric(single["timeout_observed"])).abs()
    return tuple(
        f"{'All topics' if wording.is_missing(row['topic']) else wording.text(row['topic'], 60)} ({row['kind']}): "
        f"{wording.share(row['timeout_observed'])} expired, and the estimate for this timeout is "
        f"{wording.share(row['timeout_expires'])}. Operations that began before these rows, or have not ended, make "
        "the difference."
        for _, row in single[gap > DIFFERENCE_MAX].iterrows()
    )


def advice_findings(advice: pd.DataFrame) -> list[parts.Finding]:
    """The timeouts that cut off most. At most one is a fetch timeout: an expired fetch still returns bytes."""
    own = advice[advice["topic"].notna()]
    share, operations = pd.to_numeric(own["timeout_expires"]), pd.to_numeric(own["operations"])
    fetch = own["kind"] == codes.KIND_NAMES[codes.FETCH]
    of_kind = operations / operations.groupby(own["kind"]).transform("sum")
    rated = own.assign(cut=share * operations, fetch=fetch)
    notable = rated[(share >= NOTABLE_SHARE) & (of_kind >= NOTABLE_PART)]
    ordered = notable.sort_values(["fetch", "cut"], ascending=[True, False], kind="stable")
    first = ordered[~(ordered["fetch"] & ordered["fetch"].shift(fill_value=False))].head(FINDINGS)
    found = []
    for _, row in first.iterrows():
        sentence = wording.unbroken(wording.text(row["sentence"], SENTENCE_LENGTH_MAX))
        about = Markup("{} ({}): {}").format(wording.name(row["topic"]), wording.text(row["kind"]), sentence)
        found.append(parts.Finding(about, "timeouts"))
    return found


def _drawn(advice: pd.DataFrame, survival: pd.DataFrame) -> pd.DataFrame:
    """The topics with curves, busiest first; if there are none, all topics together."""
    curves = set(zip(survival["topic"], survival["kind"], strict=True))
    seen = advice[advice["seen_until_ms"] > 0]
    own = seen.loc[[curve in curves for curve in zip(seen["topic"], seen["kind"], strict=True)]]
    topics = own[own["topic"].notna()]
    return (topics if not topics.empty else own).head(CURVES)


def _of(frame: pd.DataFrame, row: "pd.Series[Any]") -> pd.DataFrame:
    same_topic = frame["topic"].isna() if wording.is_missing(row["topic"]) else frame["topic"] == row["topic"]
    return frame[same_topic & (frame["kind"] == row["kind"])]


def _curve(row: "pd.Series[Any]", survival: pd.DataFrame) -> parts.Plot:
    curve = _of(survival, row).sort_values("waited_ms")
    points = [_point(*values) for values in curve[["waited_ms", "waiting", "waiting_low", "waiting_high"]].to_numpy()]
    bottom = 10.0 ** math.floor(math.log10(min(0.1, *(point["drawn"] for point in points))))
    steps = [step for step in (_DECADES if bottom < 0.09 else _FINER) if step >= bottom * 0.99]
    up = alt.Y(
        "drawn:Q",
        title="share that still waits (logarithmic)",
        scale=alt.Scale(type="log", domain=[bottom, 1], nice=False, clamp=True),
        axis=alt.Axis(values=steps, labelExpr=charts.SHARE_LABEL),
    )
    waits = [point["at"] for point in points]
    timeout = charts.drawn_ms(row["timeout_ms"])
    across = charts.milliseconds_axis(alt.X, "at", "time waited (logarithmic)", min(waits), max([*waits, timeout or 0]))
    base = alt.Chart(charts.data(points)).encode(x=across)
    layers = [
        base.mark_area(opacity=0.22, color="var(--band)", interpolate="step-after").encode(
            y=alt.Y("low:Q"), y2="high:Q"
        ),
        base.mark_line(strokeWidth=1.75, color="var(--band)", interpolate="step-after").encode(y=up),
        base.mark_circle(size=90, opacity=0).encode(y=up, tooltip=_TOOLTIP),
    ]
    if timeout is not None:
        is_far = math.log(timeout / min(waits)) > 0.4 * math.log(max([*waits, timeout]) / min(waits))
        layers += _timeout_mark(row, timeout, is_far=is_far, is_beyond=timeout > max(waits))
    topic = "All topics" if wording.is_missing(row["topic"]) else wording.text(row["topic"], 60)
    title = f"{topic} · {row['kind']}"
    return charts.plot(charts.layered(*layers), title=title, description=_description(row), height=200)


def _point(waited: object, waiting: object, low: object, high: object) -> dict[str, Any]:
    """One step of the curve. On the logarithmic scale, a share of 0 is drawn as the smallest share."""
    return {
        "at": charts.drawn_ms(waited),
        "value": waited,
        "drawn": max(wording.number_of(waiting), SMALLEST_SHARE),
        **{
            name: None if wording.is_missing(bound) else max(wording.number_of(bound), SMALLEST_SHARE)
            for name, bound in (("low", low), ("high", high))
        },
        "written": wording.share(waiting),
        "bounds": _range(wording.share(low), wording.share(high)),
    }


def _cut_off(row: "pd.Series[Any]") -> str:
    """The share of operations that the timeout in use would cut off; empty if unknown."""
    if not wording.is_missing(row["timeout_expires"]):
        return wording.share_in_sentence(row["timeout_expires"])
    known = 0 < wording.number_of(row["timeout_expires_high"]) < 1
    return f"at most {wording.share_in_sentence(row['timeout_expires_high'])}" if known else ""


def _timeout_mark(row: "pd.Series[Any]", timeout: float, *, is_far: bool, is_beyond: bool) -> list[alt.Chart]:
    """The timeout as a vertical line, its share as a dot on the curve, and a label for both away from the curve."""
    share = wording.number_of(row["timeout_expires"])
    cut = _cut_off(row)
    words = wording.milliseconds(timeout) + (f"{_LINE_BREAK}{cut} still wait" if cut else "")
    drawn = None if math.isnan(share) or not share else max(share, SMALLEST_SHARE)
    mark = alt.Chart(charts.data([{"at": timeout, "drawn": drawn, "written": words}])).encode(x=alt.X("at:Q"))
    side: Literal["left", "right"] = "right" if is_far else "left"
    layers = [
        mark.mark_rule(strokeWidth=1.75, color="var(--expired)"),
        mark.mark_text(
            align=side,
            baseline="top" if is_beyond else "bottom",
            dx=-6 if is_far else 6,
            dy=4 if is_beyond else -18,
            lineBreak=_LINE_BREAK,
            lineHeight=14,
            color="var(--ink)",
        ).encode(y=alt.value(0 if is_beyond else "height"), text="written:N"),
    ]
    if drawn is not None:
        layers.append(mark.mark_circle(size=70, opacity=1, color="var(--expired)").encode(y=alt.Y("drawn:Q")))
    return layers


def _description(row: "pd.Series[Any]") -> str:
    need = "not enough was seen to say when 99 % have ended"
    if not wording.is_missing(row["need_p99_ms"]):
        need = f"99 % end within {wording.milliseconds(row['need_p99_ms'])}"
    words = f"A falling curve: the share that still waits after a given time. {need}"
    if wording.is_missing(row["timeout_ms"]):
        return f"{words}."
    cut = _cut_off(row) or "a share that is not known"
    return f"{words}; the timeout most in use, {wording.milliseconds(row['timeout_ms'])}, cuts off {cut}."


def _range(low: str, high: str) -> str:
    unit = wording.NBSP + high.rpartition(wording.NBSP)[2]
    return f"{low.removesuffix(unit)} to {high}" if low.endswith(unit) else f"{low} to {high}"


def _bounded(
    shown: Callable[[object], str], value: object, low: object, high: object, between: str = " "
) -> str | Markup:
    """A figure with its bounds in small print, or only its upper bound if the figure itself is unknown."""
    if wording.is_missing(value):
        known = 0 < wording.number_of(high) < 1
        return Markup("<small>at most</small> {}").format(shown(high)) if known else wording.MISSING
    figure = shown(value)
    if wording.is_missing(low) or wording.is_missing(high):
        return figure
    if shown(low) == figure == shown(high):
        return figure
    unit = wording.NBSP + figure.rpartition(wording.NBSP)[2]
    bounds = _range(shown(low), shown(high)).removesuffix(unit)
    return Markup("{}{}<small>({})</small>").format(figure, between, bounds)


def _advice_table(advice: pd.DataFrame) -> parts.PageTable:
    def with_bounds(shown: Callable[[object], str], name: str, unit: str = "") -> list[str | Markup]:
        names = [f"{name}{bound}{unit}" for bound in ("", "_low", "_high")]
        return [_bounded(shown, *values) for values in zip(*(advice[name] for name in names), strict=True)]

    need = with_bounds(wording.milliseconds, "need_p99", "_ms")
    return parts.PageTable(
        "How long operations wait until they end by themselves, and what the timeout most in use cuts off",
        advice.assign(cut=with_bounds(wording.share, "timeout_expires"), need=need),
        (
            *_CURVE,
            *parts.columns(wording.count, "operations"),
            *parts.columns(wording.milliseconds, need_p50_ms="half end within"),
            *parts.columns(wording.as_is, need="99 % within"),
            *parts.columns(wording.milliseconds, timeout_ms="timeout most in use"),
            *parts.columns(wording.share, timeout_observed="of these expired"),
            *parts.columns(wording.share, reached_share="of all expired, reached later"),
            *parts.columns(wording.milliseconds, late_p50_ms="half of these within"),
            *parts.columns(wording.as_is, cut="of all would expire"),
        ),
        rest="csv/advice.csv",
    )


def _timeouts_table(timeouts: pd.DataFrame, drawn: pd.DataFrame) -> parts.PageTable:
    """For each curve drawn, the timeout in use and the ones next to it."""
    rows = []
    for _, curve in drawn.iterrows():
        ladder = _of(timeouts, curve).sort_values("timeout_ms").reset_index(drop=True)
        places = ladder.index[ladder["in_use"].astype(bool)]
        middle = int(places[0]) if len(places) else len(ladder) // 2
        row = {"topic": curve["topic"], "kind": curve["kind"]}
        for step, name in _STEPS.items():
            is_known = 0 <= middle + step < len(ladder)
            row[name] = _timeout_cell(ladder.iloc[middle + step]) if is_known else wording.MISSING
        rows.append(row)
    return parts.PageTable(
        "What other timeouts would do: share that would expire, with bounds (≈: part of it is an estimate)",
        pd.DataFrame(rows, columns=["topic", "kind", *_STEPS.values()]),
        (*_CURVE, *parts.columns(wording.as_is, *_STEPS.values())),
        rest="csv/timeouts.csv",
    )


def _timeout_cell(row: "pd.Series[Any]") -> Markup:
    share = _bounded(wording.share, row["expires"], row["expires_low"], row["expires_high"], Markup("<br>"))
    sign = "≈" + wording.NBSP if wording.number_of(row["estimated"]) > 0 else ""
    return Markup("<small>{}</small><br>{}{}").format(wording.milliseconds(row["timeout_ms"]), sign, share)


_DECADES: Final = tuple(10.0**-power for power in range(6))
_FINER: Final = (1.0, 0.5, 0.2, 0.1)
"""Tick marks of the axis of shares; the finer ones are used if all values are within one decade."""
_CURVE: Final = (parts.PageColumn("topic", "topic", wording.name_or_all), parts.KIND)
_STEPS: Final = {-2: "shorter", -1: "a step shorter", 0: "in use", 1: "a step longer", 2: "longer"}
_LINE_BREAK: Final = "; "
_LEGEND: Final = (
    parts.LegendEntry("share that still waits, with its bounds", "var(--band)", shape="line"),
    parts.LegendEntry("timeout most in use", "var(--expired)", shape="line"),
)
_TOOLTIP: Final = charts.tooltips(
    ("value:Q", "waited (ms)", ",.4~r"), ("written:N", "still wait"), ("bounds:N", "bounds")
)
