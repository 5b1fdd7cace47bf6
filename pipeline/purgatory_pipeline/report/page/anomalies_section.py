"""The section on anomalies: windows unlike the same window before."""

from collections.abc import Callable
from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import Finding, LegendEntry, PageColumn, PageTable, Plot, Section
from purgatory_pipeline.report.page import window_series

DOTS_MAX: Final = 400
FINDINGS: Final = 2
_MEASURES: Final[dict[str, tuple[str, Callable[[object], str], Markup]]] = {
    "registered": ("registrations", wording.count, Markup("{value} {of} were registered, usually {usual}.")),
    "wait_p50_ms": (
        "wait of half",
        wording.milliseconds,
        Markup("half of the {of} waited up to {value}, usually {usual}."),
    ),
    "wait_p99_ms": (
        "wait of 99 %",
        wording.milliseconds,
        Markup("99 % of the {of} waited up to {value}, usually {usual}."),
    ),
    "expiry_rate": ("share expired", wording.share, Markup("{value} of the {of} expired, usually {usual}.")),
    "completion_rate": (
        "share satisfied",
        wording.share,
        Markup("{value} of the {of} were satisfied, usually {usual}."),
    ),
}
"""For each measure: its name, how its values are written, and a sentence."""
_COLOURS: Final = {"up": "var(--expired)", "down": "var(--produce)"}


def anomalies_section(anomalies: pd.DataFrame, window_ms: int, span: charts.Span) -> Section:
    title = "Anomalies"
    if anomalies.empty:
        return Section("anomalies", title, ("No window differs strikingly from the one it is compared with.",))
    lead = Markup(
        "{} of {} differ strikingly from the same window of the day before, or, if there is "
        "none, from the window before. The score is the change over the usual spread of such changes."
    ).format(wording.strong(wording.plural(len(anomalies), "figure")), window_series.duration(window_ms) + " windows")
    return Section("anomalies", title, (lead,), parts=(_plot(anomalies, window_ms, span), _table(anomalies)))


def anomaly_findings(anomalies: pd.DataFrame, window_ms: int) -> list[Finding]:
    """The highest scores, one for each measure and kind."""
    known = anomalies[anomalies["measure"].isin(list(_MEASURES))]
    first = known.drop_duplicates(["measure", "kind"]).head(FINDINGS)
    return [
        Finding(
            Markup("In the {} from {}, ").format(
                window_series.duration(window_ms), wording.instant(row["window_start"])
            )
            + _MEASURES[row["measure"]][2].format(
                of=_of(row["topic"], row["kind"]),
                value=wording.strong(_value(row["measure"], row["value"])),
                usual=_value(row["measure"], row["usual"]),
            ),
            "anomalies",
        )
        for _, row in first.iterrows()
    ]


def _plot(anomalies: pd.DataFrame, window_ms: int, span: charts.Span) -> Plot:
    drawn = anomalies.head(DOTS_MAX)
    dots = [
        {
            "at": row["window_start"] + pd.Timedelta(milliseconds=window_ms) / 2,
            "measure": _measure(row["measure"]),
            "word": row["direction"],
            "score": row["score"],
            "of": f"{row['topic']} · {row['kind']}"
            if not wording.is_missing(row["topic"])
            else f"all topics · {row['kind']}",
            "value": _value(row["measure"], row["value"]),
            "usual": _value(row["measure"], row["usual"]),
        }
        for _, row in drawn.iterrows()
    ]
    chart = (
        alt.Chart(charts.data(dots))
        .transform_calculate(when=window_series.WHEN)
        .mark_circle(opacity=0.75, stroke="var(--paper)", strokeWidth=1)
        .encode(
            x=charts.time_axis(span),
            y=alt.Y("measure:N", title=None, axis=alt.Axis(grid=True, labelColor="var(--ink)"), sort="ascending"),
            size=alt.Size("score:Q", scale=alt.Scale(type="sqrt", range=[40, 420], zero=False), legend=None),
            color=alt.Color("word:N", scale=charts.colour_scale(_COLOURS), legend=None),
            tooltip=charts.tooltips(
                ("when:N", "window from (UTC)"),
                ("measure:N", "what"),
                ("of:N", "of"),
                ("value:N", "was"),
                ("usual:N", "usually"),
            ),
        )
    )
    measures = sorted({dot["measure"] for dot in dots})
    note = "Larger is more striking."
    if len(anomalies) > DOTS_MAX:
        note += f" The first {DOTS_MAX} of {len(anomalies):,}."
    return charts.plot(
        chart,
        title="When something was unusual",
        description=f"A dot for each striking window, in one row each for {wording.listed(measures)}; larger "
        "ones are more striking. The table below says what each was.",
        height=60 + 44 * len(measures),
        note=note,
        legend=(LegendEntry("more than usual", _COLOURS["up"]), LegendEntry("less than usual", _COLOURS["down"])),
    )


def _table(anomalies: pd.DataFrame) -> PageTable:
    measures = anomalies["measure"].tolist()
    frame = anomalies.assign(
        what=[_measure(measure) for measure in measures],
        was=[_value(measure, value) for measure, value in zip(measures, anomalies["value"], strict=True)],
        usually=[_value(measure, value) for measure, value in zip(measures, anomalies["usual"], strict=True)],
    )
    return PageTable(
        "The most striking windows",
        frame,
        (
            PageColumn("window_start", "window from (UTC)", wording.instant),
            PageColumn(
                "topic", "topic", lambda topic: "all topics" if wording.is_missing(topic) else wording.name(topic)
            ),
            PageColumn("kind", "kind"),
            PageColumn("what", "what"),
            PageColumn("was", "was", wording.as_is),
            PageColumn("usually", "usually", wording.as_is),
            PageColumn("compared_with", "compared with", wording.instant),
            PageColumn("score", "score", wording.decimal),
        ),
        rest="csv/anomalies.csv",
    )


def _measure(measure: object) -> str:
    return _MEASURES[str(measure)][0] if measure in _MEASURES else wording.text(measure)


def _value(measure: object, value: object) -> str:
    return _MEASURES[str(measure)][1](value) if measure in _MEASURES else wording.decimal(value)


def _of(topic: object, kind: object) -> Markup:
    if wording.is_missing(topic):
        return Markup("{} operations").format(wording.text(kind))
    return Markup("{} operations on {}").format(wording.text(kind), wording.name(topic))
