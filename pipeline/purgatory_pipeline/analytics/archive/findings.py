"""Findings about an archive as text: clocks that went backwards, missing registrations or outcomes, and the cause."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from purgatory.extensions.archive import schema
from purgatory_pipeline.analytics.archive import intake_account as names
from purgatory_pipeline.analytics.archive.catalog import ArchiveCatalog
from purgatory_pipeline.analytics.archive.clocks import FileClock
from purgatory_pipeline.analytics.archive.daemon_runs import OPEN, DaemonRun
from purgatory_pipeline.analytics.archive.intake_account import MEANINGS, IntakeFinding
from purgatory_pipeline.analytics.archive.survey import SIDES
from purgatory_pipeline.analytics.archive.unmatched_operations import NO_OUTCOME, NO_REGISTRATION, UnmatchedCount

_SHOWN: int = 3


def clock_findings(clocks: Iterable[FileClock]) -> list[IntakeFinding]:
    """Clock falls within files, and from one file of a run's table to the next."""
    by_table: defaultdict[tuple[str, str], list[FileClock]] = defaultdict(list)
    for clock in clocks:
        if clock.last_call >= 0:
            by_table[clock.run_id, clock.table].append(clock)
    findings = []
    for index, name in enumerate((names.TIME_FELL, names.WALL_FELL)):
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
    unmatched: Sequence[UnmatchedCount], runs: Sequence[DaemonRun], archive: ArchiveCatalog
) -> list[IntakeFinding]:
    """Operations with only a registration or only an outcome, explained by their run's markers and set-aside files."""
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
        IntakeFinding(
            names.DROPPED, dropped.total(), f"{tables}; lost, as counted by the daemon that wrote the archive"
        ),
        IntakeFinding(names.CRASHES, len(crashed), f"{some_runs(crashed)}; rows in files not yet complete are lost"),
        missing_files(runs, archive),
        IntakeFinding(names.EARLIER, earlier, MEANINGS[names.EARLIER]),
        IntakeFinding(names.UNFINISHED, archive.leftovers, MEANINGS[names.UNFINISHED]),
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
    return IntakeFinding(names.FILES_MISSING, len(found), f"{some_runs(found)}; their rows are not in any figure")


def some_runs(run_ids: Iterable[str]) -> str:
    """The first few names, and the number of the remaining ones."""
    known = sorted(run_ids)
    more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def _reason(one: UnmatchedCount, run: DaemonRun, archive: ArchiveCatalog) -> str:
    if one.what == NO_OUTCOME:
        if one.continued and run.has_journal:
            return names.KEPT
        if archive.lost_files(schema.OUTCOMES, run.run_id):
            return names.OUTCOME_SET_ASIDE
        # An ended run has written all its outcomes. A missing one was dropped, or its wait continues in the journal:
        # then the next run writes the outcome under its own run id.
        if run.state == schema.ENDED:
            if run.dropped_rows.get(schema.OUTCOMES):
                return names.OUTCOME_DROPPED
            return names.KEPT if run.has_journal else names.OUTCOME_MISSING
        return names.PENDING if run.state == OPEN else names.CRASHED
    if one.what == NO_REGISTRATION:
        if archive.lost_files(schema.REGISTRATIONS, run.run_id):
            return names.REGISTRATION_SET_ASIDE
        # Registered before this run began: the registration is in the run that this one continues.
        if (one.before_run or one.continued) and run.is_continued:
            return names.EARLIER_RUN
        if one.early:
            return names.ROLLED_AWAY
        return names.REGISTRATION_DROPPED if run.dropped_rows.get(schema.REGISTRATIONS) else names.REGISTRATION_MISSING
    return names.REPEATED
