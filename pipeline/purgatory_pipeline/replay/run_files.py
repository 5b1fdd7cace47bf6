"""The files of a run: the context that a replay needs before the first row (the engine's settings, and the first call
with missing rows), a reader of the columns that it needs, and the windows into which chunks of its tables are merged.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.extensions.archive import schema
from purgatory.extensions.archive.layout import FILE_NUMBER
from purgatory.extensions.archive.run_details import RunDetails
from purgatory_pipeline.archive.catalog import ROW_KEYS, ArchiveCatalog
from purgatory_pipeline.archive.daemon_runs import details_of, last_files, read_markers
from purgatory_pipeline.archive.footer import ArchiveFile, open_parquet
from purgatory_pipeline.engine_rows.arrow_chunks import NAMED, NUMBERS, SETS, WORDS, chunk_of
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.engine_rows.row_chunk import TABLES, RowChunk, in_order, join
from purgatory_pipeline.location import Location, reading

DECISIVE: Final = (schema.EVENTS, schema.CALLS)
"""Tables of which a lost row may change how other operations end."""
NEVER: Final = 2**62
"""After all calls."""


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


ROWS_MIN: Final = 150_000
"""A window is closed at this many rows, which then share its fixed cost."""


@dataclass(frozen=True)
class CallWindow:
    """Rows by table, in the order of their calls; tables without rows are missing."""

    tables: dict[str, RowChunk]
    last_ms: int
    """The engine's clock at its last call; it never goes back within a run."""
    clock_falls: int
    """Rows whose clock was behind an earlier call's; they were moved to the latest instant before them."""
    repeated: int
    """Duplicates that were dropped."""

    def get(self, table: str) -> RowChunk | None:
        return self.tables.get(table)


def windows(
    chunks: Iterable[RowChunk], first_ms: int = 0, *, repeated: bool = False, rows_min: int = ROWS_MIN
) -> Iterator[CallWindow]:
    """The windows of one run: all rows of all tables from one call to another. `chunks`: of all its tables, by first
    call, those of one table in their order. So when a chunk begins with call `n`, all rows of earlier calls have
    arrived, and memory is bounded by the chunks that overlap.

    `first_ms` is when the run began. `repeated`: some rows may be duplicated.
    """
    held: dict[str, list[RowChunk]] = {}
    rows = rows_left = before = 0
    for chunk in chain(chunks, [None]):
        # Each cut copies all rows that remain, so the next one comes only at twice their number.
        if chunk is None or rows >= max(rows_min, 2 * rows_left):
            before = NEVER if chunk is None else chunk.first_call
            taken = _cut(held, before)
            rows = rows_left = sum(len(part) for parts in held.values() for part in parts)
            if taken:
                once = {table: without_repeated(part) if repeated else part for table, part in taken.items()}
                dropped = sum(map(len, taken.values())) - sum(map(len, once.values()))
                first_ms, falls = _straighten(list(once.values()), first_ms)
                yield CallWindow(once, first_ms, falls, dropped)
        if chunk is not None:
            assert chunk.first_call >= before, f"call {chunk.first_call} comes after those before {before}"
            rows += len(chunk)
            held.setdefault(chunk.table, []).append(chunk)


def _cut(held: dict[str, list[RowChunk]], before_call: int) -> dict[str, RowChunk]:
    """Takes out all rows of calls before a call. A chunk may extend beyond it: the rest stays for the next window, with
    the names it still needs.
    """
    taken: dict[str, RowChunk] = {}
    for table, parts in list(held.items()):
        whole = in_order(join(parts))
        stop = int(np.searchsorted(whole.columns["call"], before_call))
        if stop:
            taken[table] = whole.slice(0, stop)
        if stop < len(whole):
            held[table] = [whole.slice(stop, len(whole)).with_names_used()]
        else:
            del held[table]
    return taken


def _straighten(chunks: Sequence[RowChunk], now_ms: int) -> tuple[int, int]:
    """Makes times non-decreasing over all tables; returns the last instant and the number of changed rows."""
    times = np.concatenate([chunk.columns["time"] for chunk in chunks])
    order = np.argsort(np.concatenate([chunk.columns["call"] for chunk in chunks]), kind="stable")
    in_order_of_calls = times[order]
    # The engine asserts that its clock never goes back, and the order of calls must hold, so times are raised.
    highest = np.maximum(np.maximum.accumulate(in_order_of_calls), now_ms)
    falls = int(np.count_nonzero(highest != in_order_of_calls))
    if falls:
        times[order] = highest
        stops = np.cumsum([len(chunk) for chunk in chunks])
        for chunk, own in zip(chunks, np.split(times, stops[:-1]), strict=True):
            chunk.columns = {**chunk.columns, "time": own}
    return int(highest[-1]), falls


def without_repeated(chunk: RowChunk) -> RowChunk:
    """Drops rows that occur again, as those of overlapping files do."""
    own_names = NUMBERS[chunk.table]
    keys = pd.DataFrame({name: chunk.column(own_names[name]) for name in ROW_KEYS[chunk.table] if name in own_names})
    repeated: Flags = keys.duplicated().to_numpy()
    return chunk.take(~repeated) if repeated.any() else chunk
