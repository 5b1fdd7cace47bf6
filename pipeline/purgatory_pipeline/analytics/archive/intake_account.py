"""The account of an intake: an archive's files and rows, used or set aside with a reason, and inconsistencies."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from purgatory.extensions.archive import schema
from purgatory_pipeline.analytics.archive.daemon_runs import OPEN, DaemonRun
from purgatory_pipeline.analytics.archive.survey import USED

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
        return f"{self.count:,} {self.name}: {self.meaning}"


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

    def found(self, name: str) -> int:
        """The total count of the findings with this name."""
        return sum(finding.count for finding in self.findings if finding.name == name)

    def notes(self) -> list[str]:
        """Sentences to read before any figures; empty if there is nothing to report."""
        return [finding.sentence for finding in self.findings if not finding.is_ordinary]

    def rows(self) -> list[dict[str, object]]:
        return [
            {"table": line.table, "reason": line.reason, "files": line.files, "rows": line.rows} for line in self.lines
        ]

    def print(self, console: Console | None = None) -> None:
        """Prints the account as a table with totals, followed by the findings."""
        console = console or Console(soft_wrap=True)
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
