"""What came in: every row and every operation of the archive, used or set aside and why."""

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import Headline, PageColumn, PageTable, Section
from purgatory_pipeline.report.report_tables import ReportInfo

USED = "used"


def headlines(frames_intake: pd.DataFrame, info: ReportInfo) -> tuple[Headline, ...]:
    totals = info.totals
    ended = totals.get("ended", 0)
    aside = rows_set_aside(frames_intake)

    def share_of_ended(word: str) -> str:
        return wording.share(totals.get(word, 0) / ended) if ended else wording.MISSING

    others = {word: totals.get(word, 0) for word in ("failed", "cancelled", "shutting_down")}
    seconds = (info.last_at - info.first_at).total_seconds() if info.first_at and info.last_at else 0
    pace = f"{wording.decimal(totals.get('registered', 0) / seconds)} a second" if seconds > 0 else ""
    return (
        Headline("registered", wording.rough_count(totals.get("registered", 0)), pace),
        Headline("satisfied", share_of_ended("satisfied"), f"{wording.count(totals.get('satisfied', 0))} operations"),
        Headline("expired", share_of_ended("expired"), f"{wording.count(totals.get('expired', 0))} operations"),
        Headline(
            "other outcomes",
            wording.count(sum(others.values())),
            ", ".join(f"{wording.count(number)} {word.replace('_', ' ')}" for word, number in others.items() if number),
        ),
        Headline(
            "no end found", wording.count(totals.get("unfinished", 0)), "still waiting, or their end was not read"
        ),
        Headline("rows set aside", aside, "nothing" if aside == "0" else "see what came in", alarming=aside != "0"),
    )


def rows_set_aside(intake: pd.DataFrame) -> str:
    """The rows set aside; a plus sign where some could not be counted."""
    aside = intake[intake["reason"] != USED]
    number = pd.to_numeric(aside["rows"]).fillna(0).sum()
    return wording.count(number) + ("+" if aside["rows"].isna().any() else "")


def account_section(intake: pd.DataFrame, info: ReportInfo) -> Section:
    """In = used + set aside, of rows and of operations."""
    used = intake[intake["reason"] == USED]
    aside = intake[intake["reason"] != USED]
    return Section(
        "account",
        "What came in",
        (_rows_sentence(used, aside), _operations_sentence(info)),
        notices=info.notes,
        parts=(_intake_table(intake),),
    )


def _rows_sentence(used: pd.DataFrame, aside: pd.DataFrame) -> Markup:
    used_rows = pd.to_numeric(used["rows"]).fillna(0).sum()
    aside_rows = pd.to_numeric(aside["rows"]).fillna(0).sum()
    uncounted = aside["rows"].isna()
    files = pd.to_numeric(used["files"]).sum()
    sentence = Markup("{} rows = {} used, from {}, + {} set aside.").format(
        wording.strong(wording.count(used_rows + aside_rows)),
        wording.strong(wording.count(used_rows)),
        wording.plural(files, "file"),
        wording.strong(wording.count(aside_rows)),
    )
    if not uncounted.any():
        return sentence
    lost = pd.to_numeric(aside["files"])[uncounted].sum()
    return sentence + Markup(" The rows of {} cannot be counted.").format(wording.plural(lost, "more file"))


def _operations_sentence(info: ReportInfo) -> Markup:
    totals = {word: wording.count(info.totals.get(word, 0)) for word in _WORDS}
    return Markup(
        "Operations: {registered} registered - {refused} refused + {carried_in} carried in from before "
        "= {ended} ended + {unfinished} without an end."
    ).format(**{word: wording.strong(number) for word, number in totals.items()})


_WORDS = ("registered", "refused", "carried_in", "ended", "unfinished")


def _intake_table(intake: pd.DataFrame) -> PageTable:
    frame = intake.assign(aside=intake["reason"] != USED).sort_values(["aside", "table", "reason"], kind="stable")
    return PageTable(
        "Files and rows",
        frame,
        (
            PageColumn("table", "table"),
            PageColumn("reason", "used, or why it was set aside"),
            PageColumn("files", "files", wording.count),
            PageColumn("rows", "rows", wording.count),
        ),
        rest="csv/intake.csv",
        rows_max=40,
        marked="aside",
    )
