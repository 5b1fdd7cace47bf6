"""The report as one HTML page."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from purgatory_pipeline.analytics.page import charts, document, wording
from purgatory_pipeline.analytics.page.parts import Page, PageColumn, PageTable, Section, footer_lines
from purgatory_pipeline.analytics.report.page import account_section
from purgatory_pipeline.analytics.report.page.anomalies_section import anomalies_section, anomaly_findings
from purgatory_pipeline.analytics.report.page.keys_section import backlog_section, hot_keys_section
from purgatory_pipeline.analytics.report.page.load_section import load_section
from purgatory_pipeline.analytics.report.page.stragglers_section import straggler_finding, stragglers_section
from purgatory_pipeline.analytics.report.page.timeouts_section import advice_findings, advice_section
from purgatory_pipeline.analytics.report.page.waits_section import lateness_section, waits_section
from purgatory_pipeline.analytics.report.page.window_series import WindowSeries, timeline
from purgatory_pipeline.analytics.report.report_tables import TABLES, ReportInfo


def write_page(frames: Mapping[str, pd.DataFrame], info: ReportInfo, path: Path) -> None:
    """Writes the page. `frames` has one frame for each table of `report_tables`, truncated as described there."""
    document.write(report_page(frames, info), path)


def report_page(frames: Mapping[str, pd.DataFrame], info: ReportInfo) -> Page:
    lines = timeline(frames["windows"], info.window_ms)
    span = _span(lines, info)
    return Page(
        title="Purgatory report",
        subtitle=wording.subtitle(info.archive, info.first_at, info.last_at, info.totals.get("registered", 0)),
        headlines=account_section.headlines(frames["intake"], info),
        account=account_section.account_section(frames["intake"], info),
        findings=(
            *straggler_finding(frames["stragglers"]),
            *advice_findings(frames["advice"]),
            *anomaly_findings(frames["anomalies"], info.window_ms),
        ),
        sections=(
            load_section(lines),
            waits_section(frames["topics"], lines),
            advice_section(frames["advice"], frames["timeouts"], frames["survival"]),
            stragglers_section(frames["stragglers"], frames["slow_produces"], info),
            lateness_section(frames["topics"], lines),
            backlog_section(frames["backlog"], span),
            hot_keys_section(frames["hot_keys"]),
            anomalies_section(frames["anomalies"], info.window_ms, span),
            _tables_section(frames, info),
        ),
        footer=footer_lines({}, info.versions),
    )


def _span(lines: WindowSeries, info: ReportInfo) -> charts.Span:
    """The time span shared by all plots over time: all windows."""
    if not lines.frame.empty:
        return lines.span
    nothing = datetime(1970, 1, 1, tzinfo=UTC)
    return info.first_at or nothing, info.last_at or nothing


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
