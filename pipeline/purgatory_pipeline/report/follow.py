"""The report of an archive that grows: each update counts the new files alone and adds them to what was counted.

The archive's own catalog says which files are new, so whatever the intake sets aside is set aside here too. An update
is a set of files; it is committed whole or not at all, so a process that dies is followed by one that takes the same
files again. Where files that were counted are gone, or overlap with new ones, all is counted anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import typer
from pyspark.sql import SparkSession

from purgatory.archive import schema
from purgatory_pipeline.archive.accounting import account_of_files
from purgatory_pipeline.archive.catalog import ArchiveCatalog, find_archive
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.archive.location import Location
from purgatory_pipeline.report import outputs
from purgatory_pipeline.report.report_builder import FROM_ROWS, Report, ReportOptions, report_of
from purgatory_pipeline.report.report_tables import INTAKE
from purgatory_pipeline.report.stored_counts import StoredCounts

if TYPE_CHECKING:
    from purgatory_pipeline.archive.intake_account import IntakeAccount

COUNTS: Final = "counts"
"""The folder of the counts, in DIR."""
COUNTED: Final = (schema.REGISTRATIONS, schema.OUTCOMES)
REST: Final = 9
"""Tables from rows are made again after this many times as long as they took: a tenth of the time at most."""


@dataclass(frozen=True)
class FollowedReport:
    """What was written last. `as_of`: when the tables from rows were made."""

    found: ArchiveCatalog
    intake: IntakeAccount
    made: Report
    options: ReportOptions
    written: outputs.Written
    as_of: datetime
    is_whole: bool
    """Whether the tables from rows are as new as the others."""

    @property
    def notes(self) -> list[str]:
        """What a reader must know before the figures."""
        said = self.intake.notes()
        if self.is_whole:
            return said
        return [*said, f"{', '.join(FROM_ROWS)} are as of {self.as_of:%Y-%m-%d %H:%M:%S} UTC; all else is newer"]


class ReportFollower:
    """Keeps a report current. `window_for` chooses the length of a window by the archive; None: `options` has it."""

    def __init__(
        self,
        session: SparkSession,
        uri: str,
        place: Location,
        options: ReportOptions,
        window_for: Callable[[ArchiveCatalog], int] | None = None,
    ) -> None:
        self._session: Final = session
        self._uri: Final = uri
        self._place: Final = place
        self._options: Final = options
        self._window_for: Final = window_for
        self.stored: Final = StoredCounts(session, place, COUNTS)
        self._seen: tuple[ArchiveFile, ...] = ()
        self._listed: frozenset[str] = frozenset()
        self._last: FollowedReport | None = None
        self._rest_until_s = 0.0

    def update(self, *, whole: bool = False) -> FollowedReport | None:
        """Takes what is new and writes the tables; None: there is nothing to do.

        `whole`: the tables from rows are made again, however long that takes.
        """
        found = find_archive(self._uri, self._seen)
        self._seen = found.used
        listed = frozenset([*(f"{file.path} {file.rows}" for file in found.used), *(f.path for f in found.set_aside)])
        is_rested = whole or time.monotonic() >= self._rest_until_s
        last, is_new = self._last, listed != self._listed
        if last is not None and not is_new and (last.is_whole or not is_rested):
            return None
        options = self._options
        if self._window_for is not None:
            options = replace(options, window_ms=self._window_for(found))
        self.fold(found, options)
        self._last = self._written(found, options, is_whole=is_rested or last is None)
        self._listed = listed
        return self._last

    def fold(self, found: ArchiveCatalog, options: ReportOptions) -> int:
        """Counts what is new, and returns the number of its files."""
        files = {f"{file.path} {file.rows}": file for file in found.used if file.table in COUNTED}
        stored = self.stored
        if stored.folded is not None and not self._can_go_on(found, files, options):
            stored.forget()
        taken = stored.folded.files if stored.folded is not None else frozenset()
        new = {name: file for name, file in files.items() if name not in taken}
        if new or stored.folded is None:
            part = replace(found, used=tuple(new.values()))
            registrations, outcomes = (part.read(self._session, table) for table in COUNTED)
            stored.commit(stored.fold(registrations, outcomes, list(new), options))
        return len(new)

    def _can_go_on(self, found: ArchiveCatalog, files: dict[str, ArchiveFile], options: ReportOptions) -> bool:
        folded = self.stored.folded
        assert folded is not None
        repeated = {f"{file.path} {file.rows}" for table in COUNTED for file in found.overlapping(table)}
        return folded.is_of(options) and folded.files <= files.keys() and repeated <= folded.files

    def _written(self, found: ArchiveCatalog, options: ReportOptions, *, is_whole: bool) -> FollowedReport:
        intake = account_of_files(self._session, found)
        outcomes, events = (
            found.read(self._session, table) if is_whole else None for table in (schema.OUTCOMES, schema.EVENTS)
        )
        began_s, as_of = time.monotonic(), datetime.now(UTC)
        made = report_of(self.stored.counts(), outcomes, events, options)
        known = {INTAKE.name: pa.Table.from_pylist(intake.rows(), INTAKE.schema), **made.known}
        written = outputs.write_tables(made.computed, known, self._place)
        made.release()
        if is_whole:
            now_s = time.monotonic()
            self._rest_until_s = now_s + REST * (now_s - began_s)
        elif self._last is not None:
            as_of = self._last.as_of
            written |= {name: self._last.written[name] for name in FROM_ROWS}
        return FollowedReport(found, intake, made, options, written, as_of, is_whole)


def follow(follower: ReportFollower, show: Callable[[FollowedReport], str], every_ms: int, *, until_idle: bool) -> None:
    """Updates the report for good, or until there is nothing new; `show` makes the page and says where it is."""
    while True:
        updated = follower.update(whole=until_idle)
        if updated is not None:
            page = show(updated)
            totals = updated.made.totals
            typer.echo(
                f"{datetime.now(UTC):%H:%M:%S} {totals['registered']:,} registered, {totals['ended']:,} ended, "
                f"{totals['unfinished']:,} unfinished, from {len(updated.found.used):,} files; the page: {page}"
            )
        elif until_idle:
            return
        if not until_idle:
            time.sleep(every_ms / 1_000)
