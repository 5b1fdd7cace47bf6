"""The section on anomalies: windows that differ from an earlier one."""

from collections.abc import Callable
from typing import Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import charts, wording
from purgatory_pipeline.page.parts import KIND, Finding, LegendEntry, PageColumn, PageTable, Plot, Section, columns
from purgatory_pipeline.report.window_sections import duration

DOTS_MAX: Final = 400
FINDINGS: Final = 2
_MEASURES: Final[dict[str, tuple[str, Callable[[object], str], str]]] = {
    "registered": ("registrations", wording.count, "{value} {of} were registered, usually {usual}."),
    "wait_p50_ms": ("wait of half", wording.milliseconds, "half of the {of} waited up to {value}, usually {usual}."),
    "wait_p99_ms": ("wait of 99 %", wording.milliseconds, "99 % of the {of} waited up to {value}, usually {usual}."),
    "expiry_rate": ("share expired", wording.share, "{value} of the {of} expired, usually {usual}."),
    "completion_rate": ("share satisfied", wording.share, "{value} of the {of} were satisfied, usually {usual}."),
}
"""For each measure: its name, the formatter of its values, and a sentence."""
_COLOURS: Final = {"up": "var(--expired)", "down": "var(--produce)"}
_TOOLTIP: Final = charts.tooltips(
    ("when:N", "window from (UTC)"), ("measure:N", "what"), ("of:N", "of"), ("value:N", "was"), ("usual:N", "usually")
)


def anomalies_section(anomalies: pd.DataFrame, window_ms: int, span: charts.Span) -> Section:
    title = "Anomalies"
    if anomalies.empty:
        return Section("anomalies", title, ("No window differs strikingly from the one it is compared with.",))
    lead = Markup(
        "{} of {} differ strikingly from the same window of the day before, or, if there is "
        "none, from the window before. The score is the change over the usual spread of such changes."
    ).format(wording.strong(wording.plural(len(anomalies), "figure")), duration(window_ms) + " windows")
    written = _in_words(anomalies)
    table = PageTable(
        "The most striking windows",
        written,
        (
            PageColumn("window_start", "window from (UTC)", wording.instant),
            PageColumn("topic", "topic", wording.name_or_all),
            KIND,
            PageColumn("measure", "what"),
            *columns(wording.as_is, value="was", usual="usually"),
            PageColumn("compared_with", "compared with", wording.instant),
            *columns(wording.decimal, "score"),
        ),
        rest="csv/anomalies.csv",
    )
    return Section("anomalies", title, (lead,), parts=(_plot(written, window_ms, span), table))


def anomaly_findings(anomalies: pd.DataFrame, window_ms: int) -> list[Finding]:
    """The finding with the highest score for each measure and kind."""
    known = anomalies[anomalies["measure"].isin(list(_MEASURES))]
    first = known.drop_duplicates(["measure", "kind"]).head(FINDINGS)
    found = []
    for measure, (_, row) in zip(first["measure"], _in_words(first).iterrows(), strict=True):
        of = Markup("{} operations").format(wording.text(row["kind"]))
        if not wording.is_missing(row["topic"]):
            of += Markup(" on {}").format(wording.name(row["topic"]))
        window = Markup("In the {} from {}, ").format(duration(window_ms), wording.instant(row["window_start"]))
        figures = {"value": wording.strong(row["value"]), "usual": row["usual"]}
        found.append(Finding(window + Markup(_MEASURES[measure][2]).format(of=of, **figures), "anomalies"))  # noqa: S704
    return found


def _in_words(anomalies: pd.DataFrame) -> pd.DataFrame:
    """The anomalies with measures' names and formatted values."""
    known = [_MEASURES.get(measure, (wording.text(measure), wording.decimal, "")) for measure in anomalies["measure"]]
    values = {
        column: [shown(value) for (_, shown, _), value in zip(known, anomalies[column], strict=True)]
        for column in ("value", "usual")
    }
    return anomalies.assign(measure=[name for name, _, _ in known], **values)


def _plot(written: pd.DataFrame, window_ms: int, span: charts.Span) -> Plot:
    drawn = written.head(DOTS_MAX)
    topics = drawn["topic"].where(drawn["topic"].notna(), "all topics")
    dots = drawn.assign(
        at=drawn["window_start"] + pd.Timedelta(milliseconds=window_ms) / 2,
        word=drawn["direction"],
        of=[f"{topic} · {kind}" for topic, kind in zip(topics, drawn["kind"], strict=True)],
    )[["at", "measure", "word", "score", "of", "value", "usual"]]
    up = alt.Y("measure:N", title=None, axis=alt.Axis(grid=True, labelColor="var(--ink)"), sort="ascending")
    size = alt.Size("score:Q", scale=alt.Scale(type="sqrt", range=[40, 420], zero=False), legend=None)
    base = charts.over_time(dots.to_dict("records"), span, up, _COLOURS)
    measures = sorted(set(dots["measure"]))
    note = "Larger is more striking."
    if len(written) > DOTS_MAX:
        note += f" The first {DOTS_MAX} of {len(written):,}."
    return charts.plot(
        base.mark_circle(opacity=0.75, stroke="var(--paper)", strokeWidth=1).encode(size=size, tooltip=_TOOLTIP),
        title="When something was unusual",
        description=f"A dot for each striking window, in one row each for {wording.listed(measures)}; larger "
        "ones are more striking. The table below says what each was.",
        height=60 + 44 * len(measures),
        note=note,
        legend=(LegendEntry("more than usual", _COLOURS["up"]), LegendEntry("less than usual", _COLOURS["down"])),
    )
