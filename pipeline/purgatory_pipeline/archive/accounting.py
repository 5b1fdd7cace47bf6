"""The account of an intake: an archive's files and rows, used or set aside with a reason, and what is inconsistent:
clocks that went backwards, and missing registrations or outcomes with their cause.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from purgatory.extensions.archive import schema
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.archive.daemon_runs import OPEN, DaemonRun, read_runs
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.survey import (
    BUCKET,
    OTHER_TOPIC,
    OUTSIDE,
    SIDES,
    USED,
    FileClock,
    Selection,
    Survey,
    survey_files,
)
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.spark.spark_session import SMALL_ROWS, unwrapped_errors
from purgatory_pipeline.spark.tasks import frame_of, parallelism, queried, results_of

TWICE: Final = "duplicates"
"""A reason for setting aside rows of used files, besides OUTSIDE and OTHER_TOPIC."""

# Names of findings.
TIME_FELL: Final = "steps back of the engine's clock"
WALL_FELL: Final = "steps back of the wall clock"
PENDING: Final = "registrations without outcome, still pending"
CRASHED: Final = "registrations without outcome, the run crashed"
OUTCOME_DROPPED: Final = "registrations without outcome, dropped by a slow disk"
OUTCOME_SET_ASIDE: Final = "registrations without outcome, a file was set aside"
KEPT: Final = "registrations without outcome, kept by the daemon's journal"
OUTCOME_MISSING: Final = "registrations without outcome, for no known reason"
EARLIER: Final = "outcomes of operations registered before the window"
EARLIER_RUN: Final = "outcomes of operations registered in an earlier run"
ROLLED_AWAY: Final = "outcomes without registration, which was rolled away"
REGISTRATION_DROPPED: Final = "outcomes without registration, dropped by a slow disk"
REGISTRATION_SET_ASIDE: Final = "outcomes without registration, a file was set aside"
REGISTRATION_MISSING: Final = "outcomes without registration, for no known reason"
REPEATED: Final = "operations with more than one registration or outcome"
DROPPED: Final = "rows dropped because the disk was too slow"
CRASHES: Final = "runs that crashed"
FILES_MISSING: Final = "missing files"
UNFINISHED: Final = "unfinished files"

MEANINGS: Final = {
    PENDING: "of runs that have not ended; they count as waiting until the last row",
    CRASHED: "their outcomes may be among the rows lost, or a journal kept them for a run that has not ended them; "
    "they count as waiting until the last row of their run",
    OUTCOME_DROPPED: "their outcomes are among the dropped rows",
    OUTCOME_SET_ASIDE: "their outcomes are probably in that file",
    KEPT: "where their outcome is in the daemon's next run, they count once; others as waiting until the last row of "
    "their own run",
    OUTCOME_MISSING: "their run ended, and no marker says that rows were lost",
    EARLIER: "they count as ended, not as registered",
    EARLIER_RUN: "the daemon's journal kept them over a restart; they count once where the earlier run is there",
    ROLLED_AWAY: "they count as ended, not as registered",
    REGISTRATION_DROPPED: "their registrations are among the dropped rows",
    REGISTRATION_SET_ASIDE: "their registrations are probably in that file",
    REGISTRATION_MISSING: "no marker says that rows were lost",
    REPEATED: "each counts as often as it occurs",
    UNFINISHED: "of runs that are alive, or that died before the files were complete; not read",
}
"""Explanations of findings that do not depend on the archive."""

ORDINARY: Final = frozenset({PENDING, KEPT, EARLIER, EARLIER_RUN, ROLLED_AWAY, UNFINISHED})
"""Findings that are normal for a part of a history: nothing was lost."""


@dataclass(frozen=True)
class IntakeLine:
    """Files and rows of one table with one reason: USED, or why they were set aside. `rows` is None if they cannot be
    counted.

    `files` is 0 if only some rows of used files were set aside.
    """

    table: str
    reason: str
    files: int
    rows: int | None


@dataclass(frozen=True)
class IntakeFinding:
    """An inconsistency: its name, its count, and an explanation."""

    name: str
    count: int
    meaning: str

    @property
    def is_ordinary(self) -> bool:
        return self.name in ORDINARY

    @property
    def sentence(self) -> str:
        return f"{counted(self.count, self.name)}: {self.meaning}"


@dataclass(frozen=True)
class IntakeAccount:
    """The account of an archive. The lines of a table add up to all its rows."""

    uri: str
    lines: tuple[IntakeLine, ...]
    findings: tuple[IntakeFinding, ...]
    runs: tuple[DaemonRun, ...]
    doubled: frozenset[str] = frozenset()
    """Files with duplicate rows, as in `ArchiveCatalog.doubled`."""
    is_matched: bool = False
    """No rows were left out, and every accepted registration has exactly one outcome and vice versa."""

    def rows_in(self, table: str | None = None) -> int:
        """Number of rows found, in one table or in all. Rows that cannot be counted are ignored."""
        return sum(line.rows or 0 for line in self._of(table))

    def rows_used(self, table: str | None = None) -> int:
        return sum(line.rows or 0 for line in self._of(table) if line.reason == USED)

    def rows_set_aside(self, table: str | None = None) -> int:
        return sum(line.rows or 0 for line in self._of(table) if line.reason != USED)

    def notes(self) -> list[str]:
        """Sentences to read before any figures; empty if there is nothing to report."""
        return [finding.sentence for finding in self.findings if not finding.is_ordinary]

    def rows(self) -> list[dict[str, object]]:
        return [asdict(line) for line in self.lines]

    def print(self) -> None:
        """Prints the account as a table with totals, followed by the findings."""
        console = Console(soft_wrap=True)
        states = Counter(run.state for run in self.runs)
        ended = ", ".join(f"{states[state]} {state}" for state in (schema.ENDED, schema.CRASHED, OPEN) if states[state])
        runs = f"{len(self.runs)} run" + ("" if len(self.runs) == 1 else "s")
        table = Table(title=f"{self.uri}: {runs} ({ended})", title_justify="left", box=None)
        table.add_column("table")
        table.add_column("", overflow="fold")
        table.add_column("files", justify="right")
        table.add_column("rows", justify="right")
        for line in self.lines:
            table.add_row(line.table, line.reason, f"{line.files:,}", "?" if line.rows is None else f"{line.rows:,}")
        console.print(table)
        console.print(
            f"in {self.rows_in():,} rows = used {self.rows_used():,} + set aside {self.rows_set_aside():,}",
            highlight=False,
        )
        for finding in self.findings:
            console.print(finding.sentence, highlight=False)

    def _of(self, table: str | None) -> Sequence[IntakeLine]:
        return [line for line in self.lines if table is None or line.table == table]


_SHOWN: Final = 3


def clock_findings(clocks: Iterable[FileClock]) -> list[IntakeFinding]:
    """Clock falls within files, and from one file of a run's table to the next."""
    by_table: defaultdict[tuple[str, str], list[FileClock]] = defaultdict(list)
    for clock in clocks:
        if clock.last_call >= 0:
            by_table[clock.run_id, clock.table].append(clock)
    findings = []
    for index, name in enumerate((TIME_FELL, WALL_FELL)):
        falls: list[tuple[str, int, int]] = []
        for (run_id, _), files in by_table.items():
            files.sort(key=lambda file: (file.first_call, file.last_call))
            falls += [(run_id, file.falls[index], file.deepest_fall_ms[index]) for file in files]
            for earlier, later in pairwise(files):
                if earlier.last_call <= later.first_call:
                    fall_ms = earlier.last_ms[index] - later.first_ms[index]
                    falls.append((run_id, int(fall_ms > 0), fall_ms))
        count, deepest_ms = sum(number for _, number, _ in falls), max((fall for *_, fall in falls), default=0)
        runs = some_runs({run_id for run_id, number, _ in falls if number})
        findings.append(IntakeFinding(name, count, f"by up to {deepest_ms:,} ms, in {runs}; calls keep their order"))
    return [finding for finding in findings if finding.count]


def unmatched_findings(
    unmatched: Iterable[Row], runs: Sequence[DaemonRun], archive: ArchiveCatalog
) -> list[IntakeFinding]:
    """Rows of `unmatched.sql`, explained by their run's markers and set-aside files."""
    by_id = {run.run_id: run for run in runs}
    counts: Counter[str] = Counter()
    whose: defaultdict[str, set[str]] = defaultdict(set)
    for one in unmatched:
        name = _reason(one, by_id.get(one.run_id, DaemonRun(one.run_id)), archive)
        counts[name] += one.operations
        whose[name].add(one.run_id)
    return [
        IntakeFinding(name, counts[name], f"{MEANINGS[name]} ({some_runs(whose[name])})")
        for name in MEANINGS
        if counts[name]
    ]


def loss_findings(runs: Sequence[DaemonRun], archive: ArchiveCatalog, earlier: int) -> list[IntakeFinding]:
    """Rows lost according to markers, unfinished files, and operations cut off by the window."""
    dropped: Counter[str] = Counter()
    for run in runs:
        dropped.update(run.dropped_rows)
    crashed = [run.run_id for run in runs if run.state == schema.CRASHED]
    tables = ", ".join(f"{rows:,} of {table}" for table, rows in sorted(dropped.items()))
    findings = [
        IntakeFinding(DROPPED, dropped.total(), f"{tables}; lost, as counted by the daemon that wrote the archive"),
        IntakeFinding(CRASHES, len(crashed), f"{some_runs(crashed)}; rows in files not yet complete are lost"),
        missing_files(runs, archive),
        IntakeFinding(EARLIER, earlier, MEANINGS[EARLIER]),
        IntakeFinding(UNFINISHED, archive.leftovers, MEANINGS[UNFINISHED]),
    ]
    return [finding for finding in findings if finding.count]


def missing_files(runs: Sequence[DaemonRun], archive: ArchiveCatalog) -> IntakeFinding:
    """Gaps in the file numbers. After dropped rows, a number may have been assigned but never used.

    Retention may have deleted the first registration and outcome files; that shows up as operations with only one end.
    """
    found = []
    for run in runs:
        for table in set(schema.TABLES) - {schema.MARKERS, *run.dropped_rows}:
            first = 1 if run.started_at is not None and table not in SIDES else None
            missing = archive.missing_files(table, run.run_id, first=first, last=run.last_files.get(table, 0))
            found += [f"{table} {number} of {run.run_id}" for number in missing]
    return IntakeFinding(FILES_MISSING, len(found), f"{some_runs(found)}; their rows are not in any figure")


def counted(count: int, things: str) -> str:
    """A number and its things; of one, the first plural becomes a singular: 1 run that crashed."""
    return f"{count:,} " + (things if count != 1 else re.sub(r"s\b", "", things, count=1))


def some_runs(run_ids: Iterable[str]) -> str:
    """The first few names, and the number of the remaining ones."""
    known = sorted(run_ids)
    more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def _reason(one: Row, run: DaemonRun, archive: ArchiveCatalog) -> str:
    if one.what == "no outcome":
        if one.continued and run.has_journal:
            return KEPT
        if archive.lost_files(schema.OUTCOMES, run.run_id):
            return OUTCOME_SET_ASIDE
        # An ended run has written all its outcomes. A missing one was dropped, or its wait continues in the journal:
        # then the next run writes the outcome under its own run id.
        if run.state == schema.ENDED:
            if run.dropped_rows.get(schema.OUTCOMES):
                return OUTCOME_DROPPED
            return KEPT if run.has_journal else OUTCOME_MISSING
        return PENDING if run.state == OPEN else CRASHED
    if one.what == "no registration":
        if archive.lost_files(schema.REGISTRATIONS, run.run_id):
            return REGISTRATION_SET_ASIDE
        # Registered before this run began: the registration is in the run that this one continues.
        if (one.before_run or one.continued) and run.is_continued:
            return EARLIER_RUN
        if one.early:
            return ROLLED_AWAY
        return REGISTRATION_DROPPED if run.dropped_rows.get(schema.REGISTRATIONS) else REGISTRATION_MISSING
    return REPEATED


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
    twice = {table: archive.duplicate_rows(spark, table, (since, until, topics)) for table in schema.TABLES}
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
            TWICE: twice[table],
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
