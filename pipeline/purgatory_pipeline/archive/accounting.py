"""Builds the account of an archive from its files, its daemon runs and the survey of its rows."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from purgatory.extensions.archive import schema
from purgatory_pipeline.archive import intake_account as names
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.archive.daemon_runs import DaemonRun, read_runs
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.intake_account import (
    IntakeAccount,
    IntakeLine,
    clock_findings,
    loss_findings,
    unmatched_findings,
)
from purgatory_pipeline.archive.survey import BUCKET, OTHER_TOPIC, OUTSIDE, SIDES, USED, Selection, Survey, survey_files
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.spark.spark_session import SMALL_ROWS, unwrapped_errors
from purgatory_pipeline.spark.tasks import frame_of, parallelism, queried, results_of

ROWS_PER_TASK: Final = 2_000_000
SURVEYS_MAX: Final = 64
"""Maximum number of survey tasks. Each sends the driver less than 1 MB."""
LATE: Final = timedelta(hours=1)
"""Outcomes are searched for up to this long after the operation's timeout."""
_MARGIN: Final = timedelta(minutes=1)
"""Around a window, as the wall clock may have jumped between an operation's registration and its outcome."""

Spans = dict[str, tuple[datetime | None, datetime | None]]


def account(
    spark: SparkSession,
    archive: ArchiveCatalog,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    topics: Iterable[str] | None = None,
) -> IntakeAccount:
    """Reads a few columns of the files once and accounts for every row that `read` returns for the same arguments.

    The account covers operations registered in the window; their outcomes may be later than the window.
    """
    topics = None if topics is None else list(topics)
    window = Selection.of(since, until, topics)
    runs = read_runs(archive)
    spans = _spans_to_read(archive, since, until)
    files = [file for table, (start, end) in spans.items() for file in archive.files(table, since=start, until=end)]
    with unwrapped_errors():
        survey = _survey(spark, archive.uri, files, window)
        archive = replace(archive, doubled=frozenset(survey.doubled))
        differing = survey.differing()
        unmatched = _unmatched(spark, archive, runs, spans, window, differing) if differing.any() else []
    findings = [
        *clock_findings(survey.clocks),
        *unmatched_findings(unmatched, runs, archive),
        *loss_findings(runs, archive, survey.earlier),
    ]
    twice = {
        table: archive.duplicate_rows(spark, table, since=since, until=until, topics=topics) for table in schema.TABLES
    }
    lines = _lines(archive, survey, files, twice)
    is_matched = since is None and until is None and not differing.any()
    return IntakeAccount(archive.uri, tuple(lines), tuple(findings), tuple(runs), archive.doubled, is_matched)


def chunked(files: Sequence[ArchiveFile], tasks_min: int, tasks_max: int) -> list[list[ArchiveFile]]:
    """Groups files into chunks of about equal row counts, one per task. Files written together stay together."""
    rows = sum(file.rows for file in files)
    tasks = min(max(tasks_min, rows // ROWS_PER_TASK, 1), tasks_max)
    chunks: list[list[ArchiveFile]] = [[]]
    passed = 0
    for file in sorted(files, key=lambda file: (file.run_id, file.first_call or 0, file.path)):
        if passed * tasks >= rows * len(chunks):
            chunks.append([])
        chunks[-1].append(file)
        passed += file.rows
    return chunks


def _spans_to_read(archive: ArchiveCatalog, since: datetime | None, until: datetime | None) -> Spans:
    """By table, when rows of the window may be, and of outcomes those of operations registered in it."""
    # Wider than the window: the wall clock may have jumped, and an operation may end long after the window.
    early = None if since is None else since - _MARGIN
    last = late = None if until is None else until + _MARGIN
    if until is not None:
        files = archive.files(schema.REGISTRATIONS, since=early, until=late)
        timeouts = [file.timeout_ms_max for file in files]
        known = [timeout for timeout in timeouts if timeout is not None]
        last = until + timedelta(milliseconds=max(known, default=0)) + LATE if len(known) == len(timeouts) else None
    return {
        schema.REGISTRATIONS: (early, late),
        schema.OUTCOMES: (since, last),
        schema.EVENTS: (since, until),
        schema.CALLS: (since, until),
        schema.MARKERS: (None, None),
    }


def _survey(spark: SparkSession, uri: str, files: list[ArchiveFile], window: Selection) -> Survey:
    if sum(file.rows for file in files) <= SMALL_ROWS:
        return survey_files(uri, files, window)
    chunks = chunked(files, parallelism(spark), SURVEYS_MAX)
    return reduce(Survey.add, results_of(spark, chunks, lambda chunk: survey_files(uri, chunk, window)))


def _unmatched(
    spark: SparkSession,
    archive: ArchiveCatalog,
    runs: Sequence[DaemonRun],
    spans: Spans,
    window: Selection,
    differing: Flags,
) -> list[Row]:
    """The rows of `unmatched.sql`."""
    buckets = F.broadcast(frame_of(spark, pa.table({"bucket": np.flatnonzero(differing)})))
    sides = {
        table: archive.read(spark, table, since=spans[table][0], until=spans[table][1], topics=window.topics)
        .withColumn("bucket", F.expr(BUCKET))
        .join(buckets, "bucket", "left_semi")
        for table in SIDES
    }
    first_at = {file.run_id: file.first_at for file in reversed(archive.files(schema.REGISTRATIONS))}
    instants = {"first_at": [first_at.get(run.run_id) for run in runs], "started_at": [run.started_at for run in runs]}
    known = {name: pa.array(values, pa.timestamp("us", "UTC")) for name, values in instants.items()}
    starts = frame_of(spark, pa.table({"run_id": [run.run_id for run in runs], **known}))
    bounds = {"since_ms": window.since_ms, "until_ms": window.until_ms, "accepted": schema.ACCEPTED}
    return queried("archive", "unmatched", **sides, runs=starts, **bounds).collect()


def _lines(
    archive: ArchiveCatalog, survey: Survey, read: Sequence[ArchiveFile], twice: dict[str, int]
) -> list[IntakeLine]:
    seen = {file.path for file in read}
    lines: list[IntakeLine] = []
    for table in schema.TABLES:
        files = archive.files(table)
        unread = sum(file.rows for file in files if file.path not in seen)
        of_rows = {
            OUTSIDE: survey.rows[table, OUTSIDE] + unread,
            OTHER_TOPIC: survey.rows[table, OTHER_TOPIC],
            names.TWICE: twice[table],
        }
        lines.append(IntakeLine(table, USED, len(files), survey.rows[table, USED] - twice[table]))
        lines += [IntakeLine(table, reason, 0, rows) for reason, rows in of_rows.items() if rows]
    aside: defaultdict[tuple[str, str], list[int | None]] = defaultdict(list)
    for file in archive.set_aside:
        aside[file.table, file.reason].append(file.rows)
    for (table, reason), rows in aside.items():
        known = [count for count in rows if count is not None]
        lines.append(IntakeLine(table, reason, len(rows), sum(known) if len(known) == len(rows) else None))
    order = [*schema.TABLES, ""]
    return sorted(lines, key=lambda line: (order.index(line.table), line.reason != USED, line.reason))
