"""The report as one HTML page, with the section on what came in: every row and every operation of the archive, used or
set aside with a reason.
"""

from collections.abc import Mapping
from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import Headline, Page, PageColumn, PageTable, Section, columns, footer_lines
from purgatory_pipeline.report import cause_sections
from purgatory_pipeline.report.advice_page import budget_finding, budget_section
from purgatory_pipeline.report.report_tables import TABLES, ReportInfo
from purgatory_pipeline.report.timeouts_section import advice_findings, advice_section, near_miss_findings
from purgatory_pipeline.report.window_sections import load_section, timeline, waits_section


def report_page(frames: Mapping[str, pd.DataFrame], info: ReportInfo) -> Page:
    """`frames` has one frame for each table of `report_tables`, truncated as described there."""
    lines = timeline(frames["windows"], info.window_ms)
    return Page(
        title="Purgatory report",
        subtitle=wording.subtitle(info.archive, info.first_at, info.last_at, info.totals.get("registered", 0)),
        headlines=headlines(frames["intake"], info),
        notices=info.notes,
        findings=(
            *cause_sections.straggler_finding(frames["stragglers"]),
            *budget_finding(frames["budget"], info.objective),
            *advice_findings(frames["advice"]),
            *near_miss_findings(frames["near_misses"]),
            *cause_sections.anomaly_findings(frames["anomalies"], info.window_ms),
        ),
        sections=(
            cause_sections.causes_section(frames),
            load_section(lines),
            waits_section(frames["topics"], lines),
            *budget_section(frames["budget"], info.objective),
            advice_section(frames["advice"], frames["timeouts"], frames["survival"], frames["near_misses"]),
            cause_sections.stragglers_section(frames["stragglers"], frames["slow_produces"], info),
            cause_sections.backlog_section(frames["backlog"]),
            cause_sections.hot_keys_section(frames["hot_keys"]),
            cause_sections.anomalies_section(frames["anomalies"], info.window_ms),
            account_section(frames["intake"], info),
            _tables_section(frames, info),
        ),
        footer=footer_lines({}, info.versions),
    )


def _tables_section(frames: Mapping[str, pd.DataFrame], info: ReportInfo) -> Section:
    rows = pd.DataFrame(
        [
            {"name": table.name, "meaning": table.meaning, "rows": info.rows.get(table.name, len(frames[table.name]))}
            for table in TABLES.values()
        ]
    )
    beside = "This page shows the top of each. The full tables are next to it as Parquet, and their first rows as CSV."
    table = PageTable(
        "Tables of this report",
        rows,
        (
            PageColumn("name", "table", wording.name),
            PageColumn("meaning", "what it holds", lambda meaning: wording.with_code_names(str(meaning))),
            PageColumn("rows", "rows", wording.count),
        ),
        rows_max=len(rows),
    )
    return Section("tables", "All tables", (beside,), (table,))


USED: Final = "used"
_OTHER_OUTCOMES: Final = ("failed", "cancelled", "shutting_down")
_ACCOUNT: Final = ("registered", "refused", "carried_in", "ended", "unfinished")


def headlines(intake: pd.DataFrame, info: ReportInfo) -> tuple[Headline, ...]:
    """The figures at the top of the page: operations, their outcomes, and rows set aside."""

    def share_of_ended(word: str) -> Headline:
        number, ended = info.totals.get(word, 0), info.totals.get("ended", 0)
        share = wording.share(number / ended if ended else None)
        return Headline(word, share, wording.plural(number, "operation"))

    aside = rows_set_aside(intake)
    registered = info.totals.get("registered", 0)
    others = {word: info.totals.get(word, 0) for word in _OTHER_OUTCOMES}
    each = [f"{wording.count(number)} {word.replace('_', ' ')}" for word, number in others.items() if number]
    unfinished = wording.count(info.totals.get("unfinished", 0))
    seconds = (info.last_at - info.first_at).total_seconds() if info.first_at and info.last_at else 0
    pace = f"{wording.decimal(registered / seconds)} a second" if seconds > 0 else ""
    return (
        Headline("registered", wording.rough_count(registered), pace),
        share_of_ended("satisfied"),
        share_of_ended("expired"),
        Headline("other outcomes", wording.count(sum(others.values())), ", ".join(each)),
        Headline("no end found", unfinished, "still waiting, or their end was not read"),
        Headline("rows set aside", aside, "nothing" if aside == "0" else "see What came in", alarming=aside != "0"),
    )


def rows_set_aside(intake: pd.DataFrame) -> str:
    """The number of rows set aside, with a plus sign if some could not be counted."""
    aside = intake[intake["reason"] != USED]
    return wording.count(_total(aside, "rows")) + ("+" if aside["rows"].isna().any() else "")


def account_section(intake: pd.DataFrame, info: ReportInfo) -> Section:
    """The balance of rows and of operations: in = used + set aside."""
    numbers = {word: wording.strong(wording.count(info.totals.get(word, 0))) for word in _ACCOUNT}
    operations = Markup(
        "Operations: {registered} registered - {refused} refused + {carried_in} carried in from before "
        "= {ended} ended + {unfinished} without an end. An operation on several partitions is a row for each of them."
    ).format(**numbers)
    frame = intake.assign(aside=intake["reason"] != USED).sort_values(["aside", "table", "reason"], kind="stable")
    table = PageTable(
        "Files and rows",
        frame,
        (
            PageColumn("table", "table"),
            PageColumn("reason", "used, or why it was set aside"),
            *columns(wording.count, "files", "rows"),
        ),
        rest="csv/intake.csv",
        rows_max=40,
        marked="aside",
    )
    lead = (_rows_sentence(frame[~frame["aside"]], frame[frame["aside"]]), operations)
    return Section("account", "What came in", lead, (table,))


def _rows_sentence(used: pd.DataFrame, aside: pd.DataFrame) -> Markup:
    rows = [_total(part, "rows") for part in (used, aside)]
    every, used_rows, aside_rows = (wording.strong(wording.count(number)) for number in (sum(rows), *rows))
    files = wording.plural(_total(used, "files"), "file")
    sentence = Markup("{} rows = {} used, from {}, + {} set aside.").format(every, used_rows, files, aside_rows)
    uncounted = aside[aside["rows"].isna()]
    if uncounted.empty:
        return sentence
    lost = wording.plural(_total(uncounted, "files"), "more file")
    return sentence + Markup(" The rows of {} cannot be counted.").format(lost)


def _total(frame: pd.DataFrame, column: str) -> float:
    return float(pd.to_numeric(frame[column]).fillna(0).sum())
