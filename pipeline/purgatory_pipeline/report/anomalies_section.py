"""The section on anomalies: windows that differ from others, and shifts."""

from collections.abc import Callable
from typing import Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import KIND, Finding, PageColumn, PageTable, Section, columns
from purgatory_pipeline.report.window_sections import duration

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
    """The anomalies with measures' names and formatted values."""
    known = [_MEASURES.get(measure, (wording.text(measure), wording.decimal, "")) for measure in anomalies["measure"]]
    values = {
        column: [shown(value) for (_, shown, _), value in zip(known, anomalies[column], strict=True)]
        for column in ("value", "usual")
    }
    return anomalies.assign(measure=[name for name, _, _ in known], **values)
