"""The files of a run: the context that a replay needs before the first row (the engine's settings, and the first call
with missing rows), and a reader of the columns that it needs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from purgatory.extensions.archive import schema
from purgatory.extensions.archive.layout import FILE_NUMBER
from purgatory.extensions.archive.run_details import RunDetails
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.archive.daemon_runs import details_of, last_files, read_markers
from purgatory_pipeline.archive.footer import ArchiveFile, open_parquet
from purgatory_pipeline.engine_rows.arrow_chunks import NAMED, NUMBERS, SETS, WORDS, chunk_of
from purgatory_pipeline.engine_rows.row_chunk import TABLES, RowChunk
from purgatory_pipeline.location import Location, reading
from purgatory_pipeline.replay.call_windows import NEVER

DECISIVE: Final = (schema.EVENTS, schema.CALLS)
"""Tables of which a lost row may change how other operations end."""


@dataclass(frozen=True)
class RunContext:
    """Context of a run, known before its first row is read."""

    run_id: str
    details: RunDetails
    first_ms: int = 0
    """The engine's clock at its beginning."""
    last_ms: int = 0
    """The engine's clock at its end, or else at its last row: a part of it cannot see the end of the others."""
    in_doubt_from: int = NEVER
    """The first call from which on rows are missing that other operations depend on."""
    repeated: bool = False
    """Some rows may be duplicated."""
    settings_known: bool = True
    marks: tuple[str, ...] = ()
    """Files that have the marks with which it continued a journal."""


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
    started = next((row for row in markers if row["marker"] == schema.STARTED), None)
    known = None if started is None else details_of(started)
    details = known or RunDetails(version="")
    ends = [last_files(row) for row in markers if row["marker"] in (schema.ENDED, schema.CRASHED)]
    last = {table: max((end.get(table, 0) for end in ends), default=0) for table in DECISIVE}
    doubts = [_first_missing(run_id, table, files, archive, last[table]) for table in DECISIVE]
    dropped = (row for row in markers if row["marker"] == schema.DROPPED)
    doubts += [row["call_number"] for row in dropped if row["table"] in (*DECISIVE, schema.MARKERS)]
    doubts += _unfinished(markers, files)
    ended_ms = [row["time_ms"] for row in markers if row["marker"] == schema.ENDED]
    marks = tuple(dict.fromkeys(row["detail"] for row in markers if row["marker"] == schema.MARKS))
    if details.continued and not marks:
        doubts.append(0)  # marks came with the journal, and are not recorded
    return RunContext(
        run_id,
        details,
        first_ms=max(started["time_ms"], 0) if started is not None else 0,
        last_ms=max([*(file.last_ms for file in files), *ended_ms]),
        in_doubt_from=min(doubts),
        repeated=repeated,
        settings_known=known is not None,
        marks=marks,
    )


def _first_missing(run_id: str, table: str, files: Sequence[ArchiveFile], archive: ArchiveCatalog, last: int) -> int:
    """The first call that may be in a file of a table that is missing or set aside. Files are numbered from 1."""
    aside = [FILE_NUMBER.search(path) for path in archive.lost_files(table, run_id)]
    missing = [0 if found is None else int(found[1]) for found in aside]
    missing += archive.missing_files(table, run_id, first=1, last=last)
    if not missing:
        return NEVER
    before = (file.last_call for file in files if file.table == table and file.file_number < min(missing))
    return max((call for call in before if call is not None), default=-1) + 1


def _unfinished(markers: Sequence[dict[str, Any]], files: Sequence[ArchiveFile]) -> list[int]:
    """For a run that did not end: the first call whose rows may be incomplete."""
    if any(row["marker"] == schema.ENDED for row in markers):
        return []
    crashed = [row["call_number"] + 1 for row in markers if row["marker"] == schema.CRASHED]
    events = [file.last_call for file in files if file.table == schema.EVENTS and file.last_call is not None]
    return crashed or [max(events, default=NEVER) + 1]


def columns_of(table: str, *, names: bool) -> list[str]:
    """The columns to read of a table; of outcomes, names only if they are asked for."""
    columns = [*NUMBERS[table], WORDS[table][0]]
    if table != schema.OUTCOMES or names:
        columns += NAMED
    if table in (schema.REGISTRATIONS, schema.EVENTS):
        columns.append("refusal_code")
    if table == schema.EVENTS:
        columns += SETS
    if table == schema.CALLS:
        columns.append("operation_ids")
    return columns


class TableReader:
    """A file of the archive, opened once. Raises `ArchiveUnusable` where it cannot be read."""

    def __init__(self, place: Location, path: str, table: str) -> None:
        self.table: Final = table
        self._path: Final = path
        with reading(path):
            self._parquet: Final = open_parquet(place.read(path), ["topic", WORDS[table][0]])

    @property
    def groups(self) -> int:
        return int(self._parquet.num_row_groups)

    def first_calls(self) -> list[int]:
        """The lowest call of each row group, from its statistics or, without any, from its rows."""
        return [self._first_call(group) for group in range(self.groups)]

    def chunk(
        self, group: int, counts: Counter[str], *, names: bool = False, columns: Sequence[str] | None = None
    ) -> RowChunk:
        """One row group: all that a replay needs (of outcomes `names` too, if asked for), or only some columns."""
        wanted = columns_of(self.table, names=names) if columns is None else [*columns, *NAMED, "refusal_code"]
        return chunk_of(self.table, self._read(group, wanted), counts)

    def _first_call(self, group: int) -> int:
        metadata = self._parquet.metadata.row_group(group)
        columns = (metadata.column(place) for place in range(metadata.num_columns))
        statistics = next(column.statistics for column in columns if column.path_in_schema == "call_number")
        if statistics is not None and statistics.has_min_max:
            return int(statistics.min)
        return int(pc.min(self._read(group, ["call_number"]).column(0)).as_py() or 0)

    def _read(self, group: int, columns: list[str]) -> pa.Table:
        with reading(self._path):
            return self._parquet.read_row_group(group, columns=columns, use_threads=False)


def chunks_of(files: Iterable[TableReader], counts: Counter[str]) -> Iterator[RowChunk]:
    """All row groups of a run's files, in the order of their first calls, as `windows` needs them."""
    groups = [
        (first_call, place, group, file)
        for place, file in enumerate(files)
        for group, first_call in enumerate(file.first_calls())
    ]
    for _, _, group, file in sorted(groups, key=lambda entry: entry[:3]):
        chunk = file.chunk(group, counts)
        if len(chunk):
            yield chunk
