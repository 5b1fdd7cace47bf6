"""For notebooks, and programs with their own Spark session: DataFrames in, DataFrames out.

    history = read(spark, "/var/lib/purgatory/archive", since="2026-11-20")
    report(spark, history).tables["advice"].select("topic", "kind", "sentence").show()
    replay(spark, "/var/lib/purgatory/archive", ["timeout_ms=800"]).groupBy("recorded", "replayed").count().show()

Unusable input raises a `PipelineError` whose message contains a remedy.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from purgatory.extensions.archive import schema
from purgatory_pipeline.archive.catalog import find_archive
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.replay.policy import UNCHANGED, parse_policies, parse_policy
from purgatory_pipeline.replay.replay_task import replay_rows
from purgatory_pipeline.report.report_builder import Report, ReportOptions, make_report
from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.time_arguments import parse_window

__all__ = ["TABLES", "Report", "ReportOptions", "read", "replay", "report"]

REPORTED: Final = (schema.REGISTRATIONS, schema.OUTCOMES, schema.EVENTS)
"""The tables that a report needs."""


def read(
    spark: SparkSession, archive: str, *, since: str = "", until: str = "", topics: Iterable[str] | None = None
) -> dict[str, DataFrame]:
    """Reads the tables of an archive.

    Args:
        spark: Any session.
        archive: A folder or URI.
        since: Rows from this instant on, written as on the command line.
        until: Rows before this instant.
        topics: Rows of these topics only.

    Returns:
        A DataFrame for each table: registrations, outcomes, events, calls, markers. Columns and units are those of
        docs/archive.md. Each row comes once, even where files overlap. Unusable files are skipped;
        `purgatory_pipeline.archive.accounting.account` lists them.

    Raises:
        ArchiveUnusable, PipelineError: Nothing can be read; the message gives the reason.

    """
    start, end = parse_window(since, until)
    found = find_archive(archive)
    chosen = None if topics is None else list(topics)
    return {table: found.read(spark, table, since=start, until=end, topics=chosen) for table in schema.TABLES}


def report(spark: SparkSession, history: Mapping[str, DataFrame] | str, options: ReportOptions | None = None) -> Report:
    """Makes the tables of a report.

    Args:
        spark: Any session.
        history: The result of `read`, filtered as you like, or the location of an archive.
        options: Window length, what counts as slow, timeouts to judge.

    Returns:
        A `Report`. Its `tables` has a DataFrame for each of `TABLES` except `intake`: groups, topics, windows, backlog,
        hot_keys, principals, slow_produces, stragglers, advice, near_misses, timeouts, survival, anomalies.
        `TABLES[name].columns` describes each column and its unit: `_ms` are milliseconds, instants are UTC, shares and
        rates 0 to 1. Tables are not sorted, and most are computed when used; `release()` frees what Spark caches.

    Raises:
        ArchiveUnusable: A table or a column is missing.

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
        raise ArchiveUnusable(
            f"the history lacks {', '.join(sorted(lacks))}: pass the result of read() with all columns"
        )
    registrations, outcomes, events = (tables[table] for table in REPORTED)
    return make_report(registrations, outcomes, events, options)


def replay(
    spark: SparkSession,
    archive: str,
    settings: Sequence[str] = (),
    *,
    slow_replicas: Sequence[str] = (),
    without_replicas: Sequence[int] = (),
    leader_moves: str = "",
    sweeps: Sequence[str] = (),
) -> DataFrame:
    """Replays an archive under other policies.

    Rows are computed when they are used, straight from the archive's files: a replay depends on the order and the
    completeness of the rows, so it takes no DataFrames.

    Args:
        spark: Any session.
        archive: A folder or URI.
        settings: Changes as on the command line, such as `["timeout_ms=800"]`; with none, and none of the next four,
            the history is replayed unchanged.
        slow_replicas: Such as `["3=+20ms"]`.
        without_replicas: Ids of replicas, as if they were gone.
        leader_moves: How long each change of leadership takes, such as `10s`.
        sweeps: Such as `["timeout_ms=100,200"]`.

    Returns:
        A row for each operation and policy:

        - `run_id`, `session_number`, `operation_id`: which operation
        - `kind`: produce, fetch, delete_records or signal; `topic`: of its first item (null: a signal); `item_count`
        - `policy`: as requested, or `unchanged`, with which the others are compared; `as recorded` if there are none
        - `recorded`, `recorded_waited_ms`: recorded outcome and milliseconds waited; null: no outcome was recorded
        - `replayed`, `replayed_waited_ms`: the same in the replay
        - `verdict`: `equal`, `different`, `no outcome` (recorded) or `in doubt` (rows were lost before it ended).
          `unchanged` and `as recorded` are compared with the recording; only the latter expires what was late as late

    Raises:
        PipelineError, ArchiveUnusable: The policies or the archive cannot be used; the message gives the reason.

    """
    base = parse_policy(settings, slow_replicas, [str(replica_id) for replica_id in without_replicas], leader_moves)
    policies = parse_policies(base, sweeps)
    return replay_rows(spark, find_archive(archive), policies[1:] or [UNCHANGED])
