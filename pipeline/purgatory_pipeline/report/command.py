"""The commands `report`, `advise` and `compare`: options and output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from purgatory.command_line import NUMBER

if TYPE_CHECKING:
    import pandas as pd

    from purgatory_pipeline.archive.catalog import ArchiveCatalog
    from purgatory_pipeline.location import Location
    from purgatory_pipeline.report.report_builder import Report, ReportOptions, Written

_PERIOD: Final = re.compile(r"(.+)@([^/]*)\.\.([^/]*)")
PRINTED: Final = 10
"""Maximum number of printed differences of `compare`."""
ADVISED: Final = 5
"""Maximum number of printed lines of advice; the page and the table have all."""
WINDOWS_MS: Final = (1_000, 10_000, 60_000, 600_000, 3_600_000)
WINDOWS_MIN: Final = 12
"""The default window length is chosen so that a history has at least this many windows."""


@click.command()
@click.argument("archive", metavar="ARCHIVE", help="Folder or URI of the archive.")
@click.option("--out", metavar="DIR", required=True, help="Folder for tables, CSV files and the page.")
@click.option("--since", metavar="INSTANT", help="Only rows at or after this instant (UTC).")
@click.option("--until", metavar="INSTANT", help="Only rows before this instant (UTC).")
@click.option("--topic", multiple=True, help="Only this topic (or key); may be repeated.")
@click.option("--window", metavar="SPAN", help="Length of a time window: 10s, 5m (default: 1h; less if that is long).")
@click.option(
    "--slow-share", metavar="SHARE", type=float, default=0.01, help="Examine this share of produces, the slowest."
)
@click.option("--slow-over", metavar="SPAN", help="Examine produces that waited longer than this (500ms) instead.")
@click.option("--timeout", metavar="SPAN", multiple=True, help="A timeout to evaluate, such as 800ms; may be repeated.")
@click.option("--top", type=NUMBER, default=20, help="Number of hot keys to list for each kind.")
@click.option("--slo", metavar="PERCENT", help="An objective, such as 99.5%: shows the error budget burnt by expiry.")
def report(
    archive: str,
    out: str,
    since: str | None,
    until: str | None,
    topic: tuple[str, ...],
    window: str | None,
    slow_share: float,
    slow_over: str | None,
    timeout: tuple[str, ...],
    top: int,
    slo: str | None,
) -> None:
    """Reports on a purgatory: rates, waits, backlog, hot keys, stragglers, advice on timeouts, anomalies."""
    import pyarrow as pa

    from purgatory_pipeline.archive.accounting import account
    from purgatory_pipeline.archive.catalog import find_archive
    from purgatory_pipeline.location import open_output
    from purgatory_pipeline.report.objective import parse_objective
    from purgatory_pipeline.report.report_builder import ReportOptions, make_report, write_tables
    from purgatory_pipeline.report.report_tables import TABLES
    from purgatory_pipeline.spark.spark_session import spark_session, unwrapped_errors
    from purgatory_pipeline.time_arguments import parse_span_ms, parse_window

    start, end = parse_window(since, until)
    options = ReportOptions(
        window_ms=parse_span_ms("--window", window) if window else WINDOWS_MS[-1],
        slow_share=slow_share,
        slow_over_ms=parse_span_ms("--slow-over", slow_over) if slow_over else None,
        top=top,
        timeouts_ms=tuple(parse_span_ms("--timeout", text) for text in timeout),
        objective=parse_objective(slo) if slo else None,
    )
    found = find_archive(archive)
    if not window:
        options = replace(options, window_ms=window_for(*_bounds(found, start, end)))
    place = open_output(out)
    ThreadPoolExecutor(1).submit(_prepare_page)  # while Java starts
    spark = spark_session("report", rows=found.all_rows)
    intake = account(spark, found, since=start, until=end, topics=topic or None)
    intake.print()
    found = replace(found, doubled=intake.doubled)
    read = partial(found.read, spark, since=start, until=end, topics=topic or None)
    registrations, outcomes, events = (read(table) for table in ("registrations", "outcomes", "events"))
    with unwrapped_errors():
        made = make_report(registrations, outcomes, events, options, is_matched=intake.is_matched)
        known = {"intake": pa.Table.from_pylist(intake.rows(), TABLES["intake"].schema), **made.known}
        written = write_tables(made.computed, known, place)
        made.release()
    for line in advised(written["advice"][0]):
        click.echo(line)
    page = _write_page(found, intake.notes(), made, options, written, place)
    click.echo(f"tables in {out}/tables and {out}/csv; the page: {page}")


@click.command()
@click.argument("archive", metavar="ARCHIVE", help="Folder or URI of the archive.")
@click.option("--slo", metavar="PERCENT", required=True, help="The share that may not expire, such as 99.5%.")
@click.option("--out", metavar="DIR", required=True, help="Folder for timeouts.toml, the table and the page.")
def advise(archive: str, slo: str, out: str) -> None:
    """Finds the smallest timeouts that meet an objective, and confirms them by a replay."""
    from purgatory_pipeline.archive.accounting import counted
    from purgatory_pipeline.archive.catalog import find_archive
    from purgatory_pipeline.location import open_output, write_file
    from purgatory_pipeline.page import document, wording
    from purgatory_pipeline.report.advice_page import advice_page
    from purgatory_pipeline.report.objective import advise_timeouts, parse_objective, to_toml
    from purgatory_pipeline.spark.spark_session import spark_session, unwrapped_errors

    objective = parse_objective(slo)
    found = find_archive(archive)
    place = open_output(out)
    with unwrapped_errors():
        rows, different = advise_timeouts(spark_session("advise", rows=found.all_rows), found, objective)
    click.echo(f"unchanged policy: {counted(different, 'operations did not end as recorded')}")
    shown = rows.map(lambda value: wording.text(value) if isinstance(value, str) and value else value)
    click.echo(shown.to_string(index=False, na_rep="-", float_format="{:.4g}".format))
    write_file(place, "timeouts.toml", to_toml(rows, objective).encode())
    write_file(place, "timeouts.csv", rows.to_csv(index=False).encode())
    subtitle = wording.subtitle(found.uri, *_bounds(found), int(rows["operations"].sum()))
    page = write_file(place, "advise.html", document.render(advice_page(rows, subtitle, slo, different)).encode())
    click.echo(f"defaults for clients: {out}/timeouts.toml; the page: {page}")


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--out", metavar="DIR", required=True, help="Folder for both reports and the page.")
@click.option("--topic", multiple=True, help="Only this topic (or key); may be repeated.")
@click.option("--window", metavar="SPAN", help="Length of a time window, whose counts are one observation.")
@click.pass_context
def compare(
    context: click.Context, first: str, second: str, out: str, topic: tuple[str, ...], window: str | None
) -> None:
    """Reports on A and B, and compares them: was it the release?

    A and B are archives, or a part of one: ARCHIVE@FROM..TO, where FROM or TO may be empty.
    """
    from pyarrow import dataset

    from purgatory_pipeline.location import open_output, write_file
    from purgatory_pipeline.page import document
    from purgatory_pipeline.report.differences import compare_page, differences, in_words
    from purgatory_pipeline.report.report_tables import TABLES

    place = open_output(out)
    frames = []
    for name, given in (("a", first), ("b", second)):
        period = _PERIOD.fullmatch(given)
        archive, since, until = period.groups() if period else (given, None, None)
        folder = place.child(name)
        context.invoke(report, archive=archive, out=folder.uri, since=since, until=until, topic=topic, window=window)
        tables = {
            table: dataset.dataset(f"{folder.root}/tables/{table}", filesystem=place.filesystem, format="parquet")
            for table in TABLES
        }
        frames.append({table: rows.to_table().to_pandas() for table, rows in tables.items()})
    rows = differences(*frames)
    write_file(place, "compare.csv", rows.to_csv(index=False).encode())
    page = write_file(place, "compare.html", document.render(compare_page(rows, first, second)).encode())
    for row in in_words(rows[rows["clear"]]).head(PRINTED).itertuples(index=False):
        click.echo(f"{row.of}, {row.measure}: {row.a} -> {row.b}, {row.difference} ({row.bounds})")
    click.echo(f"tables in {out}/a/tables, {out}/b/tables and {out}/compare.csv; the page: {page}")


def advised(advice: pd.DataFrame) -> list[str]:
    """The advice for the topics with the most operations, a line each.

    If a kind has a single topic, "all topics" is left out.
    """
    from purgatory_pipeline.page import wording

    topics = advice.groupby("kind")["topic"].transform("count")
    shown = advice[advice["topic"].notna() | (topics != 1)].head(ADVISED)
    rows = zip(shown["kind"], shown["topic"], shown["sentence"], strict=True)
    return [
        f"{kind}, {'all topics' if wording.is_missing(topic) else wording.text(topic)}: {sentence}"
        for kind, topic, sentence in rows
    ]


def window_for(first: datetime | None, last: datetime | None) -> int:
    """A window length in milliseconds that suits the time between two instants."""
    if first is None or last is None:
        return WINDOWS_MS[-1]
    lasts_ms = (last - first).total_seconds() * 1_000
    return max((length for length in WINDOWS_MS if lasts_ms >= WINDOWS_MIN * length), default=WINDOWS_MS[0])


def _prepare_page() -> None:
    """Does what takes a second or two of the page, and needs no figures."""
    from purgatory_pipeline.page import document
    from purgatory_pipeline.report.report_page import report_page  # noqa: F401 -- imported for later

    document.libraries()


def _write_page(
    found: ArchiveCatalog, notes: Sequence[str], made: Report, options: ReportOptions, written: Written, place: Location
) -> str:
    import pyspark

    from purgatory import __version__
    from purgatory.extensions.archive import schema
    from purgatory_pipeline.location import write_file
    from purgatory_pipeline.page import document
    from purgatory_pipeline.report.report_page import report_page
    from purgatory_pipeline.report.report_tables import ReportInfo

    frames, rows = ({name: both[part] for name, both in written.items()} for part in (0, 1))
    first_at, last_at = _bounds(found)
    info = ReportInfo(
        archive=found.uri,
        first_at=first_at,
        last_at=last_at,
        window_ms=options.window_ms,
        slow_over_ms=made.slow_over_ms,
        slow_share=options.slow_share,
        totals=made.totals,
        rows=rows,
        objective=options.objective,
        notes=tuple(notes),
        versions={"purgatory": __version__, "schema": str(schema.VERSION), "spark": pyspark.__version__},
    )
    return write_file(place, "report.html", document.render(report_page(frames, info)).encode())


def _bounds(
    found: ArchiveCatalog, since: datetime | None = None, until: datetime | None = None
) -> tuple[datetime | None, datetime | None]:
    """The first and the last instant of an archive's rows within a window, from its files."""
    first = min((file.first_at for file in found.used if file.first_at is not None), default=None)
    last = max((file.last_at for file in found.used if file.last_at is not None), default=None)
    begin = max(filter(None, (first, since)), default=None)
    return begin, min(filter(None, (last, until)), default=None)
