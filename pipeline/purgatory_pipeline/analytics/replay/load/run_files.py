"""Context of a run that a replay needs before its first row: the engine's settings, and the first call with missing
rows.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from purgatory.extensions.archive.layout import FILE_NUMBER
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.schema import CALLS, CRASHED, DROPPED, ENDED, EVENTS, STARTED
from purgatory_pipeline.analytics.archive.catalog import ArchiveCatalog
from purgatory_pipeline.analytics.archive.daemon_runs import details_of, last_files, read_markers
from purgatory_pipeline.analytics.archive.footer import ArchiveFile
from purgatory_pipeline.engine_rows.row_chunk import TABLES

NEVER: Final = 2**62
DECISIVE: Final = (EVENTS, CALLS)
"""Tables of which a lost row may change how other operations end."""


@dataclass(frozen=True)
class RunContext:
    """Context of a run, known before its first row is read."""

    run_id: str
    details: RunDetails
    first_ms: int = 0
    """The engine's clock at its beginning."""
    last_ms: int = 0
    """The engine's clock at its end; 0 if not known yet."""
    in_doubt_from: int = NEVER
    """The first call from which on rows are missing that other operations depend on."""
    repeated: bool = False
    """Some rows may be duplicated."""
    settings_known: bool = True


@dataclass(frozen=True)
class RunFiles:
    facts: RunContext
    files: tuple[ArchiveFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def find_runs(archive: ArchiveCatalog) -> list[RunFiles]:
    """The runs of an archive that have anything to replay, by id."""
    markers = read_markers(archive)
    files: defaultdict[str, list[ArchiveFile]] = defaultdict(list)
    repeated = set()
    for table in TABLES:
        for file in archive.files(table):
            if file.rows:
                files[file.run_id].append(file)
        repeated |= {file.run_id for file in archive.overlapping(table)}
    return [
        RunFiles(facts_of(run_id, markers.get(run_id, []), own, archive, run_id in repeated), tuple(own))
        for run_id, own in sorted(files.items())
    ]


def facts_of(
    run_id: str,
    markers: Sequence[dict[str, Any]],
    files: Sequence[ArchiveFile],
    archive: ArchiveCatalog,
    repeated: bool,
) -> RunContext:
    """The context of one run, from its markers and the files that are there or missing."""
    started = next((row for row in markers if row["marker"] == STARTED), None)
    known = None if started is None else details_of(started)
    details = known or RunDetails(version="")
    ends = [last_files(row) for row in markers if row["marker"] in (ENDED, CRASHED)]
    last = {table: max((end.get(table, 0) for end in ends), default=0) for table in DECISIVE}
    doubts = [_first_missing(run_id, table, files, archive, last[table]) for table in DECISIVE]
    doubts += [row["call_number"] for row in markers if row["marker"] == DROPPED and row["table"] in DECISIVE]
    doubts += _unfinished(markers, files)
    if details.continued:
        doubts.append(0)  # marks and operations came with the journal, not with this run's rows
    return RunContext(
        run_id,
        details,
        first_ms=max(started["time_ms"], 0) if started is not None else 0,
        last_ms=max((row["time_ms"] for row in markers if row["marker"] == ENDED), default=0),
        in_doubt_from=min(doubts),
        repeated=repeated,
        settings_known=known is not None,
    )


def _first_missing(run_id: str, table: str, files: Sequence[ArchiveFile], archive: ArchiveCatalog, last: int) -> int:
    """The first call that may be in a file of a table that is missing or set aside. Files are numbered from 1."""
    own = {file.file_number: file for file in files if file.table == table}
    named = [FILE_NUMBER.search(path) for path in archive.lost_files(table, run_id)]
    aside = [int(found[1]) for found in named if found is not None]
    if len(aside) < len(named):
        return 0
    missing = next((number for number in range(1, max([*own, *aside, last]) + 1) if number not in own), None)
    if missing is None:
        return NEVER
    before = [file.last_call for number, file in own.items() if number < missing and file.last_call is not None]
    return max(before, default=-1) + 1


def _unfinished(markers: Sequence[dict[str, Any]], files: Sequence[ArchiveFile]) -> list[int]:
    """For a run that did not end: the first call whose rows may be incomplete."""
    if any(row["marker"] == ENDED for row in markers):
        return []
    crashed = [row["call_number"] + 1 for row in markers if row["marker"] == CRASHED]
    events = [file.last_call for file in files if file.table == EVENTS and file.last_call is not None]
    return crashed or [max(events, default=NEVER) + 1]
