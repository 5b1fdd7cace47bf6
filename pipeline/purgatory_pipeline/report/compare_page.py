"""The page of `compare`: every difference between two reports, the largest for its bounds first."""

from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import Headline, Page, PageTable, Section, columns

ROWS_MAX: Final = 300
_LEAD: Final = (
    "A difference is B minus A, with its 95 % bounds. Rows whose bounds exclude 0 are marked. Columns are those of the "
    "reports' tables. Counts are compared between windows, so two times of day differ as clearly as two releases."
)


def compare_page(rows: pd.DataFrame, first: str, second: str) -> Page:
    """The page of all `differences` between the reports on `first` and `second`."""
    bounded, clear = int(rows["low"].notna().sum()), int(rows["clear"].sum())
    names = columns(wording.name, "table", "of", measure="column")
    figures = columns(wording.as_is, a="A", b="B", difference="difference", bounds="bounds")
    table = PageTable("B minus A", in_words(rows), (*names, *figures), "compare.csv", ROWS_MAX, "clear")
    return Page(
        title="A and B compared",
        subtitle=Markup("A: {} · B: {}").format(wording.name(first), wording.name(second)),
        headlines=(
            Headline("differences with bounds", wording.count(bounded)),
            Headline("beyond their bounds", wording.count(clear), f"by chance about {wording.count(bounded / 20)}"),
        ),
        findings=(),
        sections=(Section("differences", "Differences", (_LEAD,), (table,)),),
    )


def in_words(rows: pd.DataFrame) -> pd.DataFrame:
    """The differences with their figures as texts and a column `bounds`, the largest for its bounds first."""
    size = rows["difference"].abs() / (rows["high"] - rows["low"])
    by_size = rows.assign(size=size).sort_values(
        ["size", "of", "measure"], ascending=[False, True, True], kind="stable"
    )

    def texts(name: str, sign: str = "") -> list[str]:
        return [_text(measure, value, sign) for measure, value in zip(by_size["measure"], by_size[name], strict=True)]

    bounds = [f"{low} to {high}" for low, high in zip(texts("low", "+"), texts("high", "+"), strict=True)]
    return by_size.assign(a=texts("a"), b=texts("b"), difference=texts("difference", "+"), bounds=bounds)


def _text(measure: str, value: float, sign: str = "") -> str:
    """A figure, or a difference with its sign; that of shares in points of percent."""
    if wording.is_missing(value):
        return wording.MISSING
    if measure.endswith("_ms"):
        words = wording.total_time if measure == "total_ms" else wording.milliseconds
    elif measure in {"registered_per_s", "deepest"}:
        words = wording.decimal
    else:
        return f"{max(-100, min(value * 100, 100)):+.2f} points" if sign else wording.share(value)
    return f"{'-' if value < 0 else sign}{words(abs(value))}"
