"""For notebooks, and programs with a Spark session of their own: DataFrames in, DataFrames out.

    history = read(spark, "/var/lib/purgatory/archive", since="2026-11-20")
    report(spark, history).tables["advice"].select("topic", "kind", "sentence").show()
    replay(spark, "/var/lib/purgatory/archive", ["timeout_ms=800"]).groupBy("recorded", "replayed").count().show()

What cannot be used raises a `PipelineError`, which says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from purgatory.archive import schema
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.replay.policy import UNCHANGED, parse_policies
from purgatory_pipeline.replay.spark_jobs import replay_rows
from purgatory_pipeline.report.report_builder import Report, make_report
from purgatory_pipeline.report.report_options import ReportOptions
from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.time_arguments import parse_window

__all__ = ["TABLES", "Report", "ReportOptions", "read", "replay", "report"]

REPORTED: Final = (schema.REGISTRATIONS, schema.OUTCOMES, schema.EVENTS)
"""What a report is made of."""


def read(
    spark: SparkSession, archive: str, *, since: str = "", until: str = "", topics: Iterable[str] | None = None
) -> dict[str, DataFrame]:
    """The tables of an archive (a folder or URI) by name: registrations, outcomes, events, calls, markers.

    Their columns and units are those of docs/archive.md. Each row comes once, also where files overlap; files that
    cannot be used are left out (`purgatory_pipeline.archive.account` tells which). `since`, `until` and `topics` are
    those of the command line.
    """
    start, end = parse_window(since, until)
    found = find_archive(archive)
    chosen = None if topics is None else list(topics)
    return {table: found.read(spark, table, since=start, until=end, topics=chosen) for table in schema.TABLES}


def report(spark: SparkSession, history: Mapping[str, DataFrame] | str, options: ReportOptions | None = None) -> Report:
    """The tables of a report, from those of a history: what `read` gives, narrowed as one likes, or an archive's place.

    `tables` of the result has a DataFrame for each of `TABLES` but `intake`: groups, topics, windows, backlog,
    hot_keys, slow_produces, stragglers, advice, timeouts, survival, anomalies. `TABLES[name].columns` says of each
    column what it means and in which unit: `_ms` are milliseconds, instants are UTC, shares and rates 0 to 1. They are
    not sorted, and most are computed when used; `release()` frees what Spark holds for them.
    """
    tables = read(spark, history) if isinstance(history, str) else history
    lacks = [table for table in REPORTED if table not in tables]
    lacks += [
        f"{table}.{column}"
        for table in set(REPORTED) & set(tables)
        for column in schema.SCHEMAS[table].names
        if column not in tables[table].columns
    ]
    if lacks:
        raise ArchiveUnusable(f"the history lacks {', '.join(sorted(lacks))}: give what read() gives, with all columns")
    registrations, outcomes, events = (tables[table] for table in REPORTED)
    return make_report(registrations, outcomes, events, options)


def replay(
    spark: SparkSession,
    archive: str,
    settings: Sequence[str] = (),
    *,
    slow_replicas: Sequence[str] = (),
    sweeps: Sequence[str] = (),
) -> DataFrame:
    """A row for each operation of an archive and each policy: how it ended in life, and how it would have.

    The policies are the words of the command line: `["timeout_ms=800"]`, `["3=+20ms"]`, `["timeout_ms=100,200"]`; with
    none, the history as it was. It is replayed when the rows are used, straight from the archive's files, since order
    and completeness matter: so no DataFrames here. The columns:

    - `run_id`, `session_number`, `operation_id`: which operation
    - `kind`: produce, fetch, delete_records or signal; `topic`: of its first item (null: a signal); `item_count`
    - `policy`: as it was asked for, or `as recorded`
    - `recorded`, `recorded_waited_ms`: outcome and milliseconds waited in life; null: it has no end there
    - `replayed`, `replayed_waited_ms`: the same in the replay
    - `verdict`: `equal`, `different`, `no outcome` (in life) or `in doubt` (rows were lost before it ended)
    """
    policies = parse_policies(settings, slow_replicas, sweeps) or [UNCHANGED]
    return replay_rows(spark, find_archive(archive), policies)
